# SPDX-License-Identifier: MIT
"""The table of a run that people paste into a mail: plain text, at most 72 columns."""

import math
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pandas as pd

from labkit.experiments import find
from labkit.report.findings import Findings, findings
from labkit.report.summary import summary
from labkit.store.run import Run

WIDTH = 72
_LABEL = 23
_COLUMNS = 3


def text(run: Run) -> str:
    """Return the table: what was measured, where, how often; the figures; what they come to."""
    blocks = [list(_head(run))]
    if run.of_kind("sample"):
        found = summary(run)
        blocks[0].append(_repetition(found))
        blocks += [*_blocks(run, found)]
    blocks.append([f"{name:<{_LABEL}} unavailable: {why}" for name, why in run.unavailable.items()])
    if run.of_kind("sample"):
        blocks.append(_said(findings(run)))
    blocks.append([f"note: {warning}" for warning in run.warnings])
    lines = [line for block in blocks if block for line in [*block, ""]]
    return "\n".join(wrapped for line in lines[:-1] for wrapped in _wrapped(line)) + "\n"


def _wrapped(line: str) -> list[str]:
    if len(line) <= WIDTH:
        return [line]
    return textwrap.wrap(line, WIDTH, subsequent_indent="    ", break_on_hyphens=False)


def _head(run: Run) -> Iterator[str]:
    yield f"{run.experiment}: {find(run.experiment).question}"
    yield f"$ {run.header['command']}"
    yield from environment(run.environment)
    if run.status != "complete":
        yield f"{run.status.upper()}: {run.why}"


def environment(found: Mapping[str, Any]) -> Iterator[str]:
    """Yield short lines that say on what was measured."""
    cpus = f"{found.get('cpus_online') or '?'} CPUs {found.get('cpu_model') or ''}".strip()
    hypervisor = found.get("hypervisor")
    where = f", {hypervisor} guest" if hypervisor and hypervisor != "none" else ""
    yield (f"kernel {found.get('kernel_release')} {found.get('architecture') or ''}, {cpus}{where}")
    details = {
        "HZ": found.get("hz"),
        "clock": found.get("clock_source"),
        "governor": ",".join(found.get("governors") or ()),
        "lockdown": found.get("lockdown"),
        "bcc": found.get("bcc_version"),
        "labkit": found.get("labkit_commit") or found.get("labkit_version"),
    }
    yield ", ".join(f"{name} {value}" for name, value in details.items() if value)
    mitigations = found.get("mitigations") or {}
    for word, said in (("Mitigation", "mitigated"), ("Vulnerable", "vulnerable")):
        names = [name for name, state in mitigations.items() if state.startswith(word)]
        if names:
            yield f"{said}: {', '.join(names)}"


def _repetition(found: pd.DataFrame) -> str:
    level, n = found["level"].iloc[0], sorted(set(found["n"]))
    times = f"{n[0]}" if len(n) == 1 else f"{n[0]} to {n[-1]}"
    many = {"process": "processes", "boot": "boots", "round": "rounds"}[level]
    within = " within one process" if level == "round" else ""
    coverage = found["coverage"].min()
    if math.isnan(coverage):
        return f"n = {times} {many}{within}: too few for an interval, range only (min..max)"
    return (
        f"n = {times} {many}{within}; median \N{PLUS-MINUS SIGN} half width of its "
        f"{100 * coverage:.1f} % interval"
    )


def _blocks(run: Run, found: pd.DataFrame) -> Iterator[list[str]]:
    """Yield a block of raw, control and net for each time, then one of rates."""
    for metric in run.metrics:
        if metric["unit"].startswith("ns"):
            rows = found[found["metric"] == metric["name"]]
            columns = {kind: rows[rows["kind"] == kind] for kind in ("raw", "control", "net")}
            yield list(_block(run, f"{metric['title']}, {metric['unit']}", columns))
            yield ["ns from a loop is a reciprocal throughput: how often, not how soon"]
    rates = [metric for metric in run.metrics if not metric["unit"].startswith("ns")]
    for start in range(0, len(rates), _COLUMNS):
        group = rates[start : start + _COLUMNS]
        raw = found[found["kind"] == "raw"]
        columns = {metric["title"]: raw[raw["metric"] == metric["name"]] for metric in group}
        yield list(_block(run, f"rate, {group[0]['unit']}", columns))


def _block(run: Run, title: str, columns: Mapping[str, pd.DataFrame]) -> Iterator[str]:
    width = (WIDTH - _LABEL) // len(columns)
    yield f"{title:<{_LABEL}}" + "".join(f"{name:>{width}}" for name in columns)
    by_row = [dict(_cells(run, rows)) for rows in columns.values()]
    for label in by_row[0]:
        cells = "".join(f"{cells.get(label, '-'):>{width}}" for cells in by_row)
        yield f"{label:<{_LABEL}}{cells}"


def _cells(run: Run, rows: pd.DataFrame) -> Iterator[tuple[str, str]]:
    for row in rows.to_dict("records"):
        yield row_label({name: row[name] for name in run.labels}), cell(row)


def row_label(labels: Mapping[str, Any]) -> str:
    """Return a case's labels in a line: texts as they are, numbers with what they count."""
    present = {name: value for name, value in labels.items() if not pd.isna(value)}
    return " ".join(
        value if isinstance(value, str) else f"{value} {name.removesuffix('s' * (value == 1))}"
        for name, value in present.items()
    )


def cell(row: Mapping[Any, Any]) -> str:
    """Return an estimate as people write it: as many digits as its interval bears."""
    half = max(row["high"] - row["median"], row["median"] - row["low"])
    digits = _decimals(row["median"], half)
    if math.isnan(row["coverage"]):
        return f"{row['low']:.{digits}f}..{row['high']:.{digits}f}"
    return f"{row['median']:.{digits}f} \N{PLUS-MINUS SIGN} {half:.{digits}f}"


def _decimals(value: float, half: float) -> int:
    """Return decimals that show two digits of the half width, and three of the value."""
    smallest = [abs(one) for one in (half * 10, value) if one]
    if not smallest:
        return 0
    return min(max(2 - math.floor(math.log10(min(smallest))), 0), 7)


def _said(found: Findings | None) -> list[str]:
    return found.sentences() if found else []


def html(run: Run) -> str:
    """Return the estimates as an HTML table, with mean and sample standard deviation beside."""
    rows: list[Sequence[str]] = []
    for row in summary(run).to_dict("records"):
        label = row_label({name: row[name] for name in run.labels})
        numbers = [f"{row[name]:.4g}" for name in ("median", "low", "high", "mean", "deviation")]
        rows.append((label, row["metric"], row["kind"], *numbers, row["unit"], str(row["n"])))
    columns = ("case", "metric", "kind", "median", "low", "high", "mean", "deviation", "unit", "n")
    table: str = pd.DataFrame(rows, columns=list(columns)).to_html(index=False, border=0)
    return table
