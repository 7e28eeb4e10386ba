# SPDX-License-Identifier: MIT
"""Plots of a comparison: the change of every row, and the runs' own curves laid over each other."""

from collections.abc import Sequence

import matplotlib as mpl
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

from labkit.experiments import find, names
from labkit.experiments._experiment import Curve
from labkit.report import drawing, plots
from labkit.report.compare import Comparison, Row, higher_is_better
from labkit.report.summary import summary

#: Verdicts as they are drawn, legible without colour: full for a verdict, hollow for none.
_STYLES = {
    "better": ("o", "#0072b2", "#0072b2"),
    "worse": ("D", "#d55e00", "#d55e00"),
    "": ("o", "0.35", "white"),
}
_LINES = ("-", "--", "-.", ":")
#: More rows than this are no plot.
_ROWS = 60


def forest(found: Comparison, metric: str = "", target: int = 1) -> Figure:
    """Return the change in percent of each row, with its interval where there is one.

    Of more than 60 rows the ones that changed most are drawn.
    """
    metric = metric or found.rows[0].metric
    rows = [
        row
        for row in found.rows
        if row.metric == metric and row.target == target and row.percent == row.percent
    ]
    left_out = max(0, len(rows) - _ROWS)
    kept = sorted(rows, key=lambda row: -abs(row.percent))[:_ROWS]
    rows = [row for row in rows if row in kept]
    height = 1.6 + 0.24 * max(len(rows), 3)
    figure = Figure(figsize=(8, height), layout="constrained")
    with sns.axes_style("whitegrid"), mpl.rc_context({"svg.fonttype": "none", "font.size": 9}):
        axes = figure.subplots()
        _forest(axes, rows)
        mean = next((m for m in found.means if (m.metric, m.target) == (metric, target)), None)
        if mean is not None and mean.rows > 1:
            axes.axvline(mean.percent, color="0.35", ls="--", lw=1, label="geometric mean")
        unit = rows[0].unit if rows else ""
        way = "more" if higher_is_better(unit) else "less"
        axes.set_xlabel(f"change of {metric} in %, {way} is better")
        lines = [f"before: {found.runs[0].id}", f"after: {found.runs[target].id}"]
        lines += [f"no verdict, {why}" for why in found.refusals[target - 1]]
        lines += list(found.marks[target - 1])
        lines += [f"{left_out} rows that changed less are left out"] if left_out else []
        axes.set_title("\n".join(plots.plain(line) for line in lines), fontsize=8, loc="left")
        axes.legend(fontsize=8, loc="best")
    return figure


def _forest(axes: Axes, rows: Sequence[Row]) -> None:
    for verdict, (marker, edge, face) in _STYLES.items():
        drawn = [
            (position, row)
            for position, row in enumerate(rows)
            if (row.verdict if row.verdict in _STYLES else "") == verdict
        ]
        if not drawn:
            continue
        percents = [row.percent for _, row in drawn]
        spans = [_ends(row) for _, row in drawn]
        axes.errorbar(
            percents,
            [position for position, _ in drawn],
            xerr=[
                [max(0.0, p - low) for p, (low, _) in zip(percents, spans, strict=True)],
                [max(0.0, high - p) for p, (_, high) in zip(percents, spans, strict=True)],
            ],
            fmt=marker,
            color=edge,
            mfc=face,
            capsize=2.5,
            ms=5,
            lw=1.2,
            label=verdict or "no difference known",
        )
    axes.axvline(0, color="black", lw=0.8)
    axes.set_yticks(range(len(rows)), [plots.plain(row.name) for row in rows])
    axes.set_ylim(len(rows) - 0.5, -0.5)


def _ends(row: Row) -> tuple[float, float]:
    assert row.difference is not None
    interval = row.difference.interval
    if interval.coverage is None:
        return row.percent, row.percent
    return 100 * (interval.low - 1), 100 * (interval.high - 1)


def curves(found: Comparison) -> list[Curve]:
    """Return the plots of the runs' own experiment that can be laid over each other."""
    experiment = found.runs[0].experiment
    described = find(experiment).plots if experiment in names() else ()
    return [curve for curve in described if isinstance(curve, Curve)]


def overlay(found: Comparison, curve: Curve) -> Figure:
    """Return one of the experiment's own plots with a line for each run."""
    figure = Figure(figsize=(8, 5.4), layout="constrained")
    with sns.axes_style("whitegrid"), mpl.rc_context({"svg.fonttype": "none", "font.size": 10}):
        axes = figure.subplots()
        colours = sns.color_palette("colorblind", len(curve.variants))
        for index, run in enumerate(found.runs):
            rows = plots.of_curve(summary(run), curve, run.labels)
            for variant, colour, marker in zip(
                curve.variants, colours, drawing.MARKERS, strict=False
            ):
                name = plots.plain(f"{variant}, {run.id}")
                plots.series(
                    axes,
                    rows[rows["variant"] == variant],
                    curve.x,
                    name,
                    colour,
                    marker,
                    ls=_LINES[index % len(_LINES)],
                    mfc=colour if index == 0 else "white",
                )
        axes.set(xscale="log", yscale="log", xlabel=curve.x_title, title=curve.title)
        metric = next(
            one for one in find(found.runs[0].experiment).metrics if one.name == curve.metric
        )
        axes.set_ylabel(
            "share" if curve.share_of else f"{metric.title}, {curve.kind} ({metric.unit})"
        )
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
            axis.set_minor_formatter(NullFormatter())
        if axes.get_legend_handles_labels()[0]:
            axes.legend(fontsize=8)
    return figure
