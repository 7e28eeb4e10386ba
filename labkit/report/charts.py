# SPDX-License-Identifier: MIT
"""Plots of variants in groups: bars, lines against time, one metric against another."""

from collections.abc import Sequence
from typing import Any

import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from labkit.experiments import find
from labkit.experiments._experiment import Bars, Metric, Timeline, Tradeoff
from labkit.report import drawing
from labkit.report.drawing import GREY, MARKERS
from labkit.report.published import published_rows
from labkit.report.summary import summary
from labkit.store.run import Run

_PLAIN = FuncFormatter(lambda value, _: f"{value:g}")


def bars(run: Run, described: Bars) -> Figure:
    """Draw a bar for each variant and group, with published figures beside ours."""
    figure, axes = _figure()
    rows = _rows(run, described.kind, described.metric)
    for label, value in described.where.items():
        rows = rows[rows[label] == value] if len(rows) else rows
    groups = _groups(run, described.groups)
    for index, (variant, colour) in enumerate(_coloured(described.variants)):
        offset = (index - (len(described.variants) - 1) / 2) / (len(described.variants) + 0.7)
        found = rows[rows["variant"] == variant] if len(rows) else rows
        if len(found):
            at = [groups.index(group) + offset for group in found[described.groups]]
            spread = [found["median"] - found["low"], found["high"] - found["median"]]
            axes.bar(
                *(at, found["median"]),
                width=0.9 / (len(described.variants) + 0.7),
                yerr=spread,
                color=colour,
                capsize=3,
                label=variant,
            )
        else:
            _absent(axes, run, variant)
        for published in described.published.get(variant, ()):
            figures = published_rows(published)
            figures = figures[figures[published.x].isin(groups)]
            axes.scatter(
                [groups.index(group) + offset for group in figures[published.x]],
                figures[published.y],
                marker="x",
                color=GREY,
                s=30,
                zorder=3,
                label=published.caption,
            )
    metric = _metric(run, described.metric)
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(_PLAIN)
    axes.set_ylabel(f"{metric.title}, {described.kind} ({metric.unit})")
    axes.set_xticks(range(len(groups)), groups)
    axes.grid(visible=False, axis="x")
    drawing.titled(axes, run, described.title, rows)
    _legend(axes, described.variants)
    return figure


def timeline(run: Run, described: Timeline) -> Figure:
    """Draw the median over all windows at each time, and between which readings it lies."""
    groups = _groups(run, described.groups)
    figure = Figure(figsize=(8, 6.5), layout="constrained")
    panels = figure.subplots(max(len(groups), 1), sharex=True, sharey=True, squeeze=False)[:, 0]
    readings = _readings(run, described)
    for axes, group in zip(panels, groups, strict=False):
        for variant, colour in _coloured(described.variants):
            found = readings[(readings["variant"] == variant) & (readings["group"] == group)]
            if found.empty:
                _absent(axes, run, variant)
                continue
            at = found.groupby("seconds")["mib"].agg(["median", "min", "max"])
            axes.plot(at.index, at["median"], color=colour, lw=1.6, label=variant)
            axes.fill_between(at.index, at["min"], at["max"], color=colour, alpha=0.2, lw=0)
        axes.annotate(group, (0.01, 0.97), xycoords="axes fraction", va="top", fontsize=9)
        axes.set_ylim(bottom=0)
    panels[-1].set_xlabel("seconds")
    figure.supylabel(f"{described.y_title} (MiB)", fontsize=10)
    drawing.titled(panels[0], run, described.title, pd.DataFrame())
    # Every panel shows the same variants.
    handles, labels = panels[0].get_legend_handles_labels()
    if labels:
        figure.legend(handles, labels, loc="outside lower center", ncols=2, fontsize=8)
    return figure


def _readings(run: Run, described: Timeline) -> pd.DataFrame:
    labels: dict[int, Any] = {}
    parts = [pd.DataFrame(columns=["variant", "group", "seconds", "mib"])]
    for line in run.lines:
        if line["kind"] == "case":
            labels[line["case"]] = line["labels"]
        elif line["kind"] == "series" and described.column in line["columns"]:
            clock, *_ = line["columns"].values()
            parts.append(
                pd.DataFrame(
                    {
                        "variant": labels[line["case"]]["variant"],
                        "group": labels[line["case"]][described.groups],
                        # Readings of all windows meet at hundredths of a second.
                        "seconds": [round(ns / 1e9, 2) for ns in clock],
                        "mib": [value / 2**20 for value in line["columns"][described.column]],
                    }
                )
            )
    return pd.concat(parts[1:] or parts, ignore_index=True)


def tradeoff(run: Run, described: Tradeoff) -> Figure:
    """Draw one metric against another: a colour for each variant, a mark for each group."""
    figure, axes = _figure()
    x, y = _rows(run, "raw", described.x), _rows(run, "raw", described.metric)
    groups = _groups(run, described.groups)
    if len(x) and len(y):
        both = x.merge(y, on=run.labels, suffixes=("_x", "_y"))
        for variant, colour in _coloured(described.variants):
            found = both[both["variant"] == variant]
            if found.empty:
                _absent(axes, run, variant)
                continue
            for group, marker in zip(groups, MARKERS, strict=False):
                point = found[found[described.groups] == group]
                axes.errorbar(
                    *(point["median_x"], point["median_y"]),
                    xerr=[point["median_x"] - point["low_x"], point["high_x"] - point["median_x"]],
                    yerr=[point["median_y"] - point["low_y"], point["high_y"] - point["median_y"]],
                    color=colour,
                    marker=marker,
                    ms=7,
                    ls="",
                    capsize=2,
                )
    for variant, colour in _coloured(described.variants):
        if variant in described.published:
            published = described.published[variant]
            figures = published_rows(published)
            for group, marker in zip(groups, MARKERS, strict=False):
                point = figures[figures[described.groups_column] == group]
                axes.plot(
                    *(point[published.x], point[published.y]),
                    color=colour,
                    marker=marker,
                    ms=7,
                    ls="",
                    mfc="none",
                )
    for variant, colour in _coloured(described.variants):
        if variant not in run.unavailable:
            axes.plot([], [], "-", color=colour, lw=4, label=variant)
    for group, marker in zip(groups, MARKERS, strict=False):
        axes.plot([], [], marker, color="0.25", ls="", label=group)
    for caption in {one.caption: None for one in described.published.values()}:
        axes.plot([], [], "o", color=GREY, mfc="none", ls="", label=f"hollow: {caption}")
    axes.set(xscale="log", yscale="log")
    for axis, name in ((axes.xaxis, described.x), (axes.yaxis, described.metric)):
        metric = _metric(run, name)
        axis.set_label_text(f"{metric.title} ({metric.unit})")
        axis.set_major_formatter(_PLAIN)
    drawing.titled(axes, run, described.title, y)
    _legend(axes, described.variants)
    return figure


def _figure() -> tuple[Figure, Axes]:
    figure = Figure(figsize=(8, 5.4), layout="constrained")
    return figure, figure.subplots()


def _rows(run: Run, kind: str, metric: str) -> pd.DataFrame:
    if not run.samples:
        return pd.DataFrame()
    rows = summary(run)
    return rows[(rows["kind"] == kind) & (rows["metric"] == metric)]


def _groups(run: Run, label: str) -> list[str]:
    return list(dict.fromkeys(str(line["labels"][label]) for line in run.of_kind("case")))


def _coloured(variants: Sequence[str]) -> list[tuple[str, Any]]:
    return list(zip(variants, sns.color_palette("colorblind", len(variants)), strict=True))


def _metric(run: Run, name: str) -> Metric:
    return next(one for one in find(run.experiment).metrics if one.name == name)


def _absent(axes: Axes, run: Run, variant: str) -> None:
    why = run.unavailable.get(variant) or run.unavailable.get("memory")
    if why:
        axes.plot([], [], " ", label=drawing.unavailable(variant, why))


def _legend(axes: Axes, variants: Sequence[str]) -> None:
    """Put up a legend that names the variants first; matplotlib lists bars last."""
    handles, labels = axes.get_legend_handles_labels()
    once = dict(zip(labels, handles, strict=True))
    names = sorted(once, key=lambda name: name not in variants)
    if names:
        axes.legend([once[name] for name in names], names, fontsize=8, frameon=True)
