# SPDX-License-Identifier: MIT
"""Two samples: published examples to the last printed digit, and simulations with fixed seeds."""

import math
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from scipy import stats

from labkit.measuring import comparison
from labkit.measuring.comparison import (
    compare,
    geometric_mean,
    geometric_mean_interval,
    holm,
    mann_whitney,
    noise_floor,
    ratio_interval,
    repetitions_needed,
)
from labkit.measuring.statistics import median_interval

# The example in the documentation of golang.org/x/perf/cmd/benchstat, ns/op.
JSON_OLD = [1726, 1723, 1707, 1707, 1713, 1729, 1736, 1707, 1705, 1774]
JSON_NEW = [1423, 1416, 1411, 1413, 1412, 1426, 1422, 1424, 1447, 1425]
GOB_OLD = [3069, 3075, 3069, 3067, 3207, 3064, 3064, 3058, 3059, 3062]
GOB_NEW = [3075, 3065, 3059, 3065, 3060, 3081, 3186, 3135, 3087, 3062]

Floats = np.ndarray


def test_benchstats_documented_example_to_all_printed_digits() -> None:
    json, gob = compare([(JSON_OLD, JSON_NEW), (GOB_OLD, GOB_NEW)])
    assert (f"{json.before / 1e3:.3f}", f"{json.after / 1e3:.3f}") == ("1.718", "1.423")
    assert (f"{gob.before / 1e3:.3f}", f"{gob.after / 1e3:.3f}") == ("3.066", "3.070")
    assert f"{100 * (json.ratio - 1):+.2f}" == "-17.20"
    assert (f"{json.p:.3f}", f"{gob.p:.3f}") == ("0.000", "0.446")
    assert json.differs
    assert not gob.differs
    old, new = geometric_mean([json.before, gob.before]), geometric_mean([json.after, gob.after])
    assert (f"{old / 1e3:.3f}", f"{new / 1e3:.3f}") == ("2.295", "2.090")
    assert f"{100 * (new / old - 1):+.2f}" == "-8.94"


@pytest.mark.parametrize(
    ("values", "printed"), [(JSON_OLD, 1), (JSON_NEW, 1), (GOB_OLD, 0), (GOB_NEW, 2)]
)
def test_benchstats_documented_intervals(values: list[int], printed: int) -> None:
    interval = median_interval(values)
    middle = float(np.median(values))
    widest = max(interval.high - middle, middle - interval.low) / middle
    assert f"{100 * widest:.0f}" == str(printed)


def test_scipys_documented_example() -> None:
    # scipy.stats.mannwhitneyu: ages at diagnosis, p = 0.1111111111111111 by the exact method.
    assert mann_whitney([19, 22, 16, 29, 24], [20, 11, 17, 12]) == pytest.approx(1 / 9, rel=1e-14)


@pytest.mark.parametrize(("n", "m"), [(6, 6), (6, 11), (13, 9), (30, 40), (50, 50)])
def test_without_ties_p_is_scipys_exact_one(n: int, m: int) -> None:
    draw = np.random.default_rng(n)
    for shift in (0.0, 0.5, 2.0):
        before, after = draw.normal(size=n), draw.normal(shift, size=m)
        expected = stats.mannwhitneyu(before, after, method="exact").pvalue
        assert mann_whitney(before, after) == pytest.approx(expected, rel=1e-9)


def test_with_ties_p_is_that_of_all_relabellings() -> None:
    before, after = np.array([1, 1, 2, 3, 3, 7]), np.array([2, 3, 3, 3, 9, 9])

    def rank_sum(one: Floats, other: Floats) -> float:
        return float(stats.rankdata(np.concatenate([one, other]))[: len(one)].sum())

    expected = stats.permutation_test(
        (before, after), rank_sum, permutation_type="independent", n_resamples=10_000
    )
    assert mann_whitney(before, after) == pytest.approx(expected.pvalue, rel=1e-9)


def test_many_values_take_scipys_normal_approximation() -> None:
    draw = np.random.default_rng(3)
    before, after = draw.integers(0, 20, 60), draw.integers(0, 22, 70)
    expected = stats.mannwhitneyu(before, after, method="asymptotic").pvalue
    assert mann_whitney(before, after) == pytest.approx(expected, rel=1e-12)
    assert mann_whitney([4] * 80, [4] * 80) == 1


def test_holm_of_given_values() -> None:
    # Sorted 0.005 0.01 0.03 0.04, times 4 3 2 1: 0.02 0.03 0.06 and 0.04, which may not be less.
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.5, 0.9]) == [1, 1]
    assert holm([]) == []


def test_ratio_interval_of_given_values() -> None:
    # 36 ratios; U <= 5 has probability 0.02056 a side for 6 and 6 (Mann & Whitney's table), so
    # that the 6th smallest and largest are the ends and coverage is 0.95887.
    before, after = np.arange(1.0, 7.0), np.arange(10.0, 70.0, 10.0)
    interval = ratio_interval(before, after)
    ordered = sorted(a / b for a in after for b in before)
    assert (interval.low, interval.high) == (ordered[5], ordered[30])
    assert interval.coverage == pytest.approx(1 - 2 * 19 / 924, rel=1e-12)
    assert ratio_interval([1, 2], [3, 4]).coverage is None
    assert ratio_interval([1.0, -1], [3, 4]).low == -math.inf


def test_ratio_interval_agrees_with_the_test() -> None:
    draw = np.random.default_rng(5)
    for _ in range(200):
        before, after = np.exp(draw.normal(size=(2, 8)))
        interval = ratio_interval(before, after)
        within = interval.low <= 1 <= interval.high
        assert within == (mann_whitney(before, after) > 1 - comparison.COVERAGE)


def test_noise_floor_of_given_values() -> None:
    # Halves of {0, 0, 0, 4, 4, 4} have medians of 0 and 4, whatever the halves: they differ by 4.
    # Halves of {7, ...} do not differ. The average of 4 and 0.
    assert noise_floor([0, 0, 0, 4, 4, 4], [7] * 6) == 2
    assert noise_floor([5] * 6, [9] * 7) == 0


def test_what_only_the_test_finds_is_not_a_difference() -> None:
    # Values in two humps, 10 apart; all of one sample lie a little above those of the other.
    before = [10.0, 10.0, 10.0, 10.0, 20.0, 20.0, 20.0, 10.0]
    after = [10.1, 10.1, 10.1, 10.1, 20.1, 20.1, 20.1, 20.1]
    row = compare([(before, after)])[0]
    assert row.noise_floor > row.after - row.before > 0
    many = compare([(before * 3, after * 3)])[0]
    assert many.p < 0.05
    assert not many.differs


def test_a_table_says_how_many_repetitions_it_needs() -> None:
    # C(12, 6) = 924 and C(14, 7) = 3432: 2 / 924 * 23 = 0.0498 <= 0.05, with 24 rows it is above.
    assert [repetitions_needed(rows) for rows in (1, 23, 24, 85, 86)] == [6, 6, 7, 7, 8]
    five, six = ([1, 2, 3, 4, 5], [11, 12, 13, 14, 15]), (range(6), range(100, 106))
    assert [row.needed for row in compare([five, six])] == [6, 0]
    assert [row.differs for row in compare([five, six])] == [False, True]
    apart = compare([six] * 24)
    assert {(row.needed, row.differs) for row in apart} == {(7, False)}


@pytest.mark.parametrize("values", [[], [1.0, math.nan], [math.inf]])
def test_nothing_nan_and_infinity_are_refused(values: list[float]) -> None:
    with pytest.raises(ValueError, match=r"no values|must be finite"):
        compare([(values, [1.0, 2.0])])


# -- simulations: A and B measured by turns, one value a process ----------------------------------

TABLES = 1000


def normal(draw: np.random.Generator, turns: int, rows: int) -> Floats:
    return draw.normal(100, 2, (turns, rows))


def skewed(draw: np.random.Generator, turns: int, rows: int) -> Floats:
    return 100 + draw.lognormal(0, 1.5, (turns, rows))


def two_humped(draw: np.random.Generator, turns: int, rows: int) -> Floats:
    return 100 + 8 * draw.integers(0, 2, (turns, rows)) + draw.normal(0, 0.3, (turns, rows))


def drifting(draw: np.random.Generator, turns: int, rows: int) -> Floats:
    """Return what one drift, the same for all rows, and a random walk of each add to noise."""
    trend = np.linspace(0, draw.normal(0, 10), turns)[:, np.newaxis]
    walk = np.cumsum(draw.normal(0, 1, (turns, rows)), axis=0)
    return 100 + trend + walk + draw.normal(0, 1, (turns, rows))


def correlated_and_stopped(draw: np.random.Generator, turns: int, rows: int) -> Floats:
    """Return medians of rounds that follow each other closely, taken until all look narrow."""
    most, narrow = 20, 0.004
    level = draw.normal(100, 1, (turns, rows))
    rounds = np.empty((turns, rows, most))
    state = draw.normal(0, 1, (turns, rows))
    for index in range(most):
        state = 0.9 * state + draw.normal(0, math.sqrt(1 - 0.9**2), (turns, rows))
        rounds[..., index] = level + state
    values = np.median(rounds, axis=2)
    going = np.ones(turns, dtype=bool)
    for count in range(6, most):
        ends = median_interval(range(count))
        ordered = np.sort(rounds[going][..., :count], axis=2)
        width = ordered[..., int(ends.high)] - ordered[..., int(ends.low)]
        stop = np.all(width / 2 <= narrow * np.median(ordered, axis=2), axis=1)
        stopped = np.flatnonzero(going)[stop]
        values[stopped] = np.median(ordered[stop], axis=2)
        going[stopped] = False
    return values


SAME = [normal, skewed, two_humped, drifting, correlated_and_stopped]
Draw = Callable[[np.random.Generator, int, int], Floats]


def tables(same: Draw, n: int, rows: int) -> Iterator[list[tuple[Floats, Floats]]]:
    draw = np.random.default_rng(20260101)
    for _ in range(TABLES):
        values = same(draw, 2 * n, rows)
        yield [(values[::2, row], values[1::2, row]) for row in range(rows)]


@pytest.mark.parametrize("n", [6, 10])
@pytest.mark.parametrize("same", SAME)
def test_pairs_from_one_distribution_rarely_get_a_verdict(same: Draw, n: int) -> None:
    false = sum(compare(table)[0].differs for table in tables(same, n, 1))
    assert false <= 0.05 * TABLES


@pytest.mark.slow
@pytest.mark.parametrize("same", SAME)
def test_tables_from_one_distribution_rarely_get_any_verdict(same: Draw) -> None:
    false = sum(any(row.differs for row in compare(table)) for table in tables(same, 8, 40))
    # Without ties the share is known: a row's p can be 0.00124 of 0.05 / 40, which makes
    # 1 - (1 - 0.00124)**40 = 4.85 %, less what the noise floor takes. What 1000 tables show of it
    # scatters by 0.7 %.
    assert false <= stats.binom.ppf(0.99, TABLES, 0.05)


def test_three_standard_deviations_are_found() -> None:
    pairs = (pair for (pair,) in tables(normal, 10, 1))
    found = sum(compare([(before, after + 3 * 2.0)])[0].differs for before, after in pairs)
    assert found >= 0.99 * TABLES


@pytest.mark.slow
def test_a_table_that_shifts_by_three_standard_deviations_is_found() -> None:
    found = 0
    for table in tables(normal, 10, 40):
        rows = compare([(before, after + 3 * 2.0) for before, after in table])
        found += sum(row.differs for row in rows)
    assert found >= 0.99 * 40 * TABLES


@pytest.mark.parametrize("same", [normal, skewed, two_humped])
def test_ratio_interval_covers_the_factor_as_often_as_it_says(same: Draw) -> None:
    covered = 0
    for ((before, after),) in tables(same, 10, 1):
        interval = ratio_interval(before, 1.25 * after)
        covered += interval.low <= 1.25 <= interval.high
    # Standard error sqrt(0.957 * 0.043 / 1000) = 0.0064.
    assert covered / TABLES == pytest.approx(interval.coverage, abs=0.02)
    assert interval.coverage >= 0.95


@pytest.mark.parametrize("n", [20, 40])
def test_geometric_mean_interval_covers_the_change(n: int) -> None:
    draw = np.random.default_rng(11)
    covered = 0
    for _ in range(TABLES):
        # Each process shifts all its rows, and each row a little more.
        shift = draw.normal(0, 0.05, (2, n, 1)) + draw.normal(0, 0.05, (2, n, 12))
        before, after = np.exp(shift)
        interval = geometric_mean_interval(before, 0.9 * after, resamples=400)
        covered += interval.low <= 0.9 <= interval.high
    assert 0.93 <= covered / TABLES <= 0.97


def test_geometric_mean_of_given_values() -> None:
    assert geometric_mean([2, 8]) == pytest.approx(4)
    assert math.isnan(geometric_mean([]))
    assert math.isnan(geometric_mean([1, 0]))
    assert geometric_mean_interval(np.ones((5, 2)), np.ones((9, 2))).coverage is None
