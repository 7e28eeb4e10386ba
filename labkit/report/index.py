# SPDX-License-Identifier: MIT
"""One page over all reports, the newest first; it loads nothing and links to nothing outside."""

import html
from collections.abc import Iterator, Mapping
from pathlib import Path

from labkit.report.notebook import PAGE, TABLE
from labkit.store.run import write_whole

INDEX = "index.html"

_STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:0 auto;padding:1rem}"
    "img{max-width:100%;height:auto}pre{overflow-x:auto;background:#f6f6f6;padding:.7rem}"
    "section{border-top:1px solid #ccc}"
)


def write(reports: Path, outcomes: Mapping[str, str]) -> Path:
    """Write the index of a folder of reports and return its path.

    Parameters
    ----------
    reports
        The folder that holds a folder for each report.
    outcomes
        What became of each experiment that was just asked for: the name of its report's folder,
        or why there is none.
    """
    made = (path.parent for path in reports.glob(f"*/{PAGE}"))
    folders = sorted(made, key=lambda folder: folder.name, reverse=True)
    parts = [
        "<!DOCTYPE html>",
        '<html lang="en"><head><meta charset="utf-8"><title>Reports</title>',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<style>{_STYLE}</style></head><body><h1>Reports</h1>",
        *_said(outcomes, {folder.name for folder in folders}),
        *(part for folder in folders for part in _section(folder)),
        "</body></html>",
    ]
    write_whole(reports / INDEX, "\n".join(parts).encode())
    return reports / INDEX


def _said(outcomes: Mapping[str, str], reports: set[str]) -> Iterator[str]:
    if outcomes:
        yield "<ul>"
        for name, outcome in outcomes.items():
            text = html.escape(outcome)
            if outcome in reports:
                text = f'<a href="{text}/{PAGE}">{text}</a>'
            yield f"<li>{html.escape(name)}: {text}</li>"
        yield "</ul>"


def _section(folder: Path) -> Iterator[str]:
    name = html.escape(folder.name)
    yield f'<section><h2><a href="{name}/{PAGE}">{name}</a></h2>'
    table = folder / TABLE
    if table.is_file():
        head = table.read_text(errors="replace").partition("\n\n")[0]
        yield f"<pre>{html.escape(head)}</pre>"
    for plot in sorted(folder.glob("*.svg"))[:1]:
        drawn = html.escape(plot.name)
        yield f'<img src="{name}/{drawn}" alt="{html.escape(plot.stem)}" loading="lazy">'
    yield "</section>"
