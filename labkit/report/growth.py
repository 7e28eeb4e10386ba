# SPDX-License-Identifier: MIT
"""What each unit of a size costs, and from which size on one variant is no dearer than another."""

from collections.abc import Iterator
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd

from labkit.experiments import find
from labkit.experiments._experiment import Growth
from labkit.measuring.cache_fit import bootstrap_crossing, crossing
from labkit.measuring.line_fit import bootstrap_line_fit
from labkit.measuring.statistics import Level
from labkit.report import summary
from labkit.report.published import published
from labkit.store.run import Run


def sentences(run: Run) -> list[str]:
    """Return what a run comes to, in plain words with units; nothing if it is not about growth.

    What cannot be fitted is said, never raised: the rest of the report stands without it.
    """
    growth = find(run.experiment).growth
    if growth is None:
        return []
    said: list[str] = []
    if run.of_kind("sample"):
        values, level = summary.repetitions(run), summary.level(run)
        for name in values[growth.along].unique():
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
            overtaking = _overtaking(sizes, costs_ns / other_ns, growth.x, level)
            yield f"{name}: {other} against {one}: {overtaking}"


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


def _overtaking(sizes: list[int], ratios: Any, x: str, level: Level) -> str:
    try:
        found = bootstrap_crossing(sizes, ratios, np.ones(len(ratios)), level)
    except ValueError as error:
        return f"not told apart: {error}"
    low, high = (
        f"over {sizes[-1]}" if end is None else f"{end:.3g}" for end in (found.low, found.high)
    )
    return f"{_where(found.maps, sizes, x)} ({low}..{high})"


def _where(crossed: float | None, sizes: list[int], x: str) -> str:
    if crossed is None:
        return f"slower up to {sizes[-1]} {x}, the most measured"
    if crossed <= sizes[0]:
        return f"no slower from {sizes[0]} {x} on, the least measured"
    return f"no slower from {crossed:.3g} {x} on"


def _published(growth: Growth) -> Iterator[str]:
    for described in growth.published:
        figures = published(described)
        sizes = [int(size) for size in figures[described.x]]
        crossed = crossing(sizes, figures[described.y].to_numpy(), 1.0)
        yield f"{described.caption}: {_where(crossed, sizes, growth.x)}"
