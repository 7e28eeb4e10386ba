# SPDX-License-Identifier: MIT
"""What a notebook calls: measure, load and look at runs."""

import base64
import json
import os
import shlex
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from labkit import paths
from labkit.errors import CannotRunError, LabkitError, UsageError
from labkit.experiments import Experiment, find
from labkit.progress import Progress
from labkit.store import journal, published
from labkit.store import run as store
from labkit.store.published import PREFIX
from labkit.targets import here

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from labkit.report.findings import Findings
    from labkit.store.imported import Text

#: Set by ``./lab run`` to the folder that it made for what its notebook measures.
RUN_FOLDER = "LABKIT_RUN_FOLDER"


class Plot:
    """A drawn plot that shows itself in a notebook, with a text for those who cannot see it."""

    def __init__(self, figure: "Figure", alternative: str) -> None:
        self.figure = figure
        self.alternative = alternative

    def _repr_mimebundle_(self, **_: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        from labkit.report import plots

        data = base64.b64encode(plots.encoded(self.figure, "png")).decode()
        bundle = {"image/png": data, "text/plain": self.alternative}
        return bundle, {"image/png": {"alt": self.alternative}}


class Run(store.Run):
    """A run that shows itself: as estimates, as a table for mail, as plots."""

    def summary(self) -> "pd.DataFrame":
        """Return the estimates: see `labkit.report.summary.summary`."""
        from labkit.report import summary

        return summary.summary(self).copy()

    def table(self) -> str:
        """Return the plain-text table, at most 72 columns wide."""
        from labkit.report import tables

        return tables.text(self)

    @property
    def plots(self) -> list[str]:
        """Return the names that `plot` takes."""
        from labkit.report import plots

        return plots.names(self)

    def plot(self, name: str = "") -> Plot:
        """Draw the plot called `name`, the first one where none is named."""
        from labkit.report import plots

        name = name or self.plots[0]
        return Plot(plots.draw(self, name), plots.alternative(self, name))

    def findings(self) -> "Findings | None":
        """Return the fitted cache and the crossings, with intervals."""
        from labkit.report import findings

        return findings.findings(self)

    def _repr_html_(self) -> str:
        from labkit.report import tables

        return tables.html(self)


def measure(
    experiment: str,
    *,
    quick: bool = False,
    repeat: int = 0,
    in_place: bool = False,
    **parameters: Any,
) -> Run:
    """Measure an experiment on this machine and return the run.

    Parameters
    ----------
    experiment
        Its name, as `labkit.names` lists them.
    quick
        A short run: fewer cases and less time where `parameters` leave the default.
    repeat
        Fresh processes to measure in, one after the other; 0 takes the experiment's default.
    in_place
        Measure once, in this process, which then needs the privileges.
    **parameters
        Of the experiment; see ``find(experiment).parameters``.

    Returns
    -------
    Run
        Complete, or partial where it was interrupted (Ctrl-C, the stop button).

    Raises
    ------
    UsageError
        For an unknown name or a value that is not accepted, before anything is loaded.
    CannotRunError
        Where none of the experiment's variants can run here.
    LabkitError
        Where measuring failed; what was measured before is kept and named.
    """
    found = find(experiment)
    accepted = settle(found, quick, parameters)
    repeat = settle_repeat(found, quick, repeat)
    if in_place and repeat != 1:
        raise UsageError(f"repeat: {repeat} is not accepted with in_place; it takes 1")
    prepared = os.environ.pop(RUN_FOLDER, None)
    folder = Path(prepared) if prepared else new_run_folder(found.name)
    log = journal.Journal(folder / store.JOURNAL)
    target = here.InPlace if in_place else here.Child
    try:
        log.add(
            {
                "kind": "run",
                "schema": journal.SCHEMA,
                "id": folder.name,
                "experiment": found.name,
                "parameters": accepted,
                "command": command(found, quick, repeat, accepted),
                "repeat": repeat,
            }
        )
        with Progress(repeat, accepted["budget_s"], silent=prepared is not None) as progress:
            for process in range(repeat):
                end = _record(target(found.name, accepted), log, process, progress)
                if end["status"] != "complete":
                    break
    finally:
        log.close()
    run = Run.read(folder)
    if end["status"] == "failed":
        _raise(run, end)
    run.finish()
    return run


def _record(
    measurement: here.Measurement, log: journal.Journal, process: int, progress: Progress
) -> journal.Line:
    """Write the lines of one process to the journal; an interrupt ends it as partial."""
    with _interrupts(measurement.stop):
        for line in measurement.lines():
            if line["kind"] == "start":
                line |= {"boot": 0, "process": process}
            try:
                log.add(line)
            except LabkitError:
                measurement.stop()
                raise
            progress.add(line)
    return line


@contextmanager
def _interrupts(stop: Callable[[], None]) -> Iterator[None]:
    """Have SIGINT call `stop` instead of raising in the middle of whatever runs."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = signal.signal(signal.SIGINT, lambda *_: stop())
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)


def _raise(run: Run, end: journal.Line) -> None:
    """Raise what the measuring process ended with; a run without a sample is removed."""
    kinds = {kind.exit_status: kind for kind in (LabkitError, UsageError, CannotRunError)}
    why = str(end["why"])
    if run.of_kind("sample"):
        why += f"; measured before: {run.id}"
    else:
        store.remove(run.path)
    raise kinds.get(end["exit_status"], LabkitError)(why)


def settle(experiment: Experiment, quick: bool, given: dict[str, Any]) -> dict[str, Any]:
    """Return all parameters of a run as plain values, checked.

    `quick` changes what was left at its default: a notebook passes all parameters, always.
    """
    accepted = experiment.parameters.parse(given).as_dict()
    default = experiment.parameters().as_dict()
    if quick:
        changes = {k: v for k, v in experiment.quick.items() if accepted[k] == default[k]}
        accepted |= experiment.parameters.parse(changes).as_dict() | {
            k: v for k, v in accepted.items() if k not in changes
        }
    return accepted


def settle_repeat(experiment: Experiment, quick: bool, repeat: int) -> int:
    """Return how many processes to measure in."""
    if isinstance(repeat, bool) or not isinstance(repeat, int) or not 0 <= repeat <= 1000:
        raise UsageError(
            f"repeat: {repeat!r} is not accepted; it takes a whole number from 1 to 1000"
        )
    return repeat or (1 if quick else experiment.repeat)


def command(experiment: Experiment, quick: bool, repeat: int, accepted: dict[str, Any]) -> str:
    """Return the command line that measures the same again."""
    default = settle(experiment, quick, {})
    words = ["./lab run", experiment.name]
    words += ["--quick"] if quick else []
    words += [f"--repeat {repeat}"] if repeat != settle_repeat(experiment, quick, 0) else []
    for name, value in accepted.items():
        if value != default[name]:
            text = value if isinstance(value, str) else json.dumps(value)
            words.append(f"-p {name} {shlex.quote(text)}")
    return " ".join(words)


def new_run_folder(experiment: str) -> Path:
    """Make and return the folder of a run that starts now."""
    return store.create(paths.runs(), store.new_id(experiment, os.uname().release))


def import_text(name: str) -> "tuple[Text, list[Run]]":
    """Read what the kernel's benchmark tool printed, in a log or a saved mail, as runs.

    Parameters
    ----------
    name
        A file; ``-`` reads standard input.

    Returns
    -------
    Text
        What was read, with the lines that were not understood.
    list of Run
        A run for each experiment in it and each heading such as BEFORE and AFTER.

    Raises
    ------
    UsageError
        For a file that cannot be read, is empty, or is no text.
    """
    from labkit.store import imported, mail

    try:
        with sys.stdin.buffer if name == "-" else Path(name).open("rb") as source:
            found = imported.read(mail.lines(source, name))
    except OSError as error:
        raise UsageError(f"cannot read {name}: {error.strerror}") from None
    runs = []
    for experiment, lines in imported.runs(found, f"./lab import {shlex.quote(name)}"):
        folder = store.create(paths.runs(), store.new_id(experiment, "imported"))
        content = b"".join(map(journal.encode, lines(folder.name)))
        store.write_whole(folder / store.JOURNAL, content)
        run = Run.read(folder)
        run.finish()
        runs.append(run)
    return found, runs


def load(name: str) -> Run:
    """Return a run: by folder, by id or the beginning of one, ``last``, or ``published:NAME``."""
    if name.startswith(PREFIX):
        return Run(Path(name), published.lines(name), 0)
    return Run.read(store.locate(name, [paths.runs(), paths.EXAMPLES]))


def runs() -> "pd.DataFrame":
    """Return a data frame of the runs on this machine, newest last."""
    import pandas as pd

    rows = []
    for folder in store.folders(paths.runs()):
        run = Run.read(folder)
        release = run.environment.get("kernel_release")
        rows.append((run.id, run.experiment, run.status, release, len(run.of_kind("sample"))))
    return pd.DataFrame(rows, columns=["id", "experiment", "status", "kernel", "windows"])
