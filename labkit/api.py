# SPDX-License-Identifier: MIT
"""What a notebook calls: measure, load and look at runs."""

import base64
import html
import json
import os
import shlex
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from labkit import paths
from labkit.errors import CannotRunError, LabkitError, UsageError
from labkit.experiments import Experiment, find
from labkit.kernel import tasks
from labkit.progress import Progress
from labkit.store import journal, published
from labkit.store import run as store
from labkit.store.published import PREFIX
from labkit.targets import here

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from labkit.report import compare as compared
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
    said = command(found, quick, repeat, accepted)
    folder = Path(prepared) if prepared else new_run(found.name, accepted, said, repeat)
    target = here.InPlace if in_place else here.Child
    with (
        closing(journal.Journal(folder / store.JOURNAL)) as log,
        Progress(repeat, accepted["budget_s"], silent=prepared is not None) as progress,
    ):
        for process in range(repeat):
            end = _record(target(found.name, accepted), log, process, progress)
            if end["status"] != "complete":
                break
    return _finished(folder, end)


def measure_by_turns(
    experiment: str,
    targets: Mapping[str, Callable[[str, dict[str, Any]], here.Measurement]],
    *,
    quick: bool = False,
    repeat: int = 0,
    command_line: str = "",
    **parameters: Any,
) -> list[Run]:
    """Measure an experiment on several targets, whose processes take turns.

    Every turn measures one process on each target, in the order given and in the opposite one by
    turns, so that slow drift of the machine touches all alike.

    Parameters
    ----------
    experiment, quick, repeat, **parameters
        As in `measure`; `repeat` processes on each target.
    targets
        What makes a measurement from name and parameters, by the target's name, which ends the
        run's id.
    command_line
        What measures the same again.

    Returns
    -------
    list of Run
        One for each target; partial ones where it was interrupted.

    Raises
    ------
    LabkitError
        As `measure`.
    """
    found = find(experiment)
    accepted = settle(found, quick, parameters)
    repeat = settle_repeat(found, quick, repeat)
    stem = store.new_id(found.name, os.uname().release)
    folders = {name: store.create(paths.runs(), f"{stem}-{name}") for name in targets}
    for folder in folders.values():
        _begun(folder, found.name, accepted, command_line, repeat, turns=stem)
    ends: dict[str, journal.Line] = {}
    with ExitStack() as stack:
        logs = {
            name: stack.enter_context(closing(journal.Journal(folder / store.JOURNAL)))
            for name, folder in folders.items()
        }
        turns = repeat * len(targets)
        progress = stack.enter_context(Progress(turns, accepted["budget_s"]))
        order = list(targets)
        for turn, name in enumerate(
            name for process in range(repeat) for name in order[:: -1 if process % 2 else 1]
        ):
            measurement = targets[name](found.name, accepted)
            process = turn // len(targets)
            ends[name] = _record(measurement, logs[name], process, progress, turn)
            if ends[name]["status"] != "complete":
                break
    failed = next((name for name, end in ends.items() if end["status"] == "failed"), None)
    for name, folder in folders.items() if failed else ():
        if name != failed and not Run.read(folder).has_values:
            store.remove(folder)
    if failed:
        _raise(Run.read(folders[failed]), ends[failed])
    return [_finished(folder, None) for folder in folders.values()]


def measure_same(experiment: str, **more: Any) -> list[Run]:
    """Measure this machine's kernel twice by turns, as ``A`` and ``B``: what noise looks like.

    Takes what `measure_by_turns` takes, but for the targets.
    """
    return measure_by_turns(experiment, {"A": here.Child, "B": here.Child}, **more)


def new_run(experiment: str, accepted: Mapping[str, Any], command_line: str, repeat: int) -> Path:
    """Make and return the folder of a run that starts now; its journal says so at once."""
    return _begun(new_run_folder(experiment), experiment, accepted, command_line, repeat)


def _begun(
    folder: Path,
    experiment: str,
    accepted: Mapping[str, Any],
    command_line: str,
    repeat: int,
    **more: Any,
) -> Path:
    """Write the first line of a journal, so that the folder is a run whatever comes."""
    header = {
        "kind": "run",
        "schema": journal.SCHEMA,
        "id": folder.name,
        "experiment": experiment,
        "parameters": accepted,
        "command": command_line,
        "repeat": repeat,
    }
    with closing(journal.Journal(folder / store.JOURNAL)) as log:
        log.add(header | more)
    return folder


def _finished(folder: Path, end: journal.Line | None) -> Run:
    """Return a run that was measured; raise what it failed with."""
    run = Run.read(folder)
    if end is not None and end["status"] == "failed":
        _raise(run, end)
    run.finish()
    return run


def _record(
    measurement: here.Measurement,
    log: journal.Journal,
    process: int,
    progress: Progress,
    turn: int | None = None,
) -> journal.Line:
    """Write the lines of one process to the journal; an interrupt ends it as partial.

    `turn` is its place among the processes of all targets, where there are several.
    """
    with _interrupts(measurement.stop):
        for line in measurement.lines():
            if line["kind"] == "start":
                line |= {"boot": 0, "process": process}
            try:
                log.add(line)
            except LabkitError:
                measurement.stop()
                raise
            progress.add(line if turn is None else line | {"process": turn})
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
    if run.samples:
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


def check_that_it_runs(experiment: Experiment, accepted: dict[str, Any]) -> None:
    """Raise a CannotRunError where nothing of the experiment can run here."""
    tasks.measuring_cpu(accepted["cpu"])
    unavailable = experiment.requirements(experiment.parameters.parse(accepted))
    if unavailable and all(unavailable.values()):
        raise CannotRunError("; ".join(dict.fromkeys(unavailable.values())))


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


class Comparison:
    """A comparison that shows itself: as the table for mail, and as plots."""

    def __init__(self, found: "compared.Comparison") -> None:
        self.found = found

    def __str__(self) -> str:
        """Return the table for a mail."""
        return self.text("mail")

    def text(self, name: str) -> str:
        """Return it as ``mail``, ``markdown``, ``csv``, ``json`` or ``go`` benchmark lines."""
        from labkit.report import formats

        if name not in formats.FORMATS:
            raise UsageError(f"format {name!r} is unknown; known: {', '.join(formats.FORMATS)}")
        return formats.FORMATS[name](self.found)

    def plots(self) -> "dict[str, Plot]":
        """Draw the change of every row, and the runs' own curves over each other."""
        from labkit.report import compare_plots

        found = self.found
        drawn = {}
        for target in range(1, len(found.runs)):
            for metric in dict.fromkeys(row.metric for row in found.rows):
                drawn[f"change-{metric}" + f"-{target}" * (target > 1)] = Plot(
                    compare_plots.forest(found, metric, target),
                    f"Change of {metric} in percent, with its interval, for each row.",
                )
        for curve in compare_plots.curves(found):
            drawn[curve.name] = Plot(compare_plots.overlay(found, curve), curve.alternative)
        return drawn

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"


def compare(*runs: "str | store.Run", metrics: Sequence[str] = (), kind: str = "raw") -> Comparison:
    """Compare runs with the first of them; see `labkit.report.compare.compare`.

    Parameters
    ----------
    *runs
        Runs, or what `load` takes.
    metrics
        Their names, or ``all``.
    kind
        raw, control or net.
    """
    from labkit.report import compare as compared

    loaded = [load(run) if isinstance(run, str) else run for run in runs]
    return Comparison(compared.compare(loaded, metrics, kind))


def runs() -> "pd.DataFrame":
    """Return a data frame of the runs on this machine, newest last."""
    import pandas as pd

    rows = []
    for folder in store.folders(paths.runs()):
        run = Run.read(folder)
        release = run.environment.get("kernel_release")
        rows.append((run.id, run.experiment, run.status, release, len(run.samples)))
    return pd.DataFrame(rows, columns=["id", "experiment", "status", "kernel", "windows"])
