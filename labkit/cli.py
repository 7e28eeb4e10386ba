# SPDX-License-Identifier: MIT
"""The command line. Each command is a function that returns the exit status.

Exit status: 0 done, 1 failed, 2 usage, 3 cannot run here, 130 interrupted.
"""

import argparse
import os
import sys
from contextlib import suppress
from typing import Any, NoReturn

from labkit import paths
from labkit.errors import LabkitError, UsageError


def main(arguments: list[str] | None = None) -> int:
    """Run one command and return its exit status; errors are one line on standard error."""
    try:
        parser = _parser()
        options, more = parser.parse_known_args(arguments)
        options.more = more
        if more and options.command is not _test:
            parser.error(f"unrecognized arguments: {' '.join(more)}")
        status: int = options.command(options)
        return status
    except LabkitError as error:
        print(f"lab: {error}", file=sys.stderr)
        return error.exit_status
    except KeyboardInterrupt:
        print("lab: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # Whoever read our output has gone; nothing is left to say, and nowhere to say it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


class _Parser(argparse.ArgumentParser):
    """Refuses in one line, as every command does."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}; {self.prog} --help says what is accepted")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="lab", description="Measure BPF on real kernels.", allow_abbrev=False)
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")

    def add(name: str, function: Any, help: str) -> argparse.ArgumentParser:
        command = commands.add_parser(name, help=help, description=help, allow_abbrev=False)
        command.set_defaults(command=function)
        return command

    listing = add("list", _list, "experiments, and whether they run here or why not")
    listing.add_argument("experiment", nargs="?", help="say its parameters, too")
    add("doctor", _doctor, "what is wrong with this machine for measuring, and what mends it")
    run = add("run", _run, "measure and render a report; prints its folder last")
    run.add_argument("experiment", nargs="?")
    run.add_argument("--all", action="store_true", help="every experiment that can run here")
    run.add_argument(
        "-p",
        "--parameter",
        nargs=2,
        action="append",
        default=[],
        metavar=("KEY", "VALUE"),
        help="a parameter of the experiment (./lab list EXPERIMENT names them)",
    )
    run.add_argument("--quick", action="store_true", help="fewer cases, less time, one process")
    run.add_argument("--repeat", type=int, metavar="N", help="measure in N processes")
    run.add_argument(
        "--aa",
        action="store_true",
        help="measure twice as many processes, as A and B by turns, and compare the two",
    )
    compare = add("compare", _compare, "what changed between runs, and whether that is known")
    compare.add_argument("runs", nargs="+", metavar="RUN", help="the base first; as for show")
    compare.add_argument(
        "--metric", action="append", default=[], metavar="NAME", help="which metric; all for all"
    )
    compare.add_argument("--kind", choices=("raw", "control", "net"), default="raw")
    compare.add_argument(
        "--format",
        choices=("mail", "markdown", "csv", "json", "go"),
        default="mail",
        help="go is for benchstat -col run",
    )
    compare.add_argument("--report", action="store_true", help="render a report; its folder last")
    compare.add_argument(
        "--fail-on", choices=("worse",), help="end with status 1 where a row is worse"
    )
    show = add("show", _show, "the plain-text table of a run")
    show.add_argument("run", nargs="?", default="last", help="folder, id, or its beginning")
    report = add("report", _report, "render the report of a recorded run again")
    report.add_argument("run", nargs="?", default="last", help="folder, id, or its beginning")
    reading = add("import", _import, "the kernel tool's own output, or a mail with it, as runs")
    reading.add_argument("file", help="a file; - reads standard input")
    add("benchmark", _benchmark, "what the harness itself costs on this machine")
    test = add("test", _test, "run the tests; what else is given goes to pytest")
    test.add_argument("--fast", action="store_true", help="leave out guests and the browser")
    measure = add("measure", _measure, "parameters (JSON) in, journal out: the measuring process")
    measure.add_argument("experiment")
    return parser


def _measure(options: argparse.Namespace) -> int:
    from labkit.targets import here

    return here.serve(options.experiment)


def _list(options: argparse.Namespace) -> int:
    from labkit import experiments

    for name in [options.experiment] if options.experiment else experiments.names():
        experiment = experiments.find(name)
        print(f"{name}\n    {experiment.question}")
        for variant, why in experiment.requirements(experiment.parameters()).items():
            print(f"    {variant:<16}{'unavailable: ' + why if why else 'runs here'}")
        if options.experiment:
            print(experiment.parameters.describe())
    return 0


def _doctor(options: argparse.Namespace) -> int:
    from labkit import doctor

    checks = list(doctor.checks())
    print(doctor.render(checks))
    return 1 if any(check.state == "wrong" for check in checks) else 0


def _run(options: argparse.Namespace) -> int:
    from labkit import api, batch, experiments

    if bool(options.experiment) == options.all:
        raise UsageError(
            "run takes the name of an experiment, or --all; lab run --help says what is accepted"
        )
    if options.all:
        if options.parameter or options.aa:
            raise UsageError("--all takes --quick and --repeat, no -p and no --aa")
        print(batch.run_all(quick=options.quick, repeat=_repeat(options)))
        return 0
    experiment = experiments.find(options.experiment)
    given = {key: _value(value) for key, value in options.parameter}
    accepted = api.settle(experiment, options.quick, given)
    repeat = api.settle_repeat(experiment, options.quick, _repeat(options))
    api.check_that_it_runs(experiment, accepted)
    if options.aa:
        said = api.command(experiment, options.quick, repeat, accepted) + " --aa"
        runs = api.measure_same(
            experiment.name, quick=options.quick, repeat=repeat, command_line=said, **accepted
        )
        print(api.compare(*runs))
        print(batch.compare_and_report(runs, (), "raw"))
        return 0
    print(batch.measure_and_report(experiment, accepted, repeat=repeat, quick=options.quick))
    return 0


def _compare(options: argparse.Namespace) -> int:
    from labkit import api, batch

    loaded = [api.load(run) for run in options.runs]
    compared = api.compare(*loaded, metrics=options.metric, kind=options.kind)
    print(compared.text(options.format), end="")
    if options.report:
        print(batch.compare_and_report(loaded, options.metric, options.kind))
    return 1 if options.fail_on == "worse" and compared.found.worse else 0


def _repeat(options: argparse.Namespace) -> int:
    """Return the processes asked for, 0 where none were named."""
    if options.repeat is not None and options.repeat < 1:
        raise UsageError(f"repeat: {options.repeat} is not accepted; it takes 1 or more")
    return options.repeat or 0


def _value(text: str) -> Any:
    """Convert as papermill's ``-p`` does: truth values and numbers, else text."""
    truth = {"true": True, "True": True, "false": False, "False": False}
    if text in truth:
        return truth[text]
    for kind in (int, float):
        with suppress(ValueError):
            return kind(text)
    return text


def _show(options: argparse.Namespace) -> int:
    from labkit import api

    print(api.load(options.run).table(), end="")
    return 0


def _report(options: argparse.Namespace) -> int:
    from labkit import api, batch

    print(batch.report(api.load(options.run)))
    return 0


def _import(options: argparse.Namespace) -> int:
    from labkit import api

    found, runs = api.import_text(options.file)
    for number, words in found.not_understood:
        print(f"line {number} not understood: {words}", file=sys.stderr)
    if more := found.not_understood_count - len(found.not_understood):
        print(f"and {more:,} more lines not understood", file=sys.stderr)
    if found.progress_lines:
        print(f"{found.progress_lines:,} lines of progress are no results", file=sys.stderr)
    if not runs:
        raise LabkitError(f"{options.file}: no figures of the kernel's tool in it")
    for run in runs:
        print(run.path)
    return 0


def _benchmark(options: argparse.Namespace) -> int:
    from labkit import benchmark

    print(benchmark.text())
    return 0


def _test(options: argparse.Namespace) -> int:
    import pytest

    chosen = ["-m", "not slow"] if options.fast else []
    return int(pytest.main([*chosen, *options.more, f"--rootdir={paths.ROOT}"]))
