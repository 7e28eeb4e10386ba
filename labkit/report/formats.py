# SPDX-License-Identifier: MIT
"""A comparison as text: for a mail, as Markdown, CSV, JSON, or Go benchmark lines.

JSON, schema 1: an object with

==========  ======================================================================================
schema      1
experiment  its name
runs        for each run, the base first: id, status, harness, code_sha256, environment
targets     for each other run: id, interleaved, marks, refusals (why it has no verdict),
            environment (name, before, after), slots (shift, low, high, coverage) or null
rows        for each row: target (index into runs), labels, metric, unit, kind, n_before, n_after,
            level, before, after (medians, null where that side lacks the row), percent (change),
            low_percent, high_percent, coverage (of the interval; null: only a range), p,
            p_adjusted, noise_floor (in the unit), verdict
means       geometric means: target, metric, unit, kind, rows, before, after, percent,
            low_percent, high_percent, coverage
holm_rows   how many rows the adjustment is over
==========  ======================================================================================

Numbers that are not known are null.
"""

import csv
import io
import json
import math
import re
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from labkit.measuring.comparison import RatioInterval
from labkit.report.compare import Comparison, GeometricMean, Row, higher_is_better
from labkit.report.tables import WIDTH, environment, question, wrapped
from labkit.store.run import Run

PLURAL = {"boot": "boots", "process": "processes"}


def text(found: Comparison) -> str:
    """Return the table for a mail: at most 72 columns, ASCII but for the plus-minus sign."""
    base, *others = found.runs
    lines = [f"{base.experiment}: {question(base.experiment)}"]
    lines.append("$ ./lab compare " + " ".join(run.id for run in found.runs))
    for target, other in enumerate(others, 1):
        lines += ["", *_head(found, target, base, other)]
        for metric, kind, unit in dict.fromkeys(
            (row.metric, row.kind, row.unit) for row in found.rows if row.target == target
        ):
            rows = [row for row in found.rows if row.target == target and row.metric == metric]
            means = [one for one in found.means if one.target == target and one.metric == metric]
            lines += ["", *_block(f"{metric}, {kind}, {unit}", rows, means)]
        lines += [*_of_cliff(found, target)]
    return "\n".join(part for line in lines for part in wrapped(_ascii(line))) + "\n"


def _head(found: Comparison, target: int, base: Run, other: Run) -> Iterator[str]:
    for name, run in (("before", base), ("after", other)):
        yield f"{name + ':':<8}{run.id}"
        yield from (f"    {line}" for line in environment(run.environment) if run.environment)
        if not run.environment:
            yield f"    {run.header.get('series') or 'environment not stated'}"
    for name, before, after in found.environment[target - 1]:
        yield f"differs: {name}: {before} / {after}"
    yield from (f"NO VERDICT, {why}" for why in found.refusals[target - 1])
    yield from (f"note: {mark}" for mark in found.marks[target - 1])
    rows = [row for row in found.rows if row.target == target and row.difference]
    coverage = [row.difference.interval.coverage for row in rows if row.difference]
    known = [one for one in coverage if one is not None]
    yield (
        f"{_repetitions(rows)}; change of medians"
        + (f" with its {100 * min(known):.1f} % interval" if known else "")
        + (f"; p: Mann-Whitney, Holm over {found.tested} rows" if found.tested else "")
    )


def _repetitions(rows: Sequence[Row]) -> str:
    counts = [(len(row.before), len(row.after)) for row in rows]
    sides = [min(side) if len(set(side)) == 1 else None for side in zip(*counts, strict=True)]
    flat = [count for pair in counts for count in pair]
    level = PLURAL[rows[0].level] if max(flat) > 1 else rows[0].level
    if None in sides:
        return f"n = {min(flat)} to {max(flat)} {level}"
    return f"n = {' and '.join(map(str, dict.fromkeys(sides)))} {level}"


def _block(title: str, rows: Sequence[Row], means: Sequence[GeometricMean]) -> Iterator[str]:
    """Yield lines whose columns are as wide as they must be.

    Where there is no room, rows that share their first label stand under it; where there still is
    none, a row's numbers stand under its name.
    """
    means = [one for one in means if one.rows > 1]
    cells = [_COLUMNS, *map(_numbers, rows), *map(_mean_numbers, means)]
    numbers = [line.rstrip() for line in _columns(cells)]
    names = ["", *(row.name for row in rows), *("geomean" for _ in means)]
    room = WIDTH - max(map(len, numbers)) - 2
    yield title
    groups: list[str] = []
    if max(map(len, names)) > room:
        groups = [next(map(str, row.labels.values())) for row in rows]
        rest = [
            f"  {row.name.removeprefix(group).strip()}"
            for row, group in zip(rows, groups, strict=True)
        ]
        if all(map(str.strip, rest)):
            names[1 : 1 + len(rows)] = rest
    fits = max(map(len, names)) <= room
    width = max(map(len, names))
    for index, (name, line) in enumerate(zip(names, numbers, strict=True)):
        first = (
            0 < index <= len(rows) and groups[index - 1 : index] != groups[index - 2 : index - 1]
        )
        if fits and groups and first:
            yield groups[index - 1]
        if fits:
            yield f"{name:<{width}}  {line}".rstrip()
        else:
            full = rows[index - 1].name if 0 < index <= len(rows) else name
            yield from (part for part in (full, f"    {line}") if part)


_COLUMNS = ("before", "after", "change", "interval", "p", "verdict")


def _columns(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield rows of cells set flush right, the last one flush left; empty columns are left out."""
    columns = list(zip(*rows, strict=True))
    *right, last = [column for column in columns if any(column[1:])]
    for index, end in enumerate(last):
        yield "".join(f"{column[index]:>{max(map(len, column))}}  " for column in right) + end


def _mean_numbers(one: GeometricMean) -> tuple[str, str, str, str, str, str]:
    span = _interval(one.interval)
    return _short(one.before), _short(one.after), _percent(one.percent), span, "", ""


def _numbers(row: Row) -> tuple[str, str, str, str, str, str]:
    before, after = (_short(_median(side)) for side in (row.before, row.after))
    if row.difference is None:
        return before, after, "", "", "", row.verdict
    p = row.difference.p_adjusted
    return (
        *(before, after, _percent(row.percent), _interval(row.difference.interval)),
        *("" if p is None else f"{p:.3f}", row.verdict),
    )


def _of_cliff(found: Comparison, target: int) -> Iterator[str]:
    shift = found.shifts[target - 1]
    if shift is None:
        return
    yield ""
    covers = "range" if shift.coverage is None else f"{100 * shift.coverage:g} % interval"
    yield (
        f"cache: {shift.before.slots} slots before, {shift.after.slots} after: "
        f"{shift.slots:+d} ({covers} {shift.low:+d}..{shift.high:+d})"
    )
    yield f"    ({shift.method})"


def markdown(found: Comparison) -> str:
    """Return the table as GitHub and GitLab render it."""
    base, *others = found.runs
    lines = [f"**{_escaped(base.experiment)}**: {_escaped(question(base.experiment))}", ""]
    for target, other in enumerate(others, 1):
        lines += [f"* {_escaped(line)}" for line in _head(found, target, base, other)]
        columns = ["row", "unit", "before", "after", "change", "interval", "p", "n", "verdict"]
        lines += ["", f"| {' | '.join(columns)} |"]
        lines.append("| --- | --- |" + " ---: |" * 6 + " --- |")
        for row in found.rows:
            if row.target == target:
                before, after, change, span, p, verdict = _numbers(row)
                n = f"{len(row.before)} / {len(row.after)} {PLURAL[row.level]}"
                what = f"{row.name}, {row.metric} {row.kind}"
                cells = (what, row.unit, before, after, change, span, p, n, verdict)
                lines.append(f"| {' | '.join(map(_escaped, cells))} |")
        for one in found.means:
            if one.target == target:
                *numbers, verdict = _mean_numbers(one)
                what = f"geometric mean, {one.metric} {one.kind}"
                mean = (what, one.unit, *numbers, "", verdict)
                lines.append(f"| {' | '.join(map(_escaped, mean))} |")
        lines += [_escaped(line) for line in _of_cliff(found, target)] + [""]
    return "\n".join(lines)


def comma_separated(found: Comparison) -> str:
    """Return a line for each row and geometric mean, with the columns of the JSON schema."""
    buffer = io.StringIO()
    labels = list(dict.fromkeys(name for row in found.rows for name in row.labels))
    rows = [_row_object(row) for row in found.rows] + [
        _mean_object(one) | {"verdict": "geometric mean"} for one in found.means
    ]
    columns = [name for name in rows[0] if name != "labels"]
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow([*labels, *columns])
    for row in rows:
        held = row.get("labels", {})
        values = [*(held.get(name) for name in labels), *(row.get(name) for name in columns)]
        writer.writerow([_spreadsheet_safe(value) for value in values])
    return buffer.getvalue()


def as_json(found: Comparison) -> str:
    """Return the comparison as JSON; the module says its schema."""
    base, *others = found.runs
    content = {
        "schema": 1,
        "experiment": base.experiment,
        "runs": [
            {
                "id": run.id,
                "status": run.status,
                "harness": run.start.get("harness"),
                "code_sha256": run.start.get("code_sha256"),
                "environment": run.environment,
            }
            for run in found.runs
        ],
        "targets": [
            {
                "id": other.id,
                "interleaved": "not interleaved" not in found.marks[index],
                "marks": found.marks[index],
                "refusals": found.refusals[index],
                "environment": [
                    dict(zip(("name", "before", "after"), one, strict=True))
                    for one in found.environment[index]
                ],
                "slots": shift
                and {
                    "shift": shift.slots,
                    "low": shift.low,
                    "high": shift.high,
                    "coverage": shift.coverage,
                },
            }
            for index, other in enumerate(others)
            for shift in (found.shifts[index],)
        ],
        "rows": [_row_object(row) for row in found.rows],
        "means": [_mean_object(one) for one in found.means],
        "holm_rows": found.tested,
    }
    return json.dumps(content, indent=2, allow_nan=False) + "\n"


def go_benchmark(found: Comparison) -> str:
    """Return every repetition as a line of Go's benchmark format.

    The runs are told apart by the configuration key ``run``: ``benchstat -col run -``.
    Specification: https://golang.org/design/14313-benchmark-format
    """
    units = dict.fromkeys(row.unit for row in found.rows)
    lines = [
        f"Unit {_word(unit)} better={'higher' if higher_is_better(unit) else 'lower'}"
        for unit in units
    ]
    name = "".join(part.capitalize() for part in re.split(r"\W+", found.runs[0].experiment))
    # Of each target's rows the base's are the same.
    for index, run in enumerate(found.runs):
        lines += ["", f"run: {_word(run.id)}"]
        rows = [row for row in found.rows if row.target == max(index, 1)]
        for row in rows:
            labels = "".join(f"/{_word(k)}={_word(v)}" for k, v in row.labels.items())
            if row.kind != "raw":
                labels += f"/kind={row.kind}"
            lines += [
                f"Benchmark{name}{labels}/metric={_word(row.metric)} 1 {value!r} {_word(row.unit)}"
                for value in (row.after if index else row.before)
            ]
    return "\n".join(lines) + "\n"


FORMATS: Mapping[str, Callable[[Comparison], str]] = {
    "mail": text,
    "markdown": markdown,
    "csv": comma_separated,
    "json": as_json,
    "go": go_benchmark,
}


def _row_object(row: Row) -> dict[str, Any]:
    found = row.difference
    return {
        "target": row.target,
        "labels": dict(row.labels),
        "metric": row.metric,
        "unit": row.unit,
        "kind": row.kind,
        "n_before": len(row.before),
        "n_after": len(row.after),
        "level": row.level,
        "before": _known(_median(row.before)),
        "after": _known(_median(row.after)),
        "percent": _known(row.percent),
        **_interval_object(found.interval if found else None),
        "p": found and found.p,
        "p_adjusted": found and found.p_adjusted,
        "noise_floor": found and found.noise_floor,
        "verdict": row.verdict,
    }


def _mean_object(one: GeometricMean) -> dict[str, Any]:
    return {
        "target": one.target,
        "metric": one.metric,
        "unit": one.unit,
        "kind": one.kind,
        "rows": one.rows,
        "before": _known(one.before),
        "after": _known(one.after),
        "percent": _known(one.percent),
        **_interval_object(one.interval),
    }


def _interval_object(interval: RatioInterval | None) -> dict[str, float | None]:
    if interval is None:
        return {"low_percent": None, "high_percent": None, "coverage": None}
    return {
        "low_percent": _known(100 * (interval.low - 1)),
        "high_percent": _known(100 * (interval.high - 1)),
        "coverage": interval.coverage,
    }


def _known(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _median(values: Sequence[float]) -> float:
    return statistics.median(values) if values else math.nan


def _short(value: float) -> str:
    """Return four digits of a value, without an exponent."""
    if math.isnan(value):
        return "-"
    if value == 0:
        return "0"
    decimals = min(max(3 - math.floor(math.log10(abs(value))), 0), 6)
    return f"{value:.{decimals}f}"


def _percent(value: float) -> str:
    return "" if math.isnan(value) else f"{value:+.{_decimals(value)}f} %"


def _decimals(*percents: float) -> int:
    return 1 if max(map(abs, percents)) < 1000 else 0


def _interval(interval: RatioInterval) -> str:
    """Return the interval's ends in percent, nothing where there is only a range."""
    ends = [100 * (interval.low - 1), 100 * (interval.high - 1)]
    if interval.coverage is None or not all(map(math.isfinite, ends)):
        return ""
    return "..".join(f"{end:+.{_decimals(*ends)}f}" for end in ends)


def _ascii(line: str) -> str:
    """Return a line as a mail bears it: nothing in it moves the cursor or needs a font."""
    return re.sub(r"[^\x20-\x7e\u00b1]", "?", line)


def _escaped(text: str) -> str:
    return re.sub(r"([\\`*_{}\[\]<>|#~])", r"\\\1", _ascii(text))


def _word(value: Any) -> str:
    return re.sub(r"[^\x21-\x7e]+|/(?!op$|s$)", "_", str(value)) or "_"


def _spreadsheet_safe(value: Any) -> Any:
    """Return a cell that no spreadsheet takes for a formula."""
    return f"'{value}" if isinstance(value, str) and value[:1] in ("=", "+", "-", "@") else value
