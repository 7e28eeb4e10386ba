# SPDX-License-Identifier: MIT
"""Plots of a run, drawn from what its experiment says that they show."""

import io
import math
from collections.abc import Iterator
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from labkit.errors import UsageError
from labkit.experiments import find
from labkit.experiments._experiment import Bars, Curve, Timeline
from labkit.report import charts, drawing
from labkit.report.drawing import GREY, MARKERS
from labkit.report.findings import findings
from labkit.report.published import published_rows
from labkit.report.summary import summary
from labkit.store.run import Run

DPI = 150


def names(run: Run) -> list[str]:
    """Return the names of the plots that `run` can be drawn as."""
    return [curve.name for curve in find(run.experiment).plots]


def draw(run: Run, name: str) -> Figure:
    """Return the plot called `name`.

    Raises
    ------
    UsageError
        For an unknown name, with the known ones.
    """
    found = [curve for curve in find(run.experiment).plots if curve.name == name]
    if not found:
        raise UsageError(f"no plot is called {name!r}; known: {', '.join(names(run))}")
    with sns.axes_style("whitegrid"), mpl.rc_context({"svg.fonttype": "none", "font.size": 10}):
        described = found[0]
        if isinstance(described, Curve):
            return _curve(run, described)
        if isinstance(described, Bars):
            return charts.bars(run, described)
        if isinstance(described, Timeline):
            return charts.timeline(run, described)
        return charts.tradeoff(run, described)


def alternative(run: Run, name: str) -> str:
    """Return what the plot shows, for those who cannot see it."""
    return next(curve.alternative for curve in find(run.experiment).plots if curve.name == name)


def encoded(figure: Figure, file_format: str) -> bytes:
    """Return a figure as a file's content: ``png`` at 150 dpi, or ``svg``."""
    buffer = io.BytesIO()
    metadata = {"Date": None} if file_format == "svg" else None
    figure.savefig(buffer, format=file_format, dpi=DPI, metadata=metadata)
    return buffer.getvalue()


def plain(text: str) -> str:
    """Return a text as matplotlib draws it literally, cut to what a plot has room for."""
    return (text if len(text) <= 70 else f"{text[:66]} ...").replace("$", r"\$")


def _curve(run: Run, curve: Curve) -> Figure:
    figure = Figure(figsize=(8, 5.4), layout="constrained")
    axes = figure.subplots()
    colours = sns.color_palette("colorblind", len(curve.variants))
    rows = summary(run) if run.has_values else pd.DataFrame()
    if not rows.empty:
        rows = of_curve(rows, curve, run.labels)
        _levels(axes, rows, curve)
        for variant, colour, marker in zip(curve.variants, colours, MARKERS, strict=False):
            series(axes, rows[rows["variant"] == variant], curve.x, variant, colour, marker)
    _cliff(axes, run, curve)
    for described, line in zip(curve.published, ("--", ":"), strict=False):
        figures = published_rows(described)
        axes.plot(
            *(figures[described.x], figures[described.y]),
            ls=line,
            marker="x",
            color=GREY,
            lw=1.2,
            ms=5,
            zorder=1.5,
            label=described.caption,
        )
    for variant in (*curve.variants, *curve.levels):
        if variant in run.unavailable:
            why = drawing.unavailable(variant, run.unavailable[variant])
            axes.plot([], [], " ", label=why)
    _dress(axes, run, curve, rows)
    return figure


def of_curve(rows: pd.DataFrame, curve: Curve, labels: list[str]) -> pd.DataFrame:
    """Return the estimates that a curve shows, among those of a run."""
    rows = rows[rows["kind"] == curve.kind]
    for label, value in curve.where.items():
        rows = rows[rows[label] == value]
    drawn = rows[rows["metric"] == curve.metric]
    if not curve.share_of:
        return drawn
    whole = rows.loc[rows["metric"] == curve.share_of, [*labels, "median"]]
    drawn = drawn.merge(whole, on=labels, suffixes=("", "_whole"))
    share = drawn["median"] / drawn["median_whole"]
    # Both are counted in the same windows: their share is known, not estimated.
    return drawn.assign(median=share, low=share, high=share)


def series(
    axes: Axes, rows: pd.DataFrame, x: str, name: str, colour: Any, marker: str, **style: Any
) -> None:
    """Draw estimates against a counted label, with their intervals."""
    rows = rows[(rows["median"] > 0) & rows[x].notna()].sort_values(x)
    if rows.empty:
        return
    spread = [(rows["median"] - rows["low"]).to_numpy(), (rows["high"] - rows["median"]).to_numpy()]
    axes.errorbar(
        *(rows[x].to_numpy(dtype=float), rows["median"].to_numpy()),
        yerr=spread,
        color=colour,
        marker=marker,
        ms=5,
        lw=1.6,
        capsize=3,
        label=name,
        **style,
    )


def _levels(axes: Axes, rows: pd.DataFrame, curve: Curve) -> None:
    """Draw variants of another size as horizontal lines, named at their right ends."""
    for variant, label in curve.levels.items():
        lines = rows[(rows["variant"] == variant) & (rows["median"] > 0)].sort_values("median")
        lowest = -math.inf
        for row in lines.to_dict("records"):
            axes.axhline(row["median"], color="0.25", lw=0.9, ls=(0, (6, 2)), zorder=1)
            axes.axhspan(row["low"], row["high"], color="0.5", alpha=0.12, lw=0, zorder=0)
            # Names keep their distance where lines do not.
            lowest = max(math.log10(row["median"]), lowest + 0.075)
            axes.annotate(
                f"{variant} {row[label]:,} {label}",
                xy=(1.0, 10**lowest),
                xycoords=("axes fraction", "data"),
                xytext=(4, 0),
                textcoords="offset points",
                va="center",
                fontsize=8,
                color="0.25",
            )


def _cliff(axes: Axes, run: Run, curve: Curve) -> None:
    """Draw the fitted cost of a cache, and where its slots end."""
    cliff = find(run.experiment).cliff
    if cliff is None or (curve.metric, curve.kind) != (cliff.metric, "net"):
        return
    found = findings(run)
    if found is None or found.cache is None or not found.cache.fit.cliff:
        return
    fit = found.cache.fit
    low, high = found.cache.slots
    upper = found.sizes[-1]
    sizes = [upper ** (step / 400) for step in range(401)]
    axes.plot(
        *(sizes, fit.predict(sizes)),
        color="black",
        lw=1,
        alpha=0.7,
        zorder=5,
        label=f"model fitted to {cliff.variant}: {fit.slots} slots ({low}..{high})",
    )
    axes.axvline(fit.slots, color="black", lw=0.8, ls=":")
    if high > low:
        axes.axvspan(low, high, color="black", alpha=0.08, lw=0)


def _dress(axes: Axes, run: Run, curve: Curve, rows: pd.DataFrame) -> None:
    axes.set(xscale="log", yscale="log", xlabel=curve.x_title)
    if not any(np.size(line.get_xdata()) for line in axes.lines):
        axes.set(xlim=(1, 10), ylim=(1, 10))  # nothing has no logarithm
        axes.text(0.5, 0.5, "not measured", transform=axes.transAxes, ha="center")
    titles = {one.name: one for one in find(run.experiment).metrics}
    metric = titles[curve.metric]
    if curve.share_of:
        axes.set_ylabel(f"{metric.title} / {titles[curve.share_of].title}")
    else:
        axes.set_ylabel(f"{metric.title}, {curve.kind} ({metric.unit})")
    drawing.titled(axes, run, curve.title, rows, bars=not curve.share_of)
    sizes = [] if rows.empty else sorted(set(rows[curve.x].dropna()))
    axes.xaxis.set_major_locator(FixedLocator(list(_spaced(sizes))))
    axes.xaxis.set_minor_locator(NullLocator())
    plain = FuncFormatter(lambda value, _: f"{value:g}")
    axes.xaxis.set_major_formatter(plain)
    axes.yaxis.set_major_formatter(plain)
    axes.grid(which="minor", axis="y", lw=0.3)
    handles, labels = axes.get_legend_handles_labels()
    # Ours first; matplotlib lists bars last.
    order = sorted(range(len(labels)), key=lambda index: labels[index] not in curve.variants)
    if order:
        axes.legend(
            [handles[index] for index in order],
            [labels[index] for index in order],
            fontsize=8,
            frameon=True,
        )


def _spaced(sizes: list[int]) -> Iterator[int]:
    """Yield the sizes that have room for a label; round ones, and 16, go first."""
    chosen: list[int] = []
    for size in sorted(sizes, key=lambda one: (one not in (1, 10, 16, 32, 100, 1000), one)):
        if all(abs(math.log10(size / other)) > 0.16 for other in chosen):
            chosen.append(size)
    yield from sorted(chosen)
