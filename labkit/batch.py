# SPDX-License-Identifier: MIT
"""What ``./lab run`` and ``./lab report`` do: a notebook executed, its report in a folder."""

import os
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from labkit import api, paths
from labkit.errors import CannotRunError, LabkitError
from labkit.experiments import Experiment, find, names
from labkit.progress import Progress
from labkit.store import journal
from labkit.store import run as store

if TYPE_CHECKING:
    from labkit.report.compare import Comparison


def measure_and_report(
    experiment: Experiment, accepted: dict[str, Any], *, repeat: int, quick: bool
) -> Path:
    """Have the experiment's notebook measure, write the report, and return its folder.

    Raises
    ------
    LabkitError
        What the measurement ended with; what was measured before is kept and named.
    """
    # A place that cannot be written is told before anything is measured.
    store.make(paths.reports())
    said = api.command(experiment, quick, repeat, accepted)
    folder = api.new_run(experiment.name, accepted, said, repeat)
    os.environ[api.RUN_FOLDER] = str(folder)
    try:
        from labkit.report import notebook

        with _followed(folder / store.JOURNAL, repeat, accepted["budget_s"]):
            executed = notebook.execute(
                experiment.notebook, accepted | {"repeat": repeat, "quick": quick}
            )
    except BaseException:
        with suppress(LabkitError):
            if not store.Run.read(folder).has_values:
                store.remove(folder)
        raise
    run = store.Run.read(folder)
    report_folder = store.create(paths.reports(), folder.name)
    try:
        notebook.write(run, executed, report_folder)
    except LabkitError as error:
        raise LabkitError(f"{error}; the run is {run.status}: ./lab report {run.id}") from None
    return report_folder


def report(run: store.Run) -> Path:
    """Render a recorded run and return the report's folder."""
    from labkit.report import notebook

    folder = store.make(paths.reports() / run.id)
    notebook.render(run, folder)
    return folder


def compare_and_report(runs: Sequence[store.Run], metrics: Sequence[str], kind: str) -> Path:
    """Render the comparison of runs with the first of them; return the report's folder."""
    from labkit.report import notebook

    compared = api.compare(*runs, metrics=metrics, kind=kind)
    folder = store.create(paths.reports(), store.new_id("compare", runs[0].experiment))
    try:
        where = [run.id if ":" in run.id else str(run.path.resolve()) for run in runs]
        parameters = {"runs": where, "metrics": list(metrics), "kind": kind}
        executed = notebook.execute(paths.NOTEBOOKS / "compare.ipynb", parameters)
        title = " / ".join(run.id for run in runs)
        notebook.write_page(executed, folder, title=title, notice=_of_comparison(compared.found))
        for name, ending in _ENDINGS.items():
            store.write_whole(folder / f"table.{ending}", compared.text(name).encode())
        for name, plot in compared.plots().items():
            notebook.write_figure(plot.figure, folder, name)
    except BaseException:
        with suppress(OSError):
            folder.rmdir()
        raise
    return folder


_ENDINGS = {"mail": "txt", "markdown": "md", "csv": "csv", "json": "json", "go": "go.txt"}


def _of_comparison(found: "Comparison") -> str:
    words = [f"No verdict, {why}." for refusals in found.refusals for why in refusals]
    words += [f"{mark[0].upper()}{mark[1:]}." for marks in found.marks for mark in marks]
    return " ".join(dict.fromkeys(words))


def run_all(*, quick: bool, repeat: int) -> Path:
    """Run every experiment that can run here; return the index page over all reports.

    Raises
    ------
    CannotRunError
        Where none can run.
    """
    from labkit.report import index

    outcomes: dict[str, str] = {}
    last: CannotRunError | None = None
    for name in names():
        experiment = find(name)
        try:
            accepted = api.settle(experiment, quick, {})
            processes = api.settle_repeat(experiment, quick, repeat)
            print(f"{name}: {experiment.question}", file=sys.stderr)
            api.check_that_it_runs(experiment, accepted)
            folder = measure_and_report(experiment, accepted, repeat=processes, quick=quick)
            outcomes[name] = folder.name
        except CannotRunError as error:
            last = error
            outcomes[name] = f"cannot run here: {error}"
            print(f"{name} {outcomes[name]}", file=sys.stderr)
        except LabkitError as error:
            outcomes[name] = f"failed: {error}"
            print(f"{name} {outcomes[name]}", file=sys.stderr)
    if last is not None and all(text.startswith("cannot run") for text in outcomes.values()):
        raise last
    return index.write(paths.reports(), outcomes)


@contextmanager
def _followed(path: Path, repeat: int, budget_s: float) -> Iterator[None]:
    """Show progress from a journal that another process writes."""
    ended = threading.Event()

    def follow() -> None:
        with Progress(repeat, budget_s) as progress:
            position = 0
            while not ended.wait(0.2):
                if not path.exists():
                    continue
                with path.open("rb") as file:
                    file.seek(position)
                    whole, newline, _ = file.read().rpartition(b"\n")
                position += len(whole) + len(newline)
                for line in journal.read(whole.splitlines()):
                    if line is not None:
                        progress.add(line)

    follower = threading.Thread(target=follow, daemon=True)
    follower.start()
    try:
        yield
    finally:
        ended.set()
        follower.join()
