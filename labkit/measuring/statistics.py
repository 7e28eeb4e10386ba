# SPDX-License-Identifier: MIT
"""Medians with distribution-free intervals, and what else a row of repetitions is summarised by.

Standard library only: the stop rule needs these in the child that measures. Every function
refuses an empty sequence, nan and infinity with a `ValueError`, and returns the values' unit.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

#: Where repetitions differ: kernel boots, processes of one boot, rounds of one process.
Level = Literal["boot", "process", "round"]
COVERAGE = 0.95
#: Fewer repetitions give no interval of the median that covers 95 %.
MINIMUM_REPETITIONS = 6


@dataclass(frozen=True, slots=True)
class MedianInterval:
    """An interval for the median.

    Attributes
    ----------
    low, high
        Its ends, two of the values; same unit as the values.
    coverage
        The probability, 0 to 1, with which such an interval holds the median of what the values
        were drawn from; None where there are too few values: then the ends are only their range.
    n
        Number of values.
    """

    low: float
    high: float
    coverage: float | None
    n: int


@dataclass(frozen=True, slots=True)
class Estimate:
    """A row of repetitions, summarised.

    Attributes
    ----------
    median, mean, minimum, maximum
        Same unit as the values.
    low, high, coverage
        The interval of the median; see `MedianInterval`.
    deviation
        Sample standard deviation (n - 1), same unit as the values; nan for one value.
    n
        Number of repetitions.
    level
        What was repeated.
    """

    median: float
    low: float
    high: float
    coverage: float | None
    mean: float
    deviation: float
    n: int
    minimum: float
    maximum: float
    level: Level


def median(values: Sequence[float]) -> float:
    """Return the middle value, or the mean of the middle two; same unit as `values`."""
    return float(statistics.median(_checked(values)))


def mean(values: Sequence[float]) -> float:
    """Return the arithmetic mean; same unit as `values`."""
    return statistics.fmean(_checked(values))


def deviation(values: Sequence[float]) -> float:
    """Return the sample standard deviation (n - 1); same unit as `values`, nan for one value."""
    checked = _checked(values)
    return statistics.stdev(checked) if len(checked) > 1 else math.nan


def median_interval(values: Sequence[float], coverage: float = COVERAGE) -> MedianInterval:
    """Return the narrowest interval of symmetric order statistics that covers the median.

    With r-th smallest and r-th largest value as its ends it misses the median only if fewer than
    r of n values fall on one side of it, which happens as with n tosses of a coin, whatever the
    values' distribution. Ties make the true coverage larger.

    Parameters
    ----------
    values
        Independent repetitions.
    coverage
        The least that is wanted, above 0 and below 1.

    Notes
    -----
    David & Nagaraja, Order Statistics (3rd ed. 2003), on distribution-free intervals for
    quantiles; Conover, Practical Nonparametric Statistics (3rd ed. 1999), section 3.2.
    """
    if not 0 < coverage < 1:
        raise ValueError(f"coverage {coverage}: must be above 0 and below 1")
    ordered = sorted(_checked(values))
    rank, achieved = _rank(len(ordered), coverage)
    return MedianInterval(ordered[rank - 1], ordered[-rank], achieved, len(ordered))


def estimate(values: Sequence[float], level: Level) -> Estimate:
    """Summarise repetitions, and say at which level they were made."""
    interval = median_interval(values)
    return Estimate(
        median=median(values),
        low=interval.low,
        high=interval.high,
        coverage=interval.coverage,
        mean=mean(values),
        deviation=deviation(values),
        n=interval.n,
        minimum=float(min(values)),
        maximum=float(max(values)),
        level=level,
    )


@lru_cache(maxsize=16)
def _rank(n: int, coverage: float) -> tuple[int, float | None]:
    """Return the largest rank whose interval still covers enough, and what it covers."""
    rank, achieved = 1, None
    ways = below = 1  # to have exactly, and at most, rank - 1 of n values below the median
    while (covered := 1 - below / 2 ** (n - 1)) >= coverage:
        achieved = covered
        ways = ways * (n - rank + 1) // rank
        below += ways
        rank += 1
    return max(rank - 1, 1), achieved


def _checked(values: Sequence[float]) -> list[float]:
    if not len(values):
        raise ValueError("no values: at least one is needed")
    for value in values:
        if not math.isfinite(value):
            raise ValueError(f"value {value}: must be finite")
    return [float(value) for value in values]
