# SPDX-License-Identifier: MIT
"""Bootstrap intervals of what is fitted to medians: whole repetitions are drawn anew.

All sizes of one repetition stay together, since what a process or boot brings (a hash seed, code
placement) may move them together. After Efron & Tibshirani, "An Introduction to the Bootstrap"
(1993), chapters 6 and 13: percentile intervals.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from labkit.measuring.statistics import COVERAGE, MINIMUM_REPETITIONS, Level

Floats = NDArray[np.float64]

_PLURAL: dict[Level, str] = {"boot": "boots", "process": "processes", "round": "rounds"}


def medians(values: Floats) -> Floats:
    """Return medians over the last axis that pass over nan; nan where there is nothing else."""
    ordered = np.sort(values, axis=-1)
    count = np.sum(~np.isnan(ordered), axis=-1, keepdims=True)
    middle = np.concatenate([(count - 1) // 2, count // 2], axis=-1)
    middles: Floats = np.take_along_axis(ordered, middle, axis=-1).mean(axis=-1)
    return middles


def resampled_medians(repetitions: Floats, resamples: int, seed: int) -> Floats:
    """Return the median of each column in each resample of rows, shape (resamples, columns)."""
    count = len(repetitions)
    rows = np.random.default_rng(seed).integers(0, count, (resamples, count))
    return np.column_stack([medians(column[rows]) for column in repetitions.T])


def percentiles(values: Sequence[float], coverage: float | None) -> tuple[float, float]:
    """Return the order statistics that leave out half of what is not covered at either end."""
    ordered = np.sort(values)
    out = int((1 - coverage) / 2 * len(ordered)) if coverage else 0
    return float(ordered[out]), float(ordered[-1 - out])


def method(repetitions: int, resamples: int, level: Level) -> tuple[float | None, str]:
    """Return the nominal coverage, None where there are too few repetitions, and words on both."""
    what = f"{resamples} resamples of {repetitions} {_PLURAL[level]}"
    if repetitions < MINIMUM_REPETITIONS:
        return None, f"range of {what}: too few for an interval"
    return COVERAGE, f"{100 * COVERAGE:g} % percentile bootstrap, {what}"


def sorted_sizes(sizes: Sequence[int], rows: Floats, least: int) -> tuple[Floats, Floats]:
    """Return sizes ascending, and the columns of rows in that order."""
    n = np.asarray(sizes, dtype=np.float64)
    if rows.ndim != 2 or n.shape != rows.shape[1:]:
        raise ValueError(f"costs of shape {rows.shape[1:]} for {n.size} sizes")
    for size, count in zip(*np.unique(n, return_counts=True), strict=True):
        if size < 1 or size % 1 or count > 1:
            raise ValueError(f"size {size:g}: must be a whole number from 1, given once")
    if len(n) < least:
        raise ValueError(f"{len(n)} sizes: at least {least} are needed")
    order = np.argsort(n)
    return n[order], rows[:, order]


def measured_sizes(
    sizes: Sequence[int], repetitions_ns: ArrayLike, least: int
) -> tuple[Floats, Floats]:
    """Return sizes measured at least once, ascending, and the repetitions of those."""
    n, repetitions = sorted_sizes(sizes, repeated(repetitions_ns), 1)
    if len(repetitions) < 2:
        raise ValueError(f"{len(repetitions)} repetition: a bootstrap needs at least 2")
    measured = ~np.all(np.isnan(repetitions), axis=0)
    if np.sum(measured) < least:
        raise ValueError(f"{np.sum(measured)} measured sizes: at least {least} are needed")
    return n[measured], repetitions[:, measured]


def repeated(values_ns: ArrayLike) -> Floats:
    """Return values as an array; infinite ones are refused."""
    values = np.asarray(values_ns, dtype=np.float64)
    if np.any(np.isinf(values)):
        raise ValueError("infinite cost: must be finite, or nan where there is none")
    return values
