# SPDX-License-Identifier: MIT
"""Statistics on given samples, with values calculated by hand."""

import math
import random
from collections.abc import Callable

import pytest
from scipy.stats import binom

from labkit.measuring.statistics import (
    MINIMUM_REPETITIONS,
    MedianInterval,
    deviation,
    estimate,
    mean,
    median,
    median_interval,
)


def test_median_mean_and_deviation_of_given_values() -> None:
    values = [9, 2, 4, 7, 4, 5, 4, 5]
    # Sorted 2 4 4 4 5 5 7 9: the middle two are 4 and 5. The sum is 40.
    assert median(values) == 4.5
    assert mean(values) == 5.0
    # Squared distances from 5: 9 + 1 + 1 + 1 + 0 + 0 + 4 + 16 = 32, over n - 1 = 7.
    assert deviation(values) == pytest.approx(math.sqrt(32 / 7), rel=1e-15)
    assert median([3, 1, 2]) == 2.0


def test_one_value_has_no_deviation() -> None:
    assert math.isnan(deviation([4.0]))


def test_interval_of_six_values_is_their_range() -> None:
    # Misses only if all six fall on one side: 2 / 2**6 = 1 / 32.
    assert median_interval([5, 3, 8, 1, 9, 4]) == MedianInterval(1, 9, 1 - 1 / 32, 6)


def test_interval_of_ten_values_leaves_out_one_at_either_end() -> None:
    values = [10, 20, 30, 40, 50, 60, 70, 80, 90, 100]
    # Misses if at most one falls on one side: 2 * (1 + 10) / 1024; with ranks 3 and 8 it would
    # be 2 * (1 + 10 + 45) / 1024 = 0.109, too much for 95 % but not for 89 %.
    assert median_interval(values) == MedianInterval(20, 90, 0.978515625, 10)
    assert median_interval(values, 0.89) == MedianInterval(30, 80, 0.890625, 10)


@pytest.mark.parametrize("count", [1, 2, 5])
def test_too_few_values_have_a_range_and_no_coverage(count: int) -> None:
    values = [7.0, 1.0, 3.0, 9.0, 2.0][:count]
    assert median_interval(values) == MedianInterval(min(values), max(values), None, count)
    assert count < MINIMUM_REPETITIONS


@pytest.mark.parametrize("wanted", [0.5, 0.9, 0.95, 0.99])
def test_coverage_is_binomial_and_no_narrower_interval_covers_enough(wanted: float) -> None:
    for n in range(8, 200):
        interval = median_interval(range(1, n + 1), wanted)
        rank = interval.low
        assert interval.high == n + 1 - rank
        covered = 1 - 2 * binom.cdf(rank - 1, n, 0.5)
        assert interval.coverage == pytest.approx(covered, rel=1e-12)
        assert covered >= wanted > 1 - 2 * binom.cdf(rank, n, 0.5)


def test_interval_covers_the_median_of_a_skewed_distribution_as_often_as_it_says() -> None:
    draw = random.Random(7)
    intervals = [median_interval([draw.expovariate(1) for _ in range(10)]) for _ in range(4000)]
    covered = sum(one.low <= math.log(2) <= one.high for one in intervals) / len(intervals)
    # Standard error sqrt(0.9785 * 0.0215 / 4000) = 0.0023.
    assert covered == pytest.approx(0.978515625, abs=0.01)


def test_estimate_summarises_repetitions() -> None:
    summary = estimate([4, 1, 2, 16, 8, 5], "process")
    assert (summary.median, summary.mean) == (4.5, 6.0)
    # Squared distances from 6: 4 + 25 + 16 + 100 + 4 + 1 = 150, over 5.
    assert summary.deviation == pytest.approx(math.sqrt(30), rel=1e-15)
    assert (summary.low, summary.high, summary.coverage) == (1, 16, 0.96875)
    assert (summary.minimum, summary.maximum, summary.n) == (1, 16, 6)
    assert summary.level == "process"


@pytest.mark.parametrize("summarise", [median, mean, deviation, median_interval])
@pytest.mark.parametrize("values", [[], [1.0, math.nan], [math.inf, 1.0, 2.0], [-math.inf]])
def test_nothing_nan_and_infinity_are_refused(
    summarise: Callable[[list[float]], object], values: list[float]
) -> None:
    with pytest.raises(ValueError, match=r"no values|must be finite"):
        summarise(values)


@pytest.mark.parametrize("coverage", [0.0, 1.0, 95.0, math.nan])
def test_impossible_coverage_is_refused(coverage: float) -> None:
    with pytest.raises(ValueError, match="must be above 0 and below 1"):
        median_interval([1, 2, 3, 4, 5, 6], coverage)
