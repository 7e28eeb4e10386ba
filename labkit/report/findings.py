# SPDX-License-Identifier: MIT
"""What a run comes to: the cache's slots, and where another way becomes no dearer."""

from dataclasses import dataclass
from functools import lru_cache

from labkit.experiments import find
from labkit.experiments._experiment import Cliff
from labkit.measuring.cache_fit import (
    CacheFitInterval,
    CrossingInterval,
    bootstrap_cache_fit,
    bootstrap_crossing,
)
from labkit.report import summary
from labkit.store.run import Run


@dataclass(frozen=True)
class Crossing:
    """From how many maps on the cost is at least that of `variant` with so many `size`."""

    variant: str
    label: str
    size: int
    interval: CrossingInterval


@dataclass(frozen=True)
class Findings:
    """The fitted cache and the crossings of one run, or why there are none."""

    cliff: Cliff
    cache: CacheFitInterval | None
    crossings: tuple[Crossing, ...]
    why_not: str = ""

    def sentences(self) -> list[str]:
        """Return the findings in plain words, with units."""
        said = [self.why_not] if self.why_not else []
        if self.cache is not None:
            said += [_cache_sentence(self.cache, self.cliff), f"({self.cache.method})"]
        said += [_crossing_sentence(one, self.cliff) for one in self.crossings]
        return said


@lru_cache(maxsize=4)
def findings(run: Run) -> Findings | None:
    """Fit what the run's experiment is about; None where it is about no cache.

    What cannot be fitted (too few sizes or repetitions, a net cost that is not positive) is said
    in ``why_not``, never raised: the rest of the report stands without it.
    """
    cliff = find(run.experiment).cliff
    if cliff is None:
        return None
    values = summary.repetitions(run)
    sizes, costs_ns = summary.matrix(
        values, {"variant": cliff.variant}, cliff.x, "net", cliff.metric
    )
    if not sizes:
        return Findings(cliff, None, (), f"no fit: {cliff.variant} was not measured")
    repeated = summary.level(run)
    try:
        cache = bootstrap_cache_fit(sizes, costs_ns, repeated)
    except ValueError as error:
        return Findings(cliff, None, (), f"no fit of a cache: {error}")
    crossings = []
    for variant, label in cliff.against.items():
        lines, levels_ns = summary.matrix(values, {"variant": variant}, label, "net", cliff.metric)
        for index, size in enumerate(lines):
            try:
                interval = bootstrap_crossing(sizes, costs_ns, levels_ns[:, index], repeated)
            except ValueError:
                continue
            crossings.append(Crossing(variant, label, size, interval))
    return Findings(cliff, cache, tuple(crossings))


def _cache_sentence(found: CacheFitInterval, cliff: Cliff) -> str:
    fit = found.fit
    if not fit.cliff:
        return f"no cliff up to {fit.slots} {cliff.x}: a get costs {fit.hit_ns:.1f} ns"
    low, high = found.slots
    between = f"{low}..{high}" if low != high else f"{low}"
    return (
        f"cache of {fit.slots} slots (interval {between}): a hit costs {fit.hit_ns:.1f} ns "
        f"({found.hit_ns[0]:.1f}..{found.hit_ns[1]:.1f}), a miss {fit.a_ns:.1f} + "
        f"{fit.b_ns_per_map:.2f} n ns more ({found.b_ns_per_map[0]:.2f}.."
        f"{found.b_ns_per_map[1]:.2f} per map)"
    )


def _crossing_sentence(found: Crossing, cliff: Cliff) -> str:
    interval = found.interval
    what = f"a {found.variant} of {found.size:,} {found.label} is no slower"
    if interval.maps is None:
        return f"{what} nowhere within the sizes measured"
    low, high = (_ends(end) for end in (interval.low, interval.high))
    return f"{what} from {interval.maps:.3g} {cliff.x} on (interval {low}..{high})"


def _ends(value: float | None) -> str:
    return "beyond" if value is None else f"{value:.3g}"
