# SPDX-License-Identifier: MIT
"""What a run comes to: the cache's slots, and where another way becomes no dearer."""

from dataclasses import dataclass
from functools import lru_cache

from labkit.experiments import find, names
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
    """From which size on the cost is at least that of `variant` with so many `size`.

    `interval` is None where it cannot be told, `why_not` says why then.
    """

    variant: str
    label: str
    size: int
    interval: CrossingInterval | None
    why_not: str = ""


@dataclass(frozen=True)
class Findings:
    """The fitted cache and the crossings of one run, or why there are none.

    `sizes` are those of the fitted series, ascending.
    """

    cliff: Cliff
    sizes: tuple[int, ...]
    cache: CacheFitInterval | None
    crossings: tuple[Crossing, ...]
    why_not: str = ""

    def sentences(self) -> list[str]:
        """Return the findings in plain words, with units, each short enough for a mail."""
        said = [self.why_not] if self.why_not else []
        if self.cache is not None:
            said += self._of_cache(self.cache)
        said += [self._of_crossing(one) for one in self.crossings]
        methods = [one.interval.method for one in self.crossings if one.interval]
        if self.cache is not None:
            methods.insert(0, self.cache.method)
        return said + [f"(in brackets: {method})" for method in methods[:1]]

    def __str__(self) -> str:
        return "\n".join(self.sentences())

    def _of_cache(self, found: CacheFitInterval) -> list[str]:
        fit, what = found.fit, self.cliff.operation
        if not fit.cliff:
            return [
                f"no cliff from {self.sizes[0]} to {self.sizes[-1]} {self.cliff.x}: {what} costs "
                f"{fit.hit_ns:.1f} ns {_between(found.hit_ns, '.1f')}"
            ]
        share = (
            f", in {100 * found.cliff_share:.0f} % of resamples" if found.cliff_share < 1 else ""
        )
        return [
            f"fitted cache of {self.cliff.variant}: {fit.slots} slots "
            f"{_between(found.slots, 'd')}{share}",
            f"{what} that hits costs {fit.hit_ns:.1f} ns {_between(found.hit_ns, '.1f')},",
            f"one that misses among n {self.cliff.x} costs a + b n ns more,",
            f"a = {fit.a_ns:.1f} {_between(found.a_ns, '.1f')}, "
            f"b = {fit.b_ns_per_map:.2f} {_between(found.b_ns_per_map, '.2f')}; "
            f"root mean square misfit {100 * fit.residual:.0f} %",
        ]

    def _of_crossing(self, found: Crossing) -> str:
        what, x = f"{found.variant} {found.size} {found.label}", self.cliff.x
        interval = found.interval
        if interval is None:
            return f"{what}: no crossing, {found.why_not}"
        if interval.maps is None:
            return f"{what} is slower up to {self.sizes[-1]} {x}, the most measured"
        if interval.maps <= self.sizes[0]:
            return f"{what} is no slower at any number of {x} measured"
        low, high = (
            f"over {self.sizes[-1]}" if end is None else f"{end:.3g}"
            for end in (interval.low, interval.high)
        )
        return f"{what} is no slower from {interval.maps:.3g} {x} on ({low}..{high})"


@lru_cache(maxsize=4)
def findings(run: Run) -> Findings | None:
    """Fit what the run's experiment is about; None where it is about no cache.

    What cannot be fitted (too few sizes or repetitions, a net cost that is not positive) is said
    in ``why_not``, never raised: the rest of the report stands without it.
    """
    cliff = find(run.experiment).cliff if run.experiment in names() else None
    if cliff is None or run.of_kind("figure"):
        return None
    if not run.samples:
        return Findings(cliff, (), None, (), "no fit: nothing was measured")
    values = summary.repetitions(run)
    sizes, costs_ns = summary.matrix(
        values, {"variant": cliff.variant}, cliff.x, "net", cliff.metric
    )
    if not sizes:
        return Findings(cliff, (), None, (), f"no fit: {cliff.variant} was not measured")
    if len(costs_ns) == 1:
        return Findings(cliff, tuple(sizes), None, (), "no fit: there is one repetition only")
    repeated = summary.level(run)
    try:
        cache, why_not = bootstrap_cache_fit(sizes, costs_ns, repeated), ""
    except ValueError as error:
        cache, why_not = None, f"no fit of a cache: {error}"
    crossings = []
    for variant, label in cliff.against.items():
        lines, levels_ns = summary.matrix(values, {"variant": variant}, label, "net", cliff.metric)
        for size, level_ns in zip(lines, levels_ns.T, strict=True):
            try:
                crossed = bootstrap_crossing(sizes, costs_ns, level_ns, repeated)
                crossings.append(Crossing(variant, label, size, crossed))
            except ValueError as error:
                crossings.append(Crossing(variant, label, size, None, str(error)))
    return Findings(cliff, tuple(sizes), cache, tuple(crossings), why_not)


def _between(ends: tuple[float, float], form: str) -> str:
    return f"({ends[0]:{form}}..{ends[1]:{form}})"
