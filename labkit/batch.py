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
    from labkit.report import notebook

    folder = api.new_run_folder(experiment.name)
    try:
        report = store.create(paths.reports(), folder.name)
        os.environ[api.RUN_FOLDER] = str(folder)
        parameters = accepted | {"repeat": repeat, "quick": quick}
        with _followed(folder / store.JOURNAL, repeat, accepted["budget_s"]):
            notebook.execute(experiment, parameters, report)
        run = api.load(str(folder))
        notebook.finish(run, report)
    except BaseException:
        with suppress(LabkitError):
            if not store.Run.read(folder).of_kind("sample"):
                store.remove(folder)
        raise
    return report


def report(run: api.Run) -> Path:
    """Render a recorded run and return the report's folder."""
    from labkit.report import notebook

    folder = paths.reports() / run.id
    folder.mkdir(parents=True, exist_ok=True)
    notebook.write(run, folder)
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
