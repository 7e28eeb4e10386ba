# SPDX-License-Identifier: MIT
"""Whether two samples of repetitions differ: tests, adjustment, noise floor, intervals.

A difference counts only if a Mann-Whitney test says so after Holm's adjustment over the whole
table, and if it exceeds the noise floor, which is what relabelling the same kernel's repetitions
at random makes of it. Repetitions are independent: one value for each boot or process, never the
rounds of one process, which share its hash seeds, code placement and pages.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike, NDArray

from labkit.measuring.statistics import COVERAGE, MINIMUM_REPETITIONS

Floats = NDArray[np.float64]

#: A table's share of false verdicts, at most.
SIGNIFICANCE = 0.05
NOISE_PERCENTILE = 95.0
#: Above these counts the normal approximation is used; with ties the exact one costs more.
EXACT_UP_TO, EXACT_WITH_TIES_UP_TO = 50, 25


@dataclass(frozen=True, slots=True)
class RatioInterval:
    """An interval for the factor between two samples.

    Attributes
    ----------
    low, high
        Ends of the interval of after / before; infinite where values are not all above 0.
    coverage
        The probability with which such an interval holds the factor, 0 to 1; None where there
        are too few values for the coverage asked for: then the ends are only a range.
    """

    low: float
    high: float
    coverage: float | None


@dataclass(frozen=True, slots=True)
class Difference:
    """One row of a table of two samples.

    Attributes
    ----------
    before, after
        Medians, in the values' unit.
    ratio
        after / before; nan where the sign changes or before is 0.
    interval
        Of the ratio; without coverage where there are too few repetitions for a verdict.
    n_before, n_after
        Numbers of repetitions.
    p
        Of the Mann-Whitney test, two-sided; None where there are too few repetitions.
    p_adjusted
        Holm's, over the table; None where `p` is.
    noise_floor
        The difference of medians to exceed, in the values' unit; None where `p` is.
    needed
        Repetitions on each side from which on a difference can be found in this table, where
        there are too few for it; else 0.
    differs
        Whether both, test and noise floor, say so.
    """

    before: float
    after: float
    ratio: float
    interval: RatioInterval
    n_before: int
    n_after: int
    p: float | None
    p_adjusted: float | None
    noise_floor: float | None
    needed: int
    differs: bool


def compare(pairs: Sequence[tuple[Sequence[float], Sequence[float]]]) -> list[Difference]:
    """Compare two samples in each row of a table; the adjustment is over all rows.

    Parameters
    ----------
    pairs
        Repetitions before and after, one or more on each side, finite, in one unit.

    Raises
    ------
    ValueError
        For no values, nan or infinity.
    """
    samples = [(_values(before), _values(after)) for before, after in pairs]
    tested = [
        index
        for index, pair in enumerate(samples)
        if min(len(pair[0]), len(pair[1])) >= MINIMUM_REPETITIONS
    ]
    p = {index: mann_whitney(*samples[index]) for index in tested}
    adjusted = dict(zip(tested, holm([p[index] for index in tested]), strict=True))
    # Rows with too few values will be tested, too, once they have enough.
    needed = repetitions_needed(len(samples)) if samples else 0
    rows = []
    for index, (before, after) in enumerate(samples):
        median_before, median_after = float(np.median(before)), float(np.median(after))
        floor = noise_floor(before, after) if index in p else None
        differs = (
            floor is not None
            and adjusted[index] <= SIGNIFICANCE
            and abs(median_after - median_before) > floor
        )
        smallest = _smallest_p(len(before), len(after))
        can_differ = index in p and smallest * len(tested) <= SIGNIFICANCE
        rows.append(
            Difference(
                before=median_before,
                after=median_after,
                ratio=_ratio(median_before, median_after),
                interval=ratio_interval(before, after) if index in p else _range(before, after),
                n_before=len(before),
                n_after=len(after),
                p=p.get(index),
                p_adjusted=adjusted.get(index),
                noise_floor=floor,
                needed=0 if can_differ or differs else needed,
                differs=differs,
            )
        )
    return rows


def mann_whitney(before: ArrayLike, after: ArrayLike) -> float:
    """Return the two-sided p of the Mann-Whitney test that both come from one distribution.

    Exact by counting the ways to share out the ranks, ties (as mid-ranks) included, for up to
    `EXACT_UP_TO` values a side; above, the normal approximation with corrections for ties and
    continuity.

    Notes
    -----
    Mann & Whitney, Ann. Math. Statist. 18 (1947); the counting is Streitberg & Röhmel's shift
    algorithm (Statistical Software Newsletter 12, 1986).
    """
    one, other = _values(before), _values(after)
    ranks = _doubled_ranks(np.concatenate([one, other]))
    rank_sum = int(ranks[: len(one)].sum())
    ties = len(np.unique(ranks)) < len(ranks)
    if max(len(one), len(other)) <= (EXACT_WITH_TIES_UP_TO if ties else EXACT_UP_TO):
        below, above = _tails(tuple(sorted(ranks.tolist())), len(one))
        return min(1.0, 2 * float(min(below[rank_sum], above[rank_sum])))
    total = len(ranks)
    _, counts = np.unique(ranks, return_counts=True)
    tied = float(np.sum(counts**3 - counts)) / total / (total - 1)
    variance = len(one) * len(other) / 12 * (total + 1 - tied)
    if variance <= 0:
        return 1.0  # all the same
    away = abs(rank_sum / 2 - len(one) * (total + 1) / 2) - 0.5
    return math.erfc(max(0.0, away) / math.sqrt(2 * variance))


def holm(p: Sequence[float]) -> list[float]:
    """Return p values adjusted so that the chance of any false one stays at its level.

    Holm, Scand. J. Statist. 6 (1979): the i-th smallest of m is multiplied by m - i + 1, made
    monotone, and cut off at 1.
    """
    adjusted = [0.0] * len(p)
    largest = 0.0
    for position, index in enumerate(sorted(range(len(p)), key=p.__getitem__)):
        largest = max(largest, min(1.0, (len(p) - position) * p[index]))
        adjusted[index] = largest
    return adjusted


def noise_floor(before: ArrayLike, after: ArrayLike, draws: int = 1000) -> float:
    """Return the 95th percentile of differences of medians among the same kernel's repetitions.

    Each side's repetitions are dealt out at random to two halves, `draws` times, and the size of
    the difference of their medians is taken; the percentiles of both sides are averaged. Halves
    differ more than whole sides would: what exceeds this stands out from what one kernel, measured
    twice with half the effort, shows of itself. The values' unit.
    """
    return float(np.mean([_spread_of_halves(_values(side), draws) for side in (before, after)]))


def _spread_of_halves(side: Floats, draws: int) -> float:
    half = len(side) // 2
    dealt = side[_relabellings(len(side), draws)]
    differences = _medians(dealt[:, :half]) - _medians(dealt[:, half:])
    return float(np.percentile(np.abs(differences), NOISE_PERCENTILE))


def ratio_interval(
    before: ArrayLike, after: ArrayLike, coverage: float = COVERAGE
) -> RatioInterval:
    """Return the distribution-free interval of the factor by which two samples differ.

    Its ends are two of the ratios of all pairs, those that the Mann-Whitney test would not
    reject: Moses' interval for a shift, taken on logarithms. It holds whatever the distribution,
    as long as both sides have the same one but for the factor.

    Notes
    -----
    Hollander, Wolfe & Chicken, Nonparametric Statistical Methods (3rd ed. 2014), section 4.3.
    """
    one, other = _values(before), _values(after)
    if min(one.min(), other.min()) <= 0:
        return RatioInterval(-math.inf, math.inf, None)
    ratios = np.sort((other[:, np.newaxis] / one).ravel())
    left_out, achieved = _left_out(len(one), len(other), coverage)
    return RatioInterval(float(ratios[left_out]), float(ratios[-1 - left_out]), achieved)


def _range(before: Floats, after: Floats) -> RatioInterval:
    interval = ratio_interval(before, after)
    return RatioInterval(interval.low, interval.high, None)


def geometric_mean(values: ArrayLike) -> float:
    """Return the geometric mean of values above 0; nan where there is another one, or none."""
    array = np.asarray(values, dtype=np.float64)
    if not array.size or np.any(~(array > 0)):
        return math.nan
    return float(np.exp(np.mean(np.log(array))))


def geometric_mean_interval(
    before: ArrayLike, after: ArrayLike, *, resamples: int = 1000, seed: int = 0
) -> RatioInterval:
    """Return a bootstrap interval of the geometric mean of the ratios of a table's medians.

    Repetitions are drawn with replacement on each side, each with all its rows, which share its
    noise; the interval goes from the 2.5th to the 97.5th percentile (Efron & Tibshirani, An
    Introduction to the Bootstrap, 1993, chapter 13). A percentile interval of few repetitions is
    too narrow by about sqrt((n - 1) / n): the logarithms are widened by as much around the
    estimate.

    Parameters
    ----------
    before, after
        Shape (repetitions, rows), all above 0.
    """
    one, other = np.asarray(before, dtype=np.float64), np.asarray(after, dtype=np.float64)
    if min(len(one), len(other)) < MINIMUM_REPETITIONS or min(one.min(), other.min()) <= 0:
        return RatioInterval(-math.inf, math.inf, None)
    draw = np.random.default_rng(seed)

    def levels(sample: Floats) -> Floats:
        """Return the mean logarithm of the medians in each resample, widened."""
        rows = draw.integers(0, len(sample), (resamples, len(sample)))
        drawn = np.mean([np.log(_medians(column[rows])) for column in sample.T], axis=0)
        measured = np.mean(np.log(np.median(sample, axis=0)))
        widened: Floats = measured + (drawn - measured) * math.sqrt(len(sample) / (len(sample) - 1))
        return widened

    tail = 100 * (1 - COVERAGE) / 2
    low, high = np.percentile(levels(other) - levels(one), [tail, 100 - tail])
    return RatioInterval(float(np.exp(low)), float(np.exp(high)), COVERAGE)


def repetitions_needed(rows: int) -> int:
    """Return from how many repetitions on each side a table of so many rows can show anything.

    Even samples that do not overlap at all have a p above 0, and Holm's adjustment multiplies
    it: 6 repetitions do for up to 23 rows, 7 for up to 85.
    """
    n = MINIMUM_REPETITIONS
    while _smallest_p(n, n) * rows > SIGNIFICANCE:
        n += 1
    return n


def _smallest_p(n_before: int, n_after: int) -> float:
    return 2 / math.comb(n_before + n_after, n_before)


def _doubled_ranks(values: Floats) -> NDArray[np.int64]:
    """Return mid-ranks times two, which are whole numbers."""
    _, index, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    doubled: NDArray[np.int64] = (2 * last - counts + 1)[index]
    return doubled


@lru_cache(maxsize=64)
def _tails(ranks: tuple[int, ...], taken: int) -> tuple[Floats, Floats]:
    """Return for each sum of so many ranks how probable it is, or a smaller, or a larger one."""
    ways = np.zeros((taken + 1, sum(ranks) + 1))
    ways[0, 0] = 1
    for rank in ranks:
        ways[1:, rank:] += ways[:-1, :-rank].copy()
    share = ways[taken] / math.comb(len(ranks), taken)
    return np.cumsum(share), np.cumsum(share[::-1])[::-1]


@lru_cache(maxsize=64)
def _left_out(n_before: int, n_after: int, coverage: float) -> tuple[int, float | None]:
    """Return how many of the pairs' ratios lie outside the interval at each end, and coverage."""
    products = n_before * n_after
    if max(n_before, n_after) > EXACT_UP_TO:
        spread = math.sqrt(products * (n_before + n_after + 1) / 12)
        z = NormalDist().inv_cdf((1 + coverage) / 2)
        left_out = max(0, math.floor(products / 2 - z * spread))
        return left_out, coverage
    below, _ = _tails(tuple(range(2, 2 * (n_before + n_after) + 1, 2)), n_before)
    smallest = n_before * (n_before + 1)
    misses = 2 * below[smallest : smallest + 2 * products : 2]  # U at most 0, 1, 2, ...
    within = np.flatnonzero(misses <= 1 - coverage)
    if not len(within):
        return 0, None
    return int(within[-1]), float(1 - misses[within[-1]])


def _medians(samples: Floats) -> Floats:
    """Return the median of each row; `numpy.median` takes four times as long on short ones."""
    ordered, count = np.sort(samples, axis=1), samples.shape[1]
    medians: Floats = (ordered[:, (count - 1) // 2] + ordered[:, count // 2]) / 2
    return medians


@lru_cache(maxsize=16)
def _relabellings(count: int, draws: int) -> NDArray[np.int64]:
    """Return random orders of repetitions, shape (draws, count); always the same."""
    return np.argsort(np.random.default_rng(0).random((draws, count)), axis=1)


def _ratio(before: float, after: float) -> float:
    return after / before if before * after > 0 else math.nan


def _values(values: ArrayLike) -> Floats:
    array = np.asarray(values, dtype=np.float64).ravel()
    if not array.size:
        raise ValueError("no values: at least one is needed")
    if not np.all(np.isfinite(array)):
        raise ValueError("values must be finite")
    return array
