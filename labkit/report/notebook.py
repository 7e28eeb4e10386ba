# SPDX-License-Identifier: MIT
"""Notebooks executed by papermill, and made into one page."""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import nbformat

from labkit import errors, paths
from labkit.experiments import Experiment, find
from labkit.report import plots, tables
from labkit.store.run import Run, write_whole

NOTEBOOK, PAGE, TABLE = "notebook.ipynb", "report.html", "table.txt"


def execute(experiment: Experiment, parameters: Mapping[str, Any], folder: Path) -> None:
    """Execute an experiment's notebook and keep it in a report's folder.

    Raises
    ------
    LabkitError
        As the notebook raised it; anything else that went wrong in a cell as a LabkitError.
    """
    import papermill
    from papermill.exceptions import PapermillExecutionError

    os.environ.setdefault("JUPYTER_PREFER_ENV_PATH", "1")
    try:
        executed = papermill.execute_notebook(
            str(experiment.notebook),
            None,
            dict(parameters),
            kernel_name="python3",
            progress_bar=False,
            cwd=str(paths.ROOT),
        )
    except PapermillExecutionError as error:
        kind = getattr(errors, error.ename, errors.LabkitError)
        ours = isinstance(kind, type) and issubclass(kind, errors.LabkitError)
        where = (
            ""
            if kind is not errors.LabkitError or error.ename == kind.__name__
            else (f"cell {error.exec_count} of {experiment.notebook.name}: {error.ename}: ")
        )
        raise (kind if ours else errors.LabkitError)(f"{where}{error.evalue}") from None
    text = nbformat.writes(executed)
    write_whole(folder / NOTEBOOK, text.encode())


def finish(run: Run, folder: Path) -> None:
    """Make the page, the table and the plots beside an executed notebook."""
    page_of = page(folder / NOTEBOOK, title=run.id, notice=_notice(run))
    write_whole(folder / PAGE, page_of.encode())
    write_whole(folder / TABLE, tables.text(run).encode())
    for name in plots.names(run):
        figure = plots.draw(run, name)
        for file_format in ("png", "svg"):
            write_whole(folder / f"{name}.{file_format}", plots.encoded(figure, file_format))


def write(run: Run, folder: Path) -> None:
    """Make a whole report of a recorded run; needs no privileges, no BPF and no bcc."""
    execute(find(run.experiment), {"run": str(run.path.resolve())}, folder)
    finish(run, folder)


def page(notebook: Path, *, title: str, notice: str = "") -> str:
    """Return a notebook as one HTML page that loads nothing.

    Parameters
    ----------
    notebook
        An executed notebook.
    title
        Of the page.
    notice
        A warning at its top.
    """
    from nbconvert import HTMLExporter

    content = nbformat.read(notebook, as_version=4)
    markdown = "\n".join(cell.source for cell in content.cells if cell.cell_type == "markdown")
    exporter = HTMLExporter(
        template_name="page", extra_template_basedirs=[str(Path(__file__).parent)]
    )
    contents = re.findall(r"^## (.+)$", markdown, re.MULTILINE)
    resources = {"page": {"title": title, "notice": notice, "contents": contents}}
    body, _ = exporter.from_notebook_node(content, resources=resources)
    return str(body)


def _notice(run: Run) -> str:
    if run.status == "complete":
        return ""
    return f"This run is {run.status}: {run.why}. The figures are of what was measured until then."
