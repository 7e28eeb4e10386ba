# SPDX-License-Identifier: MIT
"""What ``./lab run`` and ``./lab report`` do: a notebook executed, its report in a folder."""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from labkit import api, paths
from labkit.errors import LabkitError
from labkit.experiments import Experiment
from labkit.progress import Progress
from labkit.store import journal
from labkit.store import run as store


def measure_and_report(
    experiment: Experiment, accepted: dict[str, Any], *, repeat: int, quick: bool
) -> Path:
    """Have the experiment's notebook measure, write the report, and return its folder.

    Raises
    ------
    LabkitError
        What the measurement ended with; what was measured before is kept and named.
    """
    folder = api.new_run_folder(experiment.name)
    try:
        # A place that cannot be written is told before anything is measured.
        report_folder = store.create(paths.reports(), folder.name)
    except LabkitError:
        store.remove(folder)
        raise
    from labkit.report import notebook

    os.environ[api.RUN_FOLDER] = str(folder)
    try:
        with _followed(folder / store.JOURNAL, repeat, accepted["budget_s"]):
            executed = notebook.execute(experiment, accepted | {"repeat": repeat, "quick": quick})
        notebook.write(store.Run.read(folder), executed, report_folder)
    except BaseException:
        _tidy(folder, report_folder)
        raise
    return report_folder


def _tidy(folder: Path, report_folder: Path) -> None:
    """Remove what holds nothing: a run without a sample, a report without a file."""
    with suppress(LabkitError):
        if not store.Run.read(folder).of_kind("sample"):
            store.remove(folder)
    with suppress(OSError):
        report_folder.rmdir()


def report(run: store.Run) -> Path:
    """Render a recorded run and return the report's folder."""
    from labkit.report import notebook

    folder = paths.reports() / run.id
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise LabkitError(f"cannot make {folder}: {error.strerror}") from None
    notebook.render(run, folder)
    return folder


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
