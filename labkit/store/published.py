# SPDX-License-Identifier: MIT
"""Published figures, the files in ``data/published``, as runs.

A column that ends as `UNITS` has it is a metric; ``X_stddev`` is the deviation of X; every other
column is a label. What the columns of a file of the kernel's tool stand for among our own is said
here, so that the two can be compared.
"""

import csv
from collections.abc import Mapping
from pathlib import Path

from labkit import paths
from labkit.errors import UsageError
from labkit.store import journal

PREFIX = "published:"

UNITS = {
    "ns_per_op": "ns/op",
    "_ns": "ns/op",
    "mops": "Mops/s",
    "kops_per_producer": "k/s",
    "kevents_per_s": "k/s",
    "events_per_s": "/s",
    "mpps": "Mpps",
    "_mib": "MiB",
    "_mb": "MB",
    "_us": "us",
    "ticks_per_gp": "ticks",
}
#: Columns that are called otherwise where we measure the same.
_OURS = {
    "hits_ns_per_op": "get_ns",
    "ns_per_op": "get_ns",
    "important_hits_mops": "important_mops",
}
_EXPERIMENTS = {"local_storage_get": "local-storage", "local_storage_adjusted": "local-storage"}


def names() -> list[str]:
    """Return the names of the published runs."""
    return sorted(PREFIX + path.stem for path in paths.PUBLISHED.glob("*.csv"))


def lines(name: str) -> list[journal.Line]:
    """Return the journal of a published run.

    Raises
    ------
    UsageError
        For an unknown name, with the known ones.
    """
    if name not in names():
        raise UsageError(f"no published figures are called {name!r}; known: {', '.join(names())}")
    stem = name.removeprefix(PREFIX)
    comments, rows = _read(paths.PUBLISHED / f"{stem}.csv")
    columns = [column for column in rows[0] if not column.endswith("_stddev")]
    measured = {column: unit for column in columns if (unit := _unit(column))}
    cases = [_labels(row, measured) for row in rows]
    labels = list(dict.fromkeys(label for case in cases for label in case))
    distinct = {
        case: index for index, case in enumerate(dict.fromkeys(tuple(one.items()) for one in cases))
    }
    controls = [row.get("body") == "empty_loop" for row in rows]
    return [
        {
            "kind": "run",
            "schema": journal.SCHEMA,
            "id": name,
            "experiment": _EXPERIMENTS.get(stem, stem.replace("_", "-")),
            "parameters": {},
            "command": f"./lab show {name}",
            "repeat": 1,
            "series": comments[0].strip(" ,") if comments else stem,
        },
        {
            "kind": "start",
            "boot": 0,
            "process": 0,
            "labels": labels,
            "metrics": [
                {
                    "name": _OURS.get(column, column),
                    "unit": unit,
                    "title": column.replace("_", " "),
                    "count": "",
                }
                for column, unit in measured.items()
            ],
            "harness": "a published mail",
            "environment": {},
        },
        *(
            {"kind": "case", "case": index, "labels": dict(case)}
            for case, index in distinct.items()
        ),
        *(
            {
                "kind": "figure",
                "case": distinct[tuple(case.items())],
                "metric": _OURS.get(column, column),
                "value": float(row[column]),
                "deviation": float(deviation) if deviation else None,
                "n": None,
                "line": None,
                "control": control,
            }
            for row, case, control in zip(rows, cases, controls, strict=True)
            for column in measured
            if row[column]
            for deviation in (row.get(f"{column}_stddev"),)
        ),
        {"kind": "end", "status": "complete", "why": "as published"},
    ]


def _read(path: Path) -> tuple[list[str], list[dict[str, str]]]:
    text = path.read_text().splitlines()
    comments = [line.lstrip("# ") for line in text if line.startswith("#")]
    return comments, list(csv.DictReader(line for line in text if not line.startswith("#")))


def _unit(column: str) -> str:
    return next((unit for ending, unit in UNITS.items() if column.endswith(ending)), "")


def _labels(row: Mapping[str, str], measured: Mapping[str, str]) -> dict[str, str | int]:
    """Return a row's labels; ``value`` is named after what its row says that it counts."""
    labels: dict[str, str | int] = {}
    for column, text in row.items():
        if column in measured or column.endswith("_stddev") or column in ("body", "parameter"):
            continue
        name = column
        if column == "value":
            counted = row.get("parameter") or ""
            is_hash = row.get("variant") == "hashmap"
            name = counted.removeprefix("num_") or ("keys" if is_hash else "maps")
        if text:
            labels[name] = int(text) if text.isdecimal() else text
    return labels
