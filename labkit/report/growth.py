# SPDX-License-Identifier: MIT
"""What each unit of a size costs, and from which size on one variant is no dearer than another."""

import math
from collections.abc import Iterator
from itertools import combinations
from typing import Any

import pandas as pd

from labkit.experiments import find, names
from labkit.experiments._experiment import Growth
from labkit.measuring.cache_fit import crossing
from labkit.measuring.line_fit import bootstrap_line_fit
from labkit.measuring.statistics import MINIMUM_REPETITIONS, Level, median_interval
from labkit.report import summary
from labkit.report.published import published_rows
from labkit.store.run import Run


def sentences(run: Run) -> list[str]:
    """Return what a run comes to, in plain words with units; nothing if it is not about growth.

    What cannot be fitted is said, never raised: the rest of the report stands without it.
    """
    growth = find(run.experiment).growth if run.experiment in names() else None
    if growth is None:
        return []
    said: list[str] = []
    if run.samples:
        values, level = summary.repetitions(run), summary.level(run)
        labels = (line["labels"] for line in run.of_kind("case"))
        for name in dict.fromkeys(one[growth.along] for one in labels):
            said += _lines(values[values[growth.along] == name], growth, name, level)
    return said + list(_published(growth))


def _lines(values: pd.DataFrame, growth: Growth, name: str, level: Level) -> Iterator[str]:
    series = {}
    for variant in growth.variants:
        sizes, costs_ns = summary.matrix(
            values, {"variant": variant}, growth.x, "net", growth.metric
        )
        if sizes:
            series[variant] = sizes, costs_ns
            yield f"{name}, {variant}: {_line(sizes, costs_ns, growth, level)}"
    for one, other in combinations(series, 2):
        (sizes, costs_ns), (others, other_ns) = series[one], series[other]
        if sizes == others:
            compared = _compared(sizes, other_ns / costs_ns, growth.x)
            yield f"{name}, {other} against {one}: {compared}"


def _line(sizes: list[int], costs_ns: Any, growth: Growth, level: Level) -> str:
    fitted = [index for index, size in enumerate(sizes) if size >= growth.from_x]
    try:
        found = bootstrap_line_fit([sizes[at] for at in fitted], costs_ns[:, fitted], level)
    except ValueError as error:
        return f"no line from {growth.from_x} {growth.x} on: {error}"
    low, high = found.each_ns
    return (
        f"{found.fit.each_ns:.3f} ns ({low:.3f}..{high:.3f}) a {growth.each} from "
        f"{growth.from_x} {growth.x} on, R2 {found.fit.r_squared:.3f}"
    )


def _compared(sizes: list[int], ratios: Any, x: str) -> str:
    """Say at which sizes a cost is lower than another, and at which higher.

    By the interval of the median of their ratios, which are paired within a repetition.
    """
    if len(ratios) < MINIMUM_REPETITIONS:
        return f"needs {MINIMUM_REPETITIONS} repetitions, there are {len(ratios)}"
    found: dict[str, list[int]] = {"faster": [], "slower": []}
    for size, values in zip(sizes, ratios.T, strict=True):
        paired = [value for value in values if not math.isnan(value)]
        if len(paired) >= MINIMUM_REPETITIONS:
            interval = median_interval(paired)
            if interval.high < 1 or interval.low > 1:
                found["faster" if interval.high < 1 else "slower"].append(size)
    said = [f"{how} at {', '.join(map(str, some))} {x}" for how, some in found.items() if some]
    return ", ".join([*said, "else not told apart" if said else "not told apart"])


def _where(crossed: float | None, sizes: list[int], x: str) -> str:
    if crossed is None:
        return f"slower up to {sizes[-1]} {x}, the most measured"
    if crossed <= sizes[0]:
        return f"no slower from {sizes[0]} {x} on, the least measured"
    return f"no slower from {crossed:.3g} {x} on"


def _published(growth: Growth) -> Iterator[str]:
    for described in growth.published:
        figures = published_rows(described)
        sizes = [int(size) for size in figures[described.x]]
        crossed = crossing(sizes, figures[described.y].to_numpy(), 1.0)
        yield f"{described.caption}: {_where(crossed, sizes, growth.x)}"
