# SPDX-License-Identifier: MIT
"""Notebooks executed by papermill, and made into one page."""

import os
import re
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import nbformat
from matplotlib.figure import Figure
from nbformat import NotebookNode

from labkit import errors, paths
from labkit.experiments import find
from labkit.report import plots, tables
from labkit.store.run import Run, write_whole

NOTEBOOK, PAGE, TABLE = "notebook.ipynb", "report.html", "table.txt"


def execute(notebook: Path, parameters: Mapping[str, Any]) -> NotebookNode:
    """Execute a notebook and return it with its outputs.

    Raises
    ------
    LabkitError
        As the notebook raised it; anything else that went wrong in a cell as a LabkitError.
    """
    import papermill
    from papermill.exceptions import PapermillExecutionError
    from traitlets.config import Config

    with _vanishing_folder() as private:
        places = {"JUPYTER_RUNTIME_DIR": private, "IPYTHONDIR": private}
        with _environment({"JUPYTER_PREFER_ENV_PATH": "1"} | places):
            try:
                executed: NotebookNode = papermill.execute_notebook(
                    str(notebook),
                    None,
                    dict(parameters),
                    kernel_name="python3",
                    # Sockets in a folder of our own: on a shared machine TCP is open to all.
                    config=Config(
                        KernelManager={
                            "transport": "ipc",
                            "ip": f"{private}/kernel",
                            "connection_file": f"{private}/kernel.json",
                        }
                    ),
                    # What goes wrong in a cell is raised here; the rest is not for users.
                    extra_arguments=["--Application.log_level=50"],
                    progress_bar=False,
                    cwd=str(paths.ROOT),
                )
            except PapermillExecutionError as error:
                raise _as_raised(error, notebook.name) from None
    return executed


def _as_raised(error: Any, notebook: str) -> errors.LabkitError:
    kind = getattr(errors, error.ename, None)
    if isinstance(kind, type) and issubclass(kind, errors.LabkitError):
        return kind(error.evalue)
    return errors.LabkitError(f"{notebook}, cell {error.exec_count}: {error.ename}: {error.evalue}")


@contextmanager
def _vanishing_folder() -> Iterator[str]:
    """Make a folder that goes whatever ends this process, kill -9 included.

    A shell waits for the end of its input, which comes when we are gone. Then it also waits for
    the notebook's kernel, which looks once a second whether we are there.
    """
    folder = tempfile.mkdtemp(prefix="labkit-")
    janitor = subprocess.Popen(
        ["/bin/sh", "-c", 'read -r _ || sleep 3; rm -rf -- "$0"', folder],
        stdin=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        yield folder
    finally:
        janitor.communicate(b"done\n")


@contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def write(run: Run, executed: NotebookNode, folder: Path) -> None:
    """Write a report: the executed notebook, its page, the table and the plots."""
    write_page(executed, folder, title=run.id, notice=_notice(run))
    write_whole(folder / TABLE, tables.text(run).encode())
    for name in plots.names(run):
        write_figure(plots.draw(run, name), folder, name)


def write_page(executed: NotebookNode, folder: Path, *, title: str, notice: str) -> None:
    """Write an executed notebook, and its page."""
    write_whole(folder / NOTEBOOK, nbformat.writes(executed).encode())
    write_whole(folder / PAGE, page(executed, title=title, notice=notice).encode())


def write_figure(figure: Figure, folder: Path, name: str) -> None:
    """Write a plot as PNG and SVG."""
    for file_format in ("png", "svg"):
        write_whole(folder / f"{name}.{file_format}", plots.encoded(figure, file_format))


def render(run: Run, folder: Path) -> None:
    """Make the whole report of a recorded run; needs no privileges, no BPF and no bcc."""
    executed = execute(find(run.experiment).notebook, {"run": str(run.path.resolve())})
    write(run, executed, folder)


def page(notebook: NotebookNode, *, title: str, notice: str = "") -> str:
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

    markdown = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    exporter = HTMLExporter(
        template_name="page", extra_template_basedirs=[str(Path(__file__).parent)]
    )
    contents = re.findall(r"^## (.+)$", markdown, re.MULTILINE)
    resources = {"page": {"title": title, "notice": notice, "contents": contents}}
    body, _ = exporter.from_notebook_node(notebook, resources=resources)
    return str(body)


def _notice(run: Run) -> str:
    if run.status == "complete":
        return ""
    return f"This run is {run.status}: {run.why}. The figures are of what was measured until then."
