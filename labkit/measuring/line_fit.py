# SPDX-License-Identifier: MIT
"""A cost that grows in a straight line with a size: what each unit of the size costs."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from labkit.measuring import bootstrap
from labkit.measuring.statistics import Level

#: One more than the line has parameters: with fewer, it goes through every point.
MINIMUM_SIZES = 3


@dataclass(frozen=True, slots=True)
class LineFit:
    """A line fitted to costs.

    Attributes
    ----------
    fixed_ns, each_ns
        Cost at size zero, and of one more unit of size, ns.
    r_squared
        Share of the costs' variance that the line explains, at most 1.
    """

    fixed_ns: float
    each_ns: float
    r_squared: float


@dataclass(frozen=True, slots=True)
class LineFitInterval:
    """A line fitted to the medians of repetitions, with how far resampling them moves it.

    Attributes
    ----------
    fit
        The line fitted to the median of each size.
    each_ns
        Low and high end of the interval of what one more unit of size costs, ns.
    coverage, method
        As in `labkit.measuring.cache_fit.CacheFitInterval`.
    """

    fit: LineFit
    each_ns: tuple[float, float]
    coverage: float | None
    method: str


def fit_line(sizes: Sequence[int], cost_ns: ArrayLike) -> LineFit:
    """Fit a line to costs by least squares.

    Parameters
    ----------
    sizes
        Whole numbers from 1, each once, three or more.
    cost_ns
        Costs at these sizes, ns, shape (sizes,).

    Raises
    ------
    ValueError
        For other sizes or shapes, or costs that are not finite.
    """
    n, (cost,) = bootstrap.sorted_sizes(
        sizes, np.asarray(cost_ns, dtype=np.float64)[np.newaxis], MINIMUM_SIZES
    )
    if not np.all(np.isfinite(cost)):
        raise ValueError("a cost that is not finite")
    off_center = n - n.mean()
    each = float(off_center @ (cost - cost.mean()) / (off_center @ off_center))
    fixed = float(cost.mean() - each * n.mean())
    scatter = float(np.sum((cost - cost.mean()) ** 2))
    left = float(np.sum((cost - fixed - each * n) ** 2))
    return LineFit(fixed, each, 1 - left / scatter if scatter else 1.0)


def bootstrap_line_fit(
    sizes: Sequence[int],
    repetitions_ns: ArrayLike,
    level: Level,
    *,
    resamples: int = 1000,
    seed: int = 0,
) -> LineFitInterval:
    """Fit a line to the medians of repetitions, with an interval as in `bootstrap_cache_fit`.

    Parameters
    ----------
    sizes
        As in `fit_line`.
    repetitions_ns
        Costs, ns, shape (repetitions, sizes); nan where a repetition lacks a size.
    level, resamples, seed
        As in `labkit.measuring.cache_fit.bootstrap_cache_fit`.

    Raises
    ------
    ValueError
        As `fit_line`, or if there are fewer than two repetitions.
    """
    n, repetitions = bootstrap.measured_sizes(sizes, repetitions_ns, MINIMUM_SIZES)
    whole = [int(size) for size in n]
    fit = fit_line(whole, bootstrap.medians(repetitions.T))
    drawn = bootstrap.resampled_medians(repetitions, resamples, seed)
    slopes = [fit_line(whole, row).each_ns for row in drawn[~np.isnan(drawn).any(axis=1)]]
    coverage, method = bootstrap.method(len(repetitions), len(slopes), level)
    return LineFitInterval(fit, bootstrap.percentiles(slopes, coverage), coverage, method)
