# SPDX-License-Identifier: MIT
"""What every plot has: a title that says on what was measured, and published figures."""

import textwrap
from collections.abc import Iterator

import pandas as pd
from matplotlib.axes import Axes

from labkit.report.tables import environment, repeated
from labkit.store.run import Run

MARKERS = ("o", "s", "^", "D", "v")
GREY = "0.45"


def titled(axes: Axes, run: Run, title: str, rows: pd.DataFrame, *, bars: bool = True) -> None:
    """Put a title above a plot of the estimates `rows`, and below it where and how often.

    `bars` says that the plot shows their intervals.
    """
    below = list(_subtitle(run, rows, bars))
    axes.set_title("\n".join(below), fontsize=8.5, loc="left")
    axes.annotate(
        title,
        xy=(0, 1),
        xycoords="axes fraction",
        xytext=(0, 11 + 10.5 * len(below)),
        textcoords="offset points",
        fontsize=12,
        fontweight="bold",
    )


def unavailable(variant: str, why: str) -> str:
    """Return the words of a legend for a variant that could not run."""
    return textwrap.fill(f"{variant} unavailable: {why}", 44)


def _subtitle(run: Run, rows: pd.DataFrame, bars: bool) -> Iterator[str]:
    if run.status != "complete":
        yield f"{run.status.upper()}: {run.why}"
    where = list(environment(run.environment))[:1]
    yield from (line for words in where for line in textwrap.wrap(words, 100))
    if rows.empty:
        return
    coverage = 100 * rows["coverage"].min()
    what = "range" if rows["coverage"].isna().any() else f"{coverage:.1f} % interval of the median"
    yield repeated(rows) + (f"; bars: {what}" if bars else "")
