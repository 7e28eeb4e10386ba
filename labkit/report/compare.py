# SPDX-License-Identifier: MIT
"""Two or more runs of one experiment, row by row: what changed, and whether that is known.

The first run is the base. A row is better or worse only as `labkit.measuring.comparison` says:
a test over processes or boots, adjusted over the whole table, and more than the noise floor.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from labkit.errors import UsageError
from labkit.experiments import find, names
from labkit.measuring import comparison
from labkit.measuring.cache_fit import SlotsShift, bootstrap_slots_shift
from labkit.measuring.comparison import Difference, RatioInterval
from labkit.measuring.statistics import Level, median
from labkit.report import summary
from labkit.store.run import Run, case_name

KINDS = ("raw", "control", "net")
#: What of the environment a figure depends on, beside the kernel itself, as people call it.
ENVIRONMENT = {
    "cpu_model": "CPU",
    "architecture": "architecture",
    "cpus_online": "CPUs online",
    "smt_active": "SMT",
    "memory_mib": "memory, MiB",
    "hypervisor": "hypervisor",
    "emulated": "emulated",
    "clock_source": "clock source",
    "governors": "governor",
    "turbo": "turbo",
    "mitigations": "mitigations",
    "jit": "JIT",
    "lockdown": "lockdown",
    "hz": "HZ",
    "command_line": "command line",
    "config_sha256": "configuration",
    "bcc_version": "bcc",
    "labkit_commit": "labkit",
}


@dataclass(frozen=True)
class Row:
    """One case and metric, in the base and in one of the other runs.

    Attributes
    ----------
    labels, metric, unit, kind
        What was measured.
    target
        Which run is held against the base: its index, from 1.
    difference
        What the repetitions say; None where only one side has the row.
    level
        What was repeated: boot or process.
    verdict
        ``better``, ``worse``, ``~`` (no difference known), ``n too small (need N)``,
        ``no verdict`` (see `Comparison.refusals`), ``only before`` or ``only after``.
    before, after
        Repetitions, in the unit; empty where that side has none.
    """

    labels: Mapping[str, Any]
    metric: str
    unit: str
    kind: str
    target: int
    difference: Difference | None
    level: Level
    verdict: str
    before: tuple[float, ...]
    after: tuple[float, ...]

    @property
    def name(self) -> str:
        """Return the labels in a line."""
        return case_name(self.labels)

    @property
    def percent(self) -> float:
        """Return the change of the medians in percent; nan where there is none."""
        return 100 * (self.difference.ratio - 1) if self.difference else float("nan")


@dataclass(frozen=True)
class GeometricMean:
    """The geometric mean of a metric's ratios over all rows that both sides have."""

    metric: str
    unit: str
    kind: str
    target: int
    before: float
    after: float
    interval: RatioInterval
    rows: int

    @property
    def percent(self) -> float:
        """Return the change in percent."""
        return 100 * (self.after / self.before - 1)


@dataclass(frozen=True)
class Comparison:
    """What a table of runs of one experiment says.

    Attributes
    ----------
    runs
        The base first.
    rows, means
        In the order of the base's cases, run by run.
    environment
        For each other run, what differs from the base: name, there and here.
    refusals
        For each other run, why there is no verdict; empty where there is one.
    marks
        For each other run, what a reader has to know: not interleaved, partial.
    shifts
        For each other run, how far the fitted cache moved; None where that cannot be told.
    """

    runs: tuple[Run, ...]
    rows: tuple[Row, ...]
    means: tuple[GeometricMean, ...]
    environment: tuple[tuple[tuple[str, str, str], ...], ...]
    refusals: tuple[tuple[str, ...], ...]
    marks: tuple[tuple[str, ...], ...]
    shifts: tuple[SlotsShift | None, ...]

    @property
    def worse(self) -> bool:
        """Return whether any row is worse."""
        return any(row.verdict == "worse" for row in self.rows)

    @property
    def tested(self) -> int:
        """Return how many rows the adjustment is over."""
        return sum(row.difference is not None and row.difference.p is not None for row in self.rows)


def compare(runs: Sequence[Run], metrics: Sequence[str] = (), kind: str = "raw") -> Comparison:
    """Compare runs of one experiment with the first of them.

    Parameters
    ----------
    runs
        Two or more.
    metrics
        Which to compare, ``all`` for every one; by default all but rates counted in the
        windows of another one: they follow from times, and would only weigh on the adjustment.
    kind
        raw, control or net.

    Raises
    ------
    UsageError
        For fewer than two runs, runs of different experiments, an unknown metric or kind, or
        runs that have no row in common or nothing in them.
    """
    base, *others = _checked(runs, kind)
    chosen = _metrics(base, others, metrics)
    tables = [_repetitions(run, chosen, kind) for run in runs]
    levels = [summary.level(run) for run in runs]
    refusals = [_refusals(base, other) for other in others]
    rows = []
    for target, table in enumerate(tables[1:], 1):
        keys = dict.fromkeys([*tables[0], *table])
        if not set(tables[0]) & set(table):
            raise UsageError(f"{base.id} and {runs[target].id} have no row in common ({kind})")
        rows += [(target, key, tables[0].get(key, ()), table.get(key, ())) for key in keys]
    pairs = [(before, after) for _, _, before, after in rows if before and after]
    differences = iter(comparison.compare(pairs))
    made = tuple(
        _row(
            key,
            target,
            next(differences) if before and after else None,
            levels[target],
            before,
            after,
            bool(refusals[target - 1]),
        )
        for target, key, before, after in rows
    )
    return Comparison(
        runs=tuple(runs),
        rows=made,
        means=tuple(_means(made)),
        environment=tuple(tuple(_environment(base, other)) for other in others),
        refusals=tuple(refusals),
        marks=tuple(tuple(_marks(base, other)) for other in others),
        shifts=tuple(_shift(base, other) for other in others),
    )


def higher_is_better(unit: str) -> bool:
    """Return whether more of a unit is better: of a rate it is, of time and memory it is not."""
    return unit.endswith("/s")


_Key = tuple[tuple[tuple[str, Any], ...], str, str, str]


def _checked(runs: Sequence[Run], kind: str) -> Sequence[Run]:
    if len(runs) < 2:
        raise UsageError("compare takes two runs or more, the base first")
    if kind not in KINDS:
        raise UsageError(f"kind: {kind!r} is not accepted; it takes one of {', '.join(KINDS)}")
    for run in runs:
        if run.experiment != runs[0].experiment:
            raise UsageError(
                f"{runs[0].id} is of {runs[0].experiment}, {run.id} of {run.experiment}: "
                "only runs of one experiment can be compared"
            )
        if not run.has_values:
            raise UsageError(f"{run.id} holds nothing that was measured: {run.why}")
    return runs


def _metrics(base: Run, others: Sequence[Run], wanted: Sequence[str]) -> list[str]:
    shared = [
        metric["name"]
        for metric in base.metrics
        if all(metric["name"] in [one["name"] for one in other.metrics] for other in others)
    ]
    if not shared:
        raise UsageError(f"{', '.join(run.id for run in (base, *others))}: no metric in common")
    if "all" in wanted:
        return shared
    for name in wanted:
        if name not in shared:
            raise UsageError(f"metric {name!r} is not in all runs; those are: {', '.join(shared)}")
    counted = {one["name"] for one in base.metrics if one["count"] and one["unit"].endswith("/s")}
    return list(wanted) or [name for name in shared if name not in counted] or shared[:1]


def _repetitions(run: Run, metrics: Sequence[str], kind: str) -> dict[_Key, tuple[float, ...]]:
    """Return the repetitions of each row; the rounds of one process are one repetition."""
    found = summary.repetitions(run)
    found = found[found["metric"].isin(metrics) & (found["kind"] == kind)]
    order = {frozenset(line["labels"].items()): line["case"] for line in run.of_kind("case")}
    table: dict[_Key, list[float]] = {}
    within = summary.level(run) == "round"
    for row in found.to_dict("records"):
        held = tuple(
            (name, row[name] if isinstance(row[name], str) else int(row[name]))
            for name in run.labels
            if not pd.isna(row[name])
        )
        table.setdefault((held, row["metric"], row["unit"], kind), []).append(row["value"])
    metric_order = {name: index for index, name in enumerate(metrics)}
    return {
        key: (median(table[key]),) if within else tuple(table[key])
        for key in sorted(table, key=lambda key: (metric_order[key[1]], order[frozenset(key[0])]))
    }


def _row(
    key: _Key,
    target: int,
    difference: Difference | None,
    level: Level,
    before: tuple[float, ...],
    after: tuple[float, ...],
    refused: bool,
) -> Row:
    labels, metric, unit, kind = key
    if difference is None:
        verdict = "only before" if before else "only after"
    elif refused:
        verdict = "no verdict"
    elif difference.needed:
        verdict = f"n too small (need {difference.needed})"
    elif not difference.differs:
        verdict = "~"
    else:
        rose = difference.after > difference.before
        verdict = "better" if rose == higher_is_better(unit) else "worse"
    return Row(
        labels=dict(labels),
        metric=metric,
        unit=unit,
        kind=kind,
        target=target,
        difference=difference,
        level="process" if level == "round" else level,
        verdict=verdict,
        before=before,
        after=after,
    )


def _means(rows: Sequence[Row]) -> Iterator[GeometricMean]:
    groups: dict[tuple[int, str], list[Row]] = {}
    for row in rows:
        if row.difference and row.difference.ratio > 0:
            groups.setdefault((row.target, row.metric), []).append(row)
    for (target, metric), group in groups.items():
        medians = [(row.difference.before, row.difference.after) for row in group if row.difference]
        before, after = (comparison.geometric_mean(side) for side in zip(*medians, strict=True))
        yield GeometricMean(
            metric=metric,
            unit=group[0].unit,
            kind=group[0].kind,
            target=target,
            before=before,
            after=after,
            interval=_mean_interval(group),
            rows=len(group),
        )


def _mean_interval(rows: Sequence[Row]) -> RatioInterval:
    """Resample whole repetitions; where rows lack some, there is no interval."""
    if len({(len(row.before), len(row.after)) for row in rows}) > 1:
        return RatioInterval(0.0, float("inf"), None)
    before, after = ([getattr(row, side) for row in rows] for side in ("before", "after"))
    return comparison.geometric_mean_interval(np.transpose(before), np.transpose(after))


def _environment(base: Run, other: Run) -> Iterator[tuple[str, str, str]]:
    there, here = base.environment, other.environment
    if not there or not here:
        return
    for key, name in ENVIRONMENT.items():
        before, after = there.get(key), here.get(key)
        if before == after or (key == "memory_mib" and _about(before, after)):
            continue
        if isinstance(before, Mapping) and isinstance(after, Mapping):
            for part in sorted({*before, *after}):
                if before.get(part) != after.get(part):
                    yield f"{name}, {part}", _said(before.get(part)), _said(after.get(part))
        else:
            yield name, _said(before), _said(after)
    for name in sorted({*base.parameters, *other.parameters}):
        if base.parameters.get(name) != other.parameters.get(name):
            yield (
                f"parameter {name}",
                _said(base.parameters.get(name)),
                _said(other.parameters.get(name)),
            )


def _about(before: Any, after: Any) -> bool:
    """Return whether two sizes of memory are about the same: a kernel takes some for itself."""
    return bool(before and after and abs(before / after - 1) < 0.02)


def _said(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if value is None:
        return "not known"
    text = " ".join(map(str, value)) if isinstance(value, list) else str(value)
    return text if len(text) <= 60 else f"{text[:56]} ..."


def _refusals(base: Run, other: Run) -> tuple[str, ...]:
    found = []
    before, after = base.start.get("harness"), other.start.get("harness")
    if before != after:
        found.append(f"another harness: {before} / {after}")
    codes = [run.start.get("code_sha256") for run in (base, other)]
    if all(codes) and codes[0] != codes[1]:
        short = " / ".join(str(code)[:12] for code in codes)
        found.append(f"the experiment's code changed: {short}")
    emulated = [
        which
        for which, run in (("before", base), ("after", other))
        if run.environment.get("emulated")
    ]
    if emulated:
        found.append(f"emulated: {', '.join(emulated)}")
    return tuple(found)


def _marks(base: Run, other: Run) -> Iterator[str]:
    turns = base.header.get("turns")
    if not turns or turns != other.header.get("turns"):
        yield "not interleaved"
    for which, run in (("before", base), ("after", other)):
        if run.status != "complete":
            yield f"{which} is {run.status}: {run.why}"
        if run.unreadable_lines:
            yield f"{which}: {run.unreadable_lines} unreadable lines of its journal left out"
    levels = [summary.level(run) for run in (base, other)]
    if levels[0] != levels[1]:
        yield f"repeated at different levels: {levels[0]} / {levels[1]}"


def _shift(base: Run, other: Run) -> SlotsShift | None:
    cliff = find(base.experiment).cliff if base.experiment in names() else None
    if cliff is None:
        return None
    sides = []
    for run in (base, other):
        sizes, values = summary.matrix(
            summary.repetitions(run), {"variant": cliff.variant}, cliff.x, "net", cliff.metric
        )
        sides.append((sizes, values))
    try:
        return bootstrap_slots_shift(sides[0], sides[1], summary.level(other))
    except ValueError:
        return None
