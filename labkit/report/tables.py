# SPDX-License-Identifier: MIT
"""The table of a run that people paste into a mail: plain text, at most 72 columns."""

import math
import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any

import pandas as pd

from labkit.experiments import find, names
from labkit.measuring.statistics import MINIMUM_REPETITIONS
from labkit.report import growth
from labkit.report.findings import findings
from labkit.report.summary import summary
from labkit.store.run import Run, case_name

WIDTH = 72


def text(run: Run) -> str:
    """Return the table: what was measured, where, how often; the figures; what they come to."""
    blocks = [list(_head(run))]
    if run.has_values:
        found = summary(run)
        blocks[0] += _repetition(run, found)
        blocks += _blocks(run, found)
    blocks.append([f"{name}  unavailable: {why}" for name, why in run.unavailable.items()])
    said = findings(run)
    blocks.append([*(said.sentences() if said else []), *growth.sentences(run)])
    blocks.append([f"note: {warning}" for warning in run.warnings])
    lines = [line for block in blocks if block for line in [*block, ""]]
    return "\n".join(part for line in lines[:-1] for part in wrapped(line)) + "\n"


def wrapped(line: str) -> list[str]:
    """Return a line in parts of at most 72 columns."""
    if len(line) <= WIDTH:
        return [line]
    return textwrap.wrap(line, WIDTH, subsequent_indent="    ", break_on_hyphens=False)


def _head(run: Run) -> Iterator[str]:
    yield f"{run.experiment}: {run.header.get('series') or question(run.experiment)}"
    if run.status != "complete":
        yield f"{run.status.upper()}: {run.why}"
    yield from _command(f"$ {run.header['command']}")
    yield from environment(run.environment) if run.environment else ()


def question(experiment: str) -> str:
    """Return what an experiment asks; that of an imported run need not be one of ours."""
    return find(experiment).question if experiment in names() else "figures as printed"


def _command(command: str) -> Iterator[str]:
    """Yield a command in lines that a shell takes as one."""
    line = ""
    for word in re.findall(r"(?:'[^']*'|\S)+", command):
        if line and len(line) + len(word) + 3 > WIDTH:
            yield f"{line} \\"
            line = "   "
        line += f" {word}" if line else word
    # A list of many numbers, in quotes: there a line may end at any space.
    yield from wrapped(line)


def environment(found: Mapping[str, Any]) -> Iterator[str]:
    """Yield short lines that say on what was measured, as far as it is known."""
    kernel = [found.get("kernel_release") or "not known", found.get("architecture")]
    cpus, hypervisor = found.get("cpus_online"), found.get("hypervisor")
    yield _listed(
        " ".join(["kernel", *filter(None, kernel)]),
        f"{cpus} CPUs" if cpus else "",
        found.get("cpu_model") or "",
        f"{hypervisor} guest" if hypervisor and hypervisor != "none" else "",
    )
    details = {
        "HZ": found.get("hz"),
        "clock": found.get("clock_source"),
        "governor": ",".join(found.get("governors") or ()),
        "lockdown": found.get("lockdown"),
        "bcc": found.get("bcc_version"),
        "labkit": found.get("labkit_commit") or found.get("labkit_version"),
    }
    if any(details.values()):
        yield _listed(*(f"{name} {value}" for name, value in details.items() if value))
    mitigations = found.get("mitigations") or {}
    for word, said in (("Mitigation", "mitigated"), ("Vulnerable", "vulnerable")):
        names = [name for name, state in mitigations.items() if state.startswith(word)]
        if names:
            yield f"{said}: {', '.join(names)}"


def _listed(*words: str) -> str:
    return ", ".join(filter(None, words))


def _repetition(run: Run, found: pd.DataFrame) -> Iterator[str]:
    if run.of_kind("figure"):
        yield f"figures of {run.start['harness']}" + (
            ": mean \N{PLUS-MINUS SIGN} standard deviation within one process"
            if found["n"].max() == 1
            else f", n = {_range(found['n'])} times"
        )
        return
    frame = run.frame
    rounds = [line["rounds"] for line in run.of_kind("stop")]
    seeds = dict.fromkeys(str(line["seed"]) for line in run.of_kind("start"))
    steal = frame["steal_ns"].sum() / frame["elapsed_ns"].sum()
    yield _listed(
        f"{_range(rounds)} rounds a process" if rounds else "",
        run.why if run.status == "complete" else "",
        f"steal {100 * steal:.2g} %" if steal else "",
        f"seed {' '.join(seeds)}",
    )
    what = repeated(found)
    coverage, some = found["coverage"].min(), bool(found["coverage"].isna().any())
    if math.isnan(coverage):
        yield f"{what}: too few for an interval, so min..max"
    else:
        yield (
            f"{what}; median \N{PLUS-MINUS SIGN} larger side of its {100 * coverage:.1f} % interval"
            + f", min..max where n < {MINIMUM_REPETITIONS}" * some
        )


def repeated(found: pd.DataFrame) -> str:
    """Return what estimates are made of: how many, and of what."""
    level = found["level"].iloc[0]
    many = {"process": "processes", "boot": "boots", "round": "rounds"}[level]
    many = level if found["n"].max() == 1 else many
    within = " within one process" if level == "round" else ""
    return f"n = {_range(found['n'])} {many}{within}"


def _range(values: Iterable[int]) -> str:
    low, high = min(values), max(values)
    return f"{low}" if low == high else f"{low} to {high}"


def _blocks(run: Run, found: pd.DataFrame) -> Iterator[list[str]]:
    """Yield blocks of raw, control and net for each time, then blocks of rates by unit."""
    for metric in run.metrics:
        if metric["unit"].startswith("ns"):
            rows = found[found["metric"] == metric["name"]]
            kinds = {kind: rows[rows["kind"] == kind] for kind in ("raw", "control", "net")}
            held = {kind: part for kind, part in kinds.items() if not part.empty}
            yield from _block(run, f"{metric['title']}, {metric['unit']}", held)
    if not run.of_kind("figure"):
        yield ["ns from a loop is a reciprocal throughput: how often, not how soon"]
    raw = found[found["kind"] == "raw"]
    rates = [metric for metric in run.metrics if not metric["unit"].startswith("ns")]
    for unit, group in groupby(rates, key=itemgetter("unit")):
        columns = {one["title"]: raw[raw["metric"] == one["name"]] for one in group}
        yield from _block(run, f"rate, {unit}" if "/s" in unit else unit, columns)


def _block(run: Run, title: str, columns: Mapping[str, pd.DataFrame]) -> Iterator[list[str]]:
    """Yield a block of lines, and further ones with the columns that have no room beside."""
    cells = {name: dict(_cells(run, rows)) for name, rows in columns.items()}
    labels = list(dict.fromkeys(label for column in cells.values() for label in column))
    first = max(map(len, [title, *labels]))
    block = [f"{line:<{first}}" for line in [title, *labels]]
    for name, column in cells.items():
        added = [name, *(column.get(label, "-") for label in labels)]
        width = max(map(len, added)) + 2
        if len(block[0]) > first and len(block[0]) + width > WIDTH:
            yield block
            block = [f"{line:<{first}}" for line in [title, *labels]]
        block = [f"{line}{cell:>{width}}" for line, cell in zip(block, added, strict=True)]
    yield block


def _cells(run: Run, rows: pd.DataFrame) -> Iterator[tuple[str, str]]:
    for row in rows.to_dict("records"):
        yield row_label({name: row[name] for name in run.labels}), cell(row)


def row_label(labels: Mapping[str, Any]) -> str:
    """Return the name of the case that has these labels; a frame's missing ones do not count."""
    return case_name({name: value for name, value in labels.items() if not pd.isna(value)})


def cell(row: Mapping[Any, Any]) -> str:
    """Return an estimate as people write it: as many digits as its interval bears."""
    half = max(row["high"] - row["median"], row["median"] - row["low"])
    if row["n"] == 1:
        return _alone(row["median"], row["deviation"])
    digits = _decimals(row["median"], half)
    if row["n"] == 1:
        return f"{row['median']:.{digits}f}"
    if math.isnan(row["coverage"]):
        return f"{row['low']:.{digits}f}..{row['high']:.{digits}f}"
    return f"{row['median']:.{digits}f} \N{PLUS-MINUS SIGN} {half:.{digits}f}"


def _alone(value: float, deviation: float) -> str:
    """Return a single figure, with the standard deviation that it came with."""
    digits = _decimals(value, 0 if math.isnan(deviation) else deviation)
    shown = "" if math.isnan(deviation) else f" \N{PLUS-MINUS SIGN} {deviation:.{digits}f}"
    return f"{value:.{digits}f}{shown}"


def _decimals(value: float, half: float) -> int:
    """Return decimals that show two digits of the half width, and three of the value."""
    smallest = [abs(one) for one in (half * 10, value) if one]
    if not smallest:
        return 0
    return min(max(2 - math.floor(math.log10(min(smallest))), 0), 7)


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
