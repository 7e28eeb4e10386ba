# SPDX-License-Identifier: MIT
"""A model of what a cache of few slots makes gets cost, fitted to measured costs.

The kernel caches c of an owner's storages and hands the slots out in turn as maps are created.
Getting n maps in sequential order therefore always hits as long as n <= c. Above, maps that share
a slot evict each other: n - c slots have two or more maps, and gets of 2 (n - c) of n maps miss,
of all from n = 2 c on. A miss walks the owner's list of n storages::

    cost(n) = hit                      for n <= c
    cost(n) = hit + m(n) (a + b n)     above, with m(n) = min(1, 2 (n - c) / n) and a, b >= 0

`fit_cache` finds c, hit, a and b by least squares on logarithms, so that each size counts by its
relative error, and all whole c up to the largest size are tried.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from labkit.measuring import bootstrap
from labkit.measuring.bootstrap import Floats
from labkit.measuring.statistics import Level

#: One more than the model has parameters.
MINIMUM_SIZES = 5
#: By how much a cliff has to lower the BIC: "very strong" evidence in Kass & Raftery's scale.
BIC_MARGIN = 10.0
#: Squared logarithm of a cost that is known to a millionth; no difference below it is real.
_NEGLIGIBLE = 1e-12


@dataclass(frozen=True, slots=True)
class CacheFit:
    """The model as fitted to one cost for each size.

    Attributes
    ----------
    slots
        c, the number of maps up to which every get hits. The largest size where no cliff was
        found: then the model is flat, and a and b are 0.
    slots_high
        The largest c that fits as well: above `slots` where the sizes are too far apart, or too
        few lie above the cliff, to tell.
    hit_ns
        Cost of a hit, ns.
    a_ns, b_ns_per_map
        What a miss costs more, ns, and what it costs more for each map, ns per map.
    residual
        Root mean square of log(measured / fitted); 0.05 is about 5 %.
    n_points
        Number of sizes fitted.
    """

    slots: int
    slots_high: int
    hit_ns: float
    a_ns: float
    b_ns_per_map: float
    residual: float
    n_points: int

    @property
    def cliff(self) -> bool:
        """Whether the sizes show a cliff: a model without one fits clearly worse (`fit_cache`)."""
        return self.a_ns > 0 or self.b_ns_per_map > 0

    def predict(self, sizes: ArrayLike) -> Floats:
        """Return the fitted cost in ns at numbers of maps of any shape, in that shape."""
        n = np.asarray(sizes, dtype=np.float64)
        return self.hit_ns + _missing(n, self.slots) * (self.a_ns + self.b_ns_per_map * n)


@dataclass(frozen=True, slots=True)
class CacheFitInterval:
    """A fit to the medians of repetitions, with how far resampling them moves it.

    Attributes
    ----------
    fit
        The fit to the median of each size.
    slots, hit_ns, a_ns, b_ns_per_map
        Low and high end of each parameter's interval, in the parameter's unit. `slots` takes in
        all that fit equally well in a resample.
    coverage
        Nominal coverage of each interval, 0 to 1; None with too few repetitions: then the ends
        are the extremes over the resamples.
    cliff_share
        Share of the resamples that show a cliff, 0 to 1.
    method
        How it was done, in words.
    """

    fit: CacheFit
    slots: tuple[int, int]
    hit_ns: tuple[float, float]
    a_ns: tuple[float, float]
    b_ns_per_map: tuple[float, float]
    coverage: float | None
    cliff_share: float
    method: str


@dataclass(frozen=True, slots=True)
class SlotsShift:
    """By how many slots the caches of two runs differ.

    Attributes
    ----------
    before, after
        The fits to the medians of each.
    low, high
        Ends of the interval of ``after.slots - before.slots``; it takes in all that fit equally
        well in a resample.
    coverage, method
        As in `CacheFitInterval`.
    """

    before: CacheFit
    after: CacheFit
    low: int
    high: int
    coverage: float | None
    method: str

    @property
    def slots(self) -> int:
        """Return the difference of slots, after less before."""
        return self.after.slots - self.before.slots


@dataclass(frozen=True, slots=True)
class CrossingInterval:
    """Where a cost reaches a level, with how far resampling the repetitions moves it.

    Attributes
    ----------
    maps
        Number of maps from which on the cost is at least the level; None if it is not within the
        sizes. The smallest size means: there or below.
    low, high
        Ends of its interval; None for an end that lies above the sizes.
    coverage
        As in `CacheFitInterval`.
    crossed_share
        Share of the resamples that reach the level within the sizes, 0 to 1.
    method
        How it was done, in words.
    """

    maps: float | None
    low: float | None
    high: float | None
    coverage: float | None
    crossed_share: float
    method: str


def fit_cache(sizes: Sequence[int], cost_ns: ArrayLike) -> CacheFit:
    """Fit the model to one cost for each size.

    Parameters
    ----------
    sizes
        Numbers of maps in use, whole, from 1, all different, in any order.
    cost_ns
        Cost of a get in sequential order at each size, ns, above 0; same length.

    Raises
    ------
    ValueError
        For other sizes or costs, or fewer than `MINIMUM_SIZES` sizes.

    Notes
    -----
    A cliff is reported only if it lowers the Bayesian information criterion,
    N log(sum of squares / N) + k log N for k parameters, by more than `BIC_MARGIN` (Kass &
    Raftery, Bayes Factors, JASA 90, 1995). Otherwise the flat model is returned.
    Of several c that fit equally well the smallest is taken (see `CacheFit.slots_high`), and all of
    b where a and b cannot be told apart.
    """
    n, (cost,) = bootstrap.sorted_sizes(
        sizes, np.asarray(cost_ns, dtype=np.float64)[np.newaxis], MINIMUM_SIZES
    )
    _check_costs(n, cost)
    log_cost = np.log(cost)
    return _choose(n, log_cost, _profile(n, log_cost))


def bootstrap_cache_fit(
    sizes: Sequence[int],
    repetitions_ns: ArrayLike,
    level: Level,
    *,
    resamples: int = 1000,
    seed: int = 0,
) -> CacheFitInterval:
    """Fit the model to the medians of repetitions, with a bootstrap interval.

    Repetitions are drawn with replacement, each with all its sizes, as many as there are; the
    median of each size is fitted as `fit_cache` does it; the interval of a parameter goes from
    the 2.5th to the 97.5th percentile of the resamples (Efron & Tibshirani, An Introduction to
    the Bootstrap, 1993, chapter 13).

    Parameters
    ----------
    sizes
        As in `fit_cache`.
    repetitions_ns
        Costs, ns, shape (repetitions, sizes); nan where a repetition lacks a size. Single costs
        may be 0 or below, as a difference can by noise; medians may not.
    level
        What a repetition is.
    resamples, seed
        How many resamples, and the seed of their random numbers.

    Raises
    ------
    ValueError
        As `fit_cache`, or if there are fewer than two repetitions, or infinite costs.

    Notes
    -----
    A size whose median in a resample is missing or not above 0 is left out of that resample; a
    resample left with fewer than `MINIMUM_SIZES` is left out altogether.
    """
    n, repetitions = bootstrap.measured_sizes(sizes, repetitions_ns, MINIMUM_SIZES)
    fit, fits = _resampled_fits(n, repetitions, resamples, seed)
    coverage, method = bootstrap.method(len(repetitions), len(fits), level)
    return CacheFitInterval(
        fit=fit,
        slots=(
            int(bootstrap.percentiles([one.slots for one in fits], coverage)[0]),
            int(bootstrap.percentiles([one.slots_high for one in fits], coverage)[1]),
        ),
        hit_ns=bootstrap.percentiles([one.hit_ns for one in fits], coverage),
        a_ns=bootstrap.percentiles([one.a_ns for one in fits], coverage),
        b_ns_per_map=bootstrap.percentiles([one.b_ns_per_map for one in fits], coverage),
        coverage=coverage,
        cliff_share=sum(one.cliff for one in fits) / len(fits),
        method=method,
    )


def bootstrap_slots_shift(
    before: tuple[Sequence[int], ArrayLike],
    after: tuple[Sequence[int], ArrayLike],
    level: Level,
    *,
    resamples: int = 1000,
    seed: int = 0,
) -> SlotsShift:
    """Find by how many slots the caches of two runs differ, with a bootstrap interval.

    Both runs are resampled as in `bootstrap_cache_fit`, independently of each other.

    Parameters
    ----------
    before, after
        Sizes and repetitions of each run, as in `bootstrap_cache_fit`.
    level, resamples, seed
        As there.

    Raises
    ------
    ValueError
        As `bootstrap_cache_fit`, or if one of the runs shows no cliff.
    """
    sides = [bootstrap.measured_sizes(*side, MINIMUM_SIZES) for side in (before, after)]
    for name, (n, repetitions) in zip(("before", "after"), sides, strict=True):
        if not fit_cache(n.tolist(), bootstrap.medians(repetitions.T)).cliff:
            raise ValueError(f"no cliff {name}")
    (fit_before, fits_before), (fit_after, fits_after) = (
        _resampled_fits(n, repetitions, resamples, seed + index)
        for index, (n, repetitions) in enumerate(sides)
    )
    pairs = list(zip(fits_before, fits_after, strict=False))
    repeated = min(len(repetitions) for _, repetitions in sides)
    coverage, method = bootstrap.method(repeated, len(pairs), level)
    return SlotsShift(
        before=fit_before,
        after=fit_after,
        low=int(bootstrap.percentiles([b.slots - a.slots_high for a, b in pairs], coverage)[0]),
        high=int(bootstrap.percentiles([b.slots_high - a.slots for a, b in pairs], coverage)[1]),
        coverage=coverage,
        method=method,
    )


def crossing(sizes: Sequence[int], cost_ns: ArrayLike, level_ns: float) -> float | None:
    """Return the number of maps from which on the cost is at least a level for good.

    Between measured sizes the cost is taken as straight on log axes.

    Parameters
    ----------
    sizes, cost_ns
        As in `fit_cache`, one size or more.
    level_ns
        Level, ns, above 0.

    Returns
    -------
    float or None
        None if the cost at the largest size is below the level; the smallest size if no cost is.

    Raises
    ------
    ValueError
        For other sizes, costs or level.
    """
    n, (cost,) = bootstrap.sorted_sizes(sizes, np.asarray(cost_ns, dtype=np.float64)[np.newaxis], 1)
    _check_costs(n, cost)
    if not 0 < level_ns < np.inf:
        raise ValueError(f"level {level_ns} ns: must be above 0 and finite")
    return _within(_crossing(n, np.log(cost), np.log(level_ns)))


def bootstrap_crossing(
    sizes: Sequence[int],
    repetitions_ns: ArrayLike,
    level_repetitions_ns: ArrayLike,
    level: Level,
    *,
    resamples: int = 1000,
    seed: int = 0,
) -> CrossingInterval:
    """Find the crossing of medians, with a bootstrap interval as in `bootstrap_cache_fit`.

    Parameters
    ----------
    sizes, repetitions_ns, level, resamples, seed
        As in `bootstrap_cache_fit`, one size or more.
    level_repetitions_ns
        The level in the same repetitions, ns, shape (repetitions,); drawn with them.

    Raises
    ------
    ValueError
        As `crossing`, or if there are fewer than two repetitions, or not as many levels.
    """
    n, repetitions = bootstrap.measured_sizes(sizes, repetitions_ns, 1)
    levels = bootstrap.repeated(level_repetitions_ns)
    if levels.shape != (len(repetitions),):
        raise ValueError(f"levels of shape {levels.shape} for {len(repetitions)} repetitions")
    maps = crossing(n.tolist(), bootstrap.medians(repetitions.T), float(bootstrap.medians(levels)))
    drawn = bootstrap.resampled_medians(np.column_stack([repetitions, levels]), resamples, seed)
    found = [
        _crossing(n[~np.isnan(row[:-1])], row[:-1][~np.isnan(row[:-1])], row[-1])
        for row in _log(drawn)
        if not (np.isnan(row[-1]) or np.all(np.isnan(row[:-1])))
    ]
    coverage, method = bootstrap.method(len(repetitions), len(found), level)
    low, high = bootstrap.percentiles(found, coverage)
    return CrossingInterval(
        maps=maps,
        low=_within(low),
        high=_within(high),
        coverage=coverage,
        crossed_share=float(np.mean(np.isfinite(found))),
        method=method,
    )


def _resampled_fits(
    n: Floats, repetitions: Floats, resamples: int, seed: int
) -> tuple[CacheFit, list[CacheFit]]:
    """Return the fit to the medians, and those to the medians of resamples."""
    medians = bootstrap.medians(repetitions.T)
    fit = fit_cache(n.tolist(), medians)
    log_cost = _log(bootstrap.resampled_medians(repetitions, resamples, seed))
    log_cost = log_cost[np.sum(~np.isnan(log_cost), axis=1) >= MINIMUM_SIZES]
    profiles = _profiles(n, log_cost, np.log(medians))
    return fit, [_choose(n, row, profile) for row, profile in zip(log_cost, profiles, strict=True)]


def _missing(n: Floats, c: float | Floats) -> Floats:
    """Return the share of gets whose slot another map has taken."""
    return np.clip(2 * (n - c) / n, 0, 1)


def _profile(n: Floats, log_cost: Floats) -> Floats:
    """Fit at each c that makes a difference; shape (c, 3) as `_solve` returns it.

    These are the whole numbers up to the second largest size: with one size above it, any c fits.
    """
    missing = _missing(n, np.arange(1.0, n[-2] + 1)[:, np.newaxis])
    return _solve(np.broadcast_to(log_cost, missing.shape), missing, missing * n, np.zeros(2))


def _profiles(n: Floats, log_cost: Floats, log_center: Floats) -> Floats:
    """Fit many rows of costs, at each c that can be a row's best; shape (rows, c, 3).

    The root of the sum of squares is the distance of a row from what the model can be at a c. It
    cannot differ between two rows by more than their own distance, so that most c are ruled out
    by the fits to one row in the middle of all, `log_center`.
    """
    center = _profile(n, log_center)
    distance = np.sqrt(center[:, 2])
    shift = log_cost - log_center
    # A common factor is no distance: hit takes it up. A row that lacks a size is bound by nothing.
    reach = np.sqrt(np.sum((shift - shift.mean(axis=1, keepdims=True)) ** 2, axis=1))
    reach[np.isnan(reach)] = np.inf
    profiles = np.full((len(log_cost), *center.shape), np.inf)
    best = np.full(len(log_cost), np.inf)
    for index in np.argsort(distance):
        rows = np.flatnonzero(np.maximum(distance[index] - reach, 0) ** 2 <= best + _NEGLIGIBLE)
        missing = _missing(n, float(index + 1))
        profiles[rows, index] = _solve(log_cost[rows], missing, missing * n, center[index, :2])
        best[rows] = np.minimum(best[rows], profiles[rows, index, 2])
    return profiles


def _solve(log_cost: Floats, one: Floats, per_map: Floats, start: Floats) -> Floats:
    """Fit log(hit) + log(1 + alpha one + beta per_map) by least squares, alpha and beta >= 0.

    Gauss-Newton steps, each of which solves the linearised problem within the bounds exactly.
    They settle within a few, but for costs that no such model comes near.

    Parameters
    ----------
    log_cost
        Shape (rows, sizes); nan where there is none.
    one, per_map
        What alpha = a / hit and beta = b / hit are multiplied with; shape (sizes,) or as above.
    start
        Alpha and beta to start from.

    Returns
    -------
    numpy.ndarray
        Alpha, beta and the sum of squares, shape (rows, 3).
    """
    known = ~np.isnan(log_cost)
    y = np.where(known, log_cost, 0)
    weight = known / known.sum(axis=1, keepdims=True)

    def centered(values: Floats) -> Floats:
        """Take off the mean over the known sizes, which log(hit) takes up."""
        return np.where(known, values - np.sum(weight * values, axis=1, keepdims=True), 0)

    alpha, beta = np.full(len(y), start[0]), np.full(len(y), start[1])
    squares = np.full(len(y), np.inf)
    for _ in range(100):
        relative = 1 + alpha[:, np.newaxis] * one + beta[:, np.newaxis] * per_map
        residual = centered(y - np.log(relative))
        before, squares = squares, np.sum(residual**2, axis=1)
        if np.all(np.abs(before - squares) <= 1e-11 * squares + 1e-18):
            break
        by_one, by_map = centered(one / relative), centered(per_map / relative)
        aa = np.sum(by_one**2, axis=1)
        ab = np.sum(by_one * by_map, axis=1)
        bb = np.sum(by_map**2, axis=1)
        ga = aa * alpha + ab * beta + np.sum(by_one * residual, axis=1)
        gb = ab * alpha + bb * beta + np.sum(by_map * residual, axis=1)
        alpha, beta = _nonnegative(aa, ab, bb, ga, gb)
    return np.column_stack([alpha, beta, squares])


def _nonnegative(
    aa: Floats, ab: Floats, bb: Floats, ga: Floats, gb: Floats
) -> tuple[Floats, Floats]:
    """Minimise aa x x + 2 ab x y + bb y y - 2 (ga x + gb y) over x, y >= 0."""
    tiny = np.finfo(np.float64).tiny
    x_alone, y_alone = np.maximum(ga, 0) / (aa + tiny), np.maximum(gb, 0) / (bb + tiny)
    # Where the two do the same, as with one size above the cliff, y: a walk has no constant part.
    first = x_alone * ga > y_alone * gb * (1 + 1e-9)
    determinant = aa * bb - ab**2
    regular = determinant > 1e-12 * aa * bb
    x_free = (bb * ga - ab * gb) / np.where(regular, determinant, 1)
    y_free = (aa * gb - ab * ga) / np.where(regular, determinant, 1)
    free = regular & (x_free >= 0) & (y_free >= 0)
    return (
        np.where(free, x_free, np.where(first, x_alone, 0)),
        np.where(free, y_free, np.where(first, 0, y_alone)),
    )


def _choose(n: Floats, log_cost: Floats, profile: Floats) -> CacheFit:
    """Choose among the fits at each c, and the flat model."""
    known = ~np.isnan(log_cost)
    n, y = n[known], log_cost[known]
    flat_squares = float(np.sum((y - y.mean()) ** 2))
    equal = np.flatnonzero(profile[:, 2] <= profile[:, 2].min() + _NEGLIGIBLE)
    alpha, beta, squares = (float(value) for value in profile[equal[0]])
    gain = len(y) * np.log((flat_squares + _NEGLIGIBLE) / (squares + _NEGLIGIBLE))
    if gain - (1 + (alpha > 0) + (beta > 0)) * np.log(len(y)) > BIC_MARGIN:
        slots, slots_high = int(equal[0]) + 1, int(equal[-1]) + 1
        if slots_high == len(profile):
            slots_high = int(n[-1]) - 1
    else:
        slots = slots_high = int(n[-1])
        alpha, beta, squares = 0.0, 0.0, flat_squares
    relative = 1 + _missing(n, slots) * (alpha + beta * n)
    hit_ns = float(np.exp(np.mean(y - np.log(relative))))
    return CacheFit(
        slots=slots,
        slots_high=slots_high,
        hit_ns=hit_ns,
        a_ns=alpha * hit_ns,
        b_ns_per_map=beta * hit_ns,
        residual=(squares / len(y)) ** 0.5,
        n_points=len(y),
    )


def _crossing(n: Floats, log_cost: Floats, log_level: float) -> float:
    """Return where the cost reaches the level for good, infinity where it does not."""
    below = np.flatnonzero(log_cost < log_level)
    if not len(below):
        return float(n[0])
    last = below[-1]
    if last + 1 == len(n):
        return np.inf
    log_n = np.interp(log_level, log_cost[last : last + 2], np.log(n[last : last + 2]))
    return float(np.exp(log_n))


def _within(maps: float) -> float | None:
    return maps if np.isfinite(maps) else None


def _log(costs: Floats) -> Floats:
    """Return logarithms, nan where there is none."""
    return np.log(np.where(costs > 0, costs, np.nan))


def _check_costs(n: Floats, cost_ns: Floats) -> None:
    for size, cost in zip(n, cost_ns, strict=True):
        if not 0 < cost < np.inf:
            raise ValueError(f"cost {cost:g} ns at {size:g} maps: must be above 0 and finite")
