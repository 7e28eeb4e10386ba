# SPDX-License-Identifier: MIT
"""Samples to estimates: repetitions at the level where the noise is, net paired within a round."""

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import pandas as pd

from labkit.measuring.statistics import Level, estimate
from labkit.store.run import Run

#: From the outermost repetition inwards.
LEVELS: tuple[Level, ...] = ("boot", "process", "round")

_MOST_REPETITIONS = 1000

ESTIMATE = (
    *("median", "low", "high", "coverage", "mean", "deviation"),
    *("n", "minimum", "maximum", "level"),
)


def level(run: Run) -> Level:
    """Return the outermost level of which the run holds more than one: what was repeated."""
    frame = run.frame
    for name in LEVELS[:-1]:
        if frame[name].nunique() > 1:
            return name
    return "round"


@lru_cache(maxsize=4)
def repetitions(run: Run) -> pd.DataFrame:
    """Reduce samples to one value for each repetition.

    Returns
    -------
    pandas.DataFrame
        A row for each case, metric, kind and repetition. Columns: the run's labels, ``metric``,
        ``unit``, ``kind`` (raw, control or net), the levels down to the repeated one, and
        ``value``, in the metric's unit: the median of what lies below that level. net is the
        median of differences between raw and control of the same round, and exists for times
        only: a rate has no difference that means something.
    """
    keys = [*run.labels, "metric", "unit"]
    rounds = _paired(run.frame, keys)
    innermost = level(run)
    repeated = LEVELS[: LEVELS.index(innermost) + 1]
    if innermost == LEVELS[-1]:  # nothing lies below a round
        return rounds[[*keys, "kind", *repeated, "value"]]
    return (
        rounds.groupby([*keys, "kind", *repeated], dropna=False, sort=False, observed=True)["value"]
        .median()
        .reset_index()
    )


def _paired(frame: pd.DataFrame, keys: Sequence[str]) -> pd.DataFrame:
    """Return raw, control and net, a row for each case, metric, kind and round."""
    on = [*keys, *LEVELS]
    raw = frame.loc[~frame["control"], [*on, "value"]]
    control = frame.loc[frame["control"], [*on, "value"]]
    # Only times have a net, and joining takes longer than all the rest.
    timed, idle = (part[part["unit"].str.startswith("ns")] for part in (raw, control))
    net = timed.merge(idle, on=on, suffixes=("", "_control"))
    net = net.assign(value=net["value"] - net["value_control"]).drop(columns="value_control")
    kinds = {"raw": raw, "control": control, "net": net}
    together = pd.concat(kinds.values(), ignore_index=True)
    places = np.repeat(np.arange(len(kinds)), [len(part) for part in kinds.values()])
    return together.assign(kind=pd.Categorical(list(kinds), categories=list(kinds)).take(places))


@lru_cache(maxsize=4)
def summary(run: Run) -> pd.DataFrame:
    """Estimate each case's metrics from the run's repetitions.

    Returns
    -------
    pandas.DataFrame
        A row for each case, metric and kind (raw, control, net). Columns: the run's labels,
        ``metric``, ``unit``, ``kind``, and in that unit ``median``, ``low``, ``high`` (the
        median's distribution-free interval; the range where ``coverage`` is missing),
        ``mean``, ``deviation`` (of the sample), ``minimum``, ``maximum``; ``coverage`` (share),
        ``n`` and ``level`` (what was repeated: boot, process or round).
    """
    keys = [*run.labels, "metric", "unit", "kind"]
    repeated = level(run)
    rows = [
        (*key, *_estimated(values.to_list(), repeated))
        for key, values in repetitions(run).groupby(keys, dropna=False, sort=False, observed=True)[
            "value"
        ]
    ]
    found = pd.DataFrame(rows, columns=[*keys, *ESTIMATE])
    found = found.astype(
        {"coverage": float} | {label: run.frame[label].dtype for label in run.labels}
    )
    found = _as_printed(run, found)
    return found.iloc[np.argsort(_positions(run, found), kind="stable")].reset_index(drop=True)


def _positions(run: Run, found: pd.DataFrame) -> list[int]:
    """Return where each row's case stands in the order that the experiment gave its cases."""
    order = {
        tuple(line["labels"].get(name) for name in run.labels): line["case"]
        for line in run.of_kind("case")
    }
    rows = found[run.labels].astype(object)
    return [order[row] for row in rows.where(rows.notna(), None).itertuples(index=False, name=None)]


def _as_printed(run: Run, found: pd.DataFrame) -> pd.DataFrame:
    """Put in the deviation that an imported figure came with, where it was printed once."""
    printed = {
        (one["case"], one["metric"], "control" if one["control"] else "raw"): one["deviation"]
        for one in run.of_kind("figure")
    }
    if not printed:
        return found
    keys = zip(_positions(run, found), found["metric"], found["kind"], strict=True)
    deviations = pd.Series([printed.get(key) for key in keys], index=found.index, dtype=float)
    return found.assign(deviation=found["deviation"].where(found["n"] > 1, deviations))


def _estimated(values: Sequence[float], repeated: Level) -> tuple[Any, ...]:
    found = estimate(values, repeated)
    return tuple(getattr(found, name) for name in ESTIMATE)


def matrix(
    found: pd.DataFrame, where: Mapping[str, Any], x: str, kind: str, metric: str
) -> tuple[list[int], np.ndarray[Any, np.dtype[np.float64]]]:
    """Return the sizes of one series and its repetitions, for a fit or a bootstrap.

    Parameters
    ----------
    found
        What `repetitions` returned.
    where
        Labels of the series.
    x
        The label that holds the size.
    kind, metric
        Which values.

    Returns
    -------
    sizes : list of int, ascending
    values : array of float, shape (repetitions, sizes), nan where a repetition lacks a size
        A row for each repetition of the run, in order, so that rows of two series are pairs. Of
        more than 1000, consecutive ones are taken together: their median.
    """
    repetition = found.groupby([name for name in LEVELS if name in found.columns]).ngroup()
    found = found.assign(repetition=repetition)
    rows = found[(found["metric"] == metric) & (found["kind"] == kind) & found[x].notna()]
    for label, value in where.items():
        rows = rows[rows[label] == value]
    table = rows.pivot(index="repetition", columns=x, values="value")
    table = table.reindex(range(repetition.nunique())).sort_index(axis=1)
    return [int(size) for size in table.columns], _batched(table.to_numpy(dtype=float))


def _batched(values: np.ndarray[Any, np.dtype[np.float64]]) -> np.ndarray[Any, Any]:
    """Take consecutive repetitions together where there are more than a bootstrap can use."""
    size = math.ceil(len(values) / _MOST_REPETITIONS)
    if size == 1:
        return values
    starts = range(0, len(values), size)
    return np.array([np.nanmedian(values[start : start + size], axis=0) for start in starts])
