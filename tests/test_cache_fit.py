# SPDX-License-Identifier: MIT
"""The cache fit and the crossing: on published figures, on known models, against brute force."""

import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray
from scipy.optimize import least_squares

from labkit.measuring.cache_fit import (
    MINIMUM_SIZES,
    CacheFit,
    CacheFitInterval,
    bootstrap_cache_fit,
    bootstrap_crossing,
    crossing,
    fit_cache,
)

Floats = NDArray[np.float64]

PUBLISHED = Path(__file__).parents[1] / "data/published/local_storage_adjusted.csv"
SIZES = [1, 4, 10, 14, 15, 16, 17, 18, 20, 24, 28, 32, 48, 64, 100, 300, 1000]


def model(slots: int, hit_ns: float, a_ns: float, b_ns_per_map: float) -> CacheFit:
    return CacheFit(slots, slots, hit_ns, a_ns, b_ns_per_map, residual=0.0, n_points=0)


def noisy(truth: CacheFit, repetitions: int, seed: int) -> Floats:
    """Draw repetitions that differ by a common factor of 5 % and by 2 % at each size."""
    draw = np.random.default_rng(seed)
    noise = draw.normal(0, 0.02, (repetitions, len(SIZES))) + draw.normal(0, 0.05, (repetitions, 1))
    return truth.predict(SIZES) * np.exp(noise)


def test_published_net_figures_give_sixteen_slots() -> None:
    published = pd.read_csv(PUBLISHED, comment="#")
    rows = published[published["variant"] == "sequential"]
    fit = fit_cache(rows["value"].tolist(), rows["ns_per_op"].to_numpy())
    assert fit.cliff
    assert (fit.slots, fit.slots_high, fit.n_points) == (16, 16, 8)
    assert round(fit.hit_ns, 1) == 13.7
    assert fit.a_ns == 0
    assert round(fit.b_ns_per_map, 1) == 1.7


def test_prediction_follows_the_model() -> None:
    # Above 16 maps a share of 2 (n - 16) / n misses: 2/17 at 17, 16/24 at 24, all from 32 on;
    # a miss costs 2 + n more.
    expected = [10, 10, 10 + 2 / 17 * 19, 10 + 2 / 3 * 26, 10 + 34, 10 + 102]
    predicted = model(16, 10, 2, 1).predict([[1, 16, 17], [24, 32, 100]])
    assert predicted.shape == (2, 3)
    assert predicted.ravel() == pytest.approx(expected, rel=1e-14)


@pytest.mark.parametrize(
    "truth",
    [
        model(16, 13.7, 0, 1.7),
        model(16, 8, 20, 0),
        model(16, 8, 3, 1.5),
        model(22, 8, 0.5, 0.02),  # not a size
        model(3, 200, 1, 1),  # not a size
        model(57, 1.5, 40, 3),  # not a size
    ],
)
def test_noise_free_costs_give_their_model_back(truth: CacheFit) -> None:
    order = np.random.default_rng(3).permutation(SIZES)
    fit = fit_cache(order.tolist(), truth.predict(order))
    assert (fit.slots, fit.slots_high) == (truth.slots, truth.slots)
    assert fit.hit_ns == pytest.approx(truth.hit_ns, rel=1e-6)
    assert fit.a_ns == pytest.approx(truth.a_ns, abs=1e-5)
    assert fit.b_ns_per_map == pytest.approx(truth.b_ns_per_map, abs=1e-6)
    assert fit.residual < 1e-6
    assert fit.predict(SIZES) == pytest.approx(truth.predict(SIZES), rel=1e-6)


@pytest.mark.parametrize(("slots", "seed"), [(16, 1), (9, 2), (27, 3)])
def test_no_other_optimiser_finds_a_better_fit(slots: int, seed: int) -> None:
    n = np.array([1, 3, 8, 10, 12, 16, 20, 26, 34, 40, 60])
    noise = np.random.default_rng(seed).normal(0, 0.1, len(n))
    cost = model(slots, 10, 4, 0.3).predict(n) * np.exp(noise)

    def squares(c: int) -> float:
        missing = np.where(n > c, np.minimum(1, 2 * (n - c) / n), 0)

        def residuals(parameters: Floats) -> Floats:
            hit, a, b = parameters
            difference: Floats = np.log(hit + missing * (a + b * n)) - np.log(cost)
            return difference

        starts = ([8.0, 1.0, 1e-3], [8.0, 1e-3, 1.0], [20.0, 10.0, 0.1])
        bounds = ([1e-9, 0, 0], np.inf)
        costs = [
            least_squares(residuals, x, bounds=bounds, xtol=1e-12, ftol=1e-12, gtol=1e-12).cost
            for x in starts
        ]
        return 2 * float(min(costs))

    fit = fit_cache(n.tolist(), cost)
    found = {c: squares(c) for c in range(1, 60)}
    assert fit.slots == min(found, key=lambda c: found[c])
    assert fit.residual == pytest.approx(math.sqrt(found[fit.slots] / len(n)), rel=1e-6)


def test_costs_that_do_not_rise_have_no_cliff() -> None:
    steady = [10.0] * len(SIZES)
    falling = np.linspace(20, 10, len(SIZES))
    for cost in (steady, falling):
        fit = fit_cache(SIZES, cost)
        assert not fit.cliff
        assert (fit.slots, fit.slots_high, fit.a_ns, fit.b_ns_per_map) == (1000, 1000, 0, 0)
        assert fit.hit_ns == pytest.approx(math.exp(np.mean(np.log(cost))), rel=1e-12)
        assert fit.residual == pytest.approx(np.std(np.log(cost)), abs=1e-12)


def test_noise_is_hardly_ever_taken_for_a_cliff() -> None:
    draw = np.random.default_rng(11)
    costs = 10 * np.exp(draw.normal(0, 0.03, (300, len(SIZES))))
    assert sum(fit_cache(SIZES, cost).cliff for cost in costs) <= 9


@pytest.mark.parametrize("dear_ns", [30, 400, 2000, 7000])
def test_a_cliff_before_the_last_size_alone_has_no_definite_place(dear_ns: float) -> None:
    cheap = [10, 10.1, 9.9, 10.2, 9.8]
    fit = fit_cache([1, 2, 4, 8, 16, 1000], [*cheap, dear_ns])
    # From 16 maps on up to 999 any c explains a single dear size, with a or with b.
    assert (fit.slots, fit.slots_high, fit.a_ns) == (16, 999, 0)
    hit_ns = math.exp(np.mean(np.log(cheap)))
    assert fit.predict([16, 1000]) == pytest.approx([hit_ns, dear_ns], rel=1e-6)


@pytest.mark.parametrize(
    ("sizes", "cost_ns", "message"),
    [
        ([1, 2, 4, 8], [1, 1, 1, 1], "4 sizes: at least 5"),
        ([1, 2, 4, 8, 8], [1, 1, 1, 1, 1], "size 8"),
        ([0, 2, 4, 8, 9], [1, 1, 1, 1, 1], "size 0"),
        ([1.5, 2, 4, 8, 9], [1, 1, 1, 1, 1], "size 1.5"),
        ([1, 2, 4, 8, 16], [1, 1, 1, 1], r"shape \(4,\) for 5 sizes"),
        ([1, 2, 4, 8, 16], [1, 1, -0.25, 1, 1], "cost -0.25 ns at 4 maps"),
        ([16, 8, 4, 2, 1], [1, 0, 1, 1, 1], "cost 0 ns at 8 maps"),
        ([1, 2, 4, 8, 16], [1, 1, 1, 1, math.nan], "cost nan ns at 16 maps"),
        ([1, 2, 4, 8, 16], [math.inf, 1, 1, 1, 1], "cost inf ns at 1 maps"),
    ],
)
def test_bad_sizes_and_costs_are_refused(
    sizes: list[int], cost_ns: list[float], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        fit_cache(sizes, cost_ns)


def test_bootstrap_covers_the_truth_and_repeats_with_its_seed() -> None:
    truth = model(16, 8, 3, 1.5)
    repetitions = noisy(truth, 10, seed=4)
    found = bootstrap_cache_fit(SIZES, repetitions, "process", seed=9)
    assert found.fit == fit_cache(SIZES, np.median(repetitions, axis=0))
    assert found.slots == (16, 16)
    for low, high, value in [
        (*found.hit_ns, truth.hit_ns),
        (*found.a_ns, truth.a_ns),
        (*found.b_ns_per_map, truth.b_ns_per_map),
    ]:
        assert low < value < high
    assert (found.coverage, found.cliff_share) == (0.95, 1.0)
    assert found.method == "95 % percentile bootstrap, 1000 resamples of 10 processes"
    assert bootstrap_cache_fit(SIZES, repetitions, "process", seed=9) == found
    assert bootstrap_cache_fit(SIZES, repetitions, "process", seed=10) != found


@pytest.mark.parametrize("noise", [0.02, 0.6])
@pytest.mark.parametrize("partial", [False, True])
def test_bootstrap_fits_every_resample_as_well_as_a_search_of_all_c(
    noise: float, partial: bool
) -> None:
    draw = np.random.default_rng(6)
    n = [1, 4, 10, 14, 18, 24, 32, 64]
    repetitions = model(16, 8, 3, 0.2).predict(n) * np.exp(draw.normal(0, noise, (6, len(n))))
    if partial:
        # Without the first two a resample has 6 sizes, and another cliff; without the third too
        # few sizes.
        repetitions[:2, 6:] *= 5
        repetitions[2:, 6:] = np.nan
        repetitions[3:, 4:] = np.nan
    found = bootstrap_cache_fit(n, repetitions, "round", resamples=200, seed=2)

    fits = []
    for rows in np.random.default_rng(2).integers(0, 6, (200, 6)):
        columns = [column[~np.isnan(column)] for column in repetitions[rows].T]
        known = [size for size, column in zip(n, columns, strict=True) if len(column)]
        if len(known) >= MINIMUM_SIZES:
            fits.append(fit_cache(known, [np.median(column) for column in columns if len(column)]))
    assert (len(fits) < 200) == partial
    # Of 200, 2.5 % at either end are 5; of a few less, 4.
    out = 4 if partial else 5

    def ends(name: str) -> tuple[float, float]:
        ordered = sorted(getattr(fit, name) for fit in fits)
        return ordered[out], ordered[-1 - out]

    assert found.slots == (ends("slots")[0], ends("slots_high")[1])
    assert found.hit_ns == pytest.approx(ends("hit_ns"), rel=1e-4)
    assert found.a_ns == pytest.approx(ends("a_ns"), rel=1e-3, abs=1e-3)
    assert found.b_ns_per_map == pytest.approx(ends("b_ns_per_map"), rel=1e-3, abs=1e-4)
    assert found.cliff_share == sum(fit.cliff for fit in fits) / len(fits)
    assert found.method == f"95 % percentile bootstrap, {len(fits)} resamples of 6 rounds"


def test_bootstrap_of_flat_costs_finds_no_cliff() -> None:
    found = bootstrap_cache_fit(SIZES, noisy(model(1000, 10, 0, 0), 6, seed=8), "boot")
    assert not found.fit.cliff
    assert found.cliff_share < 0.05
    assert found.slots[1] == 1000


def test_a_partial_repetition_counts_where_it_measured() -> None:
    repetitions = noisy(model(16, 8, 3, 1.5), 7, seed=5)
    repetitions[6, 8:] = np.nan
    found = bootstrap_cache_fit(SIZES, repetitions, "process", resamples=200)
    medians = [*np.median(repetitions[:, :8], axis=0), *np.median(repetitions[:6, 8:], axis=0)]
    assert found.fit == fit_cache(SIZES, medians)
    assert found.slots == (16, 16)

    repetitions[:, 16] = np.nan
    partial = bootstrap_cache_fit(SIZES, repetitions, "process", resamples=200)
    assert partial.fit == fit_cache(SIZES[:16], medians[:16])


def test_few_repetitions_give_a_range_and_no_coverage() -> None:
    repetitions = noisy(model(16, 8, 3, 1.5), 3, seed=5)
    found = bootstrap_cache_fit(SIZES, repetitions, "process", resamples=200)
    assert found.coverage is None
    assert found.method == "range of 200 resamples of 3 processes: too few for an interval"
    alone = [fit_cache(SIZES, repetition).hit_ns for repetition in repetitions]
    # The extremes of resampled medians are those of the repetitions drawn three times.
    assert found.hit_ns == pytest.approx((min(alone), max(alone)), rel=1e-6)


def test_single_negative_costs_are_noise_but_a_negative_median_is_refused() -> None:
    repetitions = noisy(model(16, 8, 3, 1.5), 7, seed=5)
    repetitions[:2, 0] = -1
    found = bootstrap_cache_fit(SIZES, repetitions, "round", resamples=200)
    assert isinstance(found, CacheFitInterval)
    assert found.slots == (16, 16)
    repetitions[:4, 0] = -1
    with pytest.raises(ValueError, match="cost -1 ns at 1 maps"):
        bootstrap_cache_fit(SIZES, repetitions, "round")


def test_bad_repetitions_are_refused() -> None:
    repetitions = noisy(model(16, 8, 3, 1.5), 3, seed=5)
    with pytest.raises(ValueError, match="1 repetition: a bootstrap needs at least 2"):
        bootstrap_cache_fit(SIZES, repetitions[:1], "process")
    repetitions[:, 4:] = np.nan
    with pytest.raises(ValueError, match="4 measured sizes: at least 5"):
        bootstrap_cache_fit(SIZES, repetitions, "process")
    repetitions[0, 0] = np.inf
    with pytest.raises(ValueError, match="infinite cost"):
        bootstrap_cache_fit(SIZES, repetitions, "process")


def test_crossing_is_straight_on_log_axes_and_for_good() -> None:
    assert crossing([1, 10, 100], [1, 10, 100], 5) == pytest.approx(5, rel=1e-12)
    # Reached at 2, left again at 4; half-way from 10 to 40 on a log axis is 4 * sqrt(2).
    assert crossing([8, 1, 4, 2], [40, 10, 10, 30], 20) == pytest.approx(4 * math.sqrt(2))
    assert crossing([1, 10, 100], [1, 10, 100], 10) == pytest.approx(10, rel=1e-12)


def test_crossing_beyond_the_sizes() -> None:
    assert crossing([1, 10, 100], [1, 10, 100], 101) is None
    assert crossing([1, 10, 100], [30, 10, 9], 10) is None
    assert crossing([2, 10, 100], [20, 10, 100], 10) == 2


@pytest.mark.parametrize("level_ns", [0, -1, math.nan, math.inf])
def test_impossible_levels_are_refused(level_ns: float) -> None:
    with pytest.raises(ValueError, match="must be above 0 and finite"):
        crossing([1, 10], [1, 10], level_ns)


def test_crossing_draws_costs_and_level_together() -> None:
    # Each repetition has its own speed; where the cost n reaches the level 5 is the same in all.
    speed = np.array([1.0, 1.1, 1.3, 1.7, 2.0, 2.6])
    found = bootstrap_crossing([1, 10, 100], np.outer(speed, [1, 10, 100]), 5 * speed, "process")
    assert [found.maps, found.low, found.high] == pytest.approx([5, 5, 5], rel=1e-12)
    assert (found.coverage, found.crossed_share) == (0.95, 1.0)
    assert found.method == "95 % percentile bootstrap, 1000 resamples of 6 processes"


def test_crossing_above_the_sizes_in_some_resamples_has_an_open_end() -> None:
    repetitions = np.outer([1, 1, 1, 1, 0.1, 0.1], [1, 10, 100])
    found = bootstrap_crossing([1, 10, 100], repetitions, [50] * 6, "process")
    assert found.maps == pytest.approx(50)
    assert found.low == pytest.approx(50)
    assert found.high is None
    # Medians of six with at least four of 0.1 never reach 50: P(B(6, 1/3) >= 4) = 73 / 729. With
    # three of each they are 0.55 n, which reaches 50 at 91.
    assert found.crossed_share == pytest.approx(1 - 73 / 729, abs=0.03)


def test_crossing_refuses_levels_of_other_repetitions() -> None:
    with pytest.raises(ValueError, match=r"levels of shape \(2,\) for 3 repetitions"):
        bootstrap_crossing([1, 10], np.ones((3, 2)), [1, 1], "process")
