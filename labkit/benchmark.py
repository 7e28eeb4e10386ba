# SPDX-License-Identifier: MIT
"""What the harness itself costs on this machine: ``./lab benchmark``."""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from labkit import api, paths
from labkit.errors import CannotRunError
from labkit.experiments import htab_mem, local_storage
from labkit.experiments.local_storage import CHUNK, CHUNKS
from labkit.kernel import bpf, host, probe, programs, tasks
from labkit.targets import here

REPETITIONS = 7


def text() -> str:
    """Measure and return a table of what measuring costs: median and range of n repetitions.

    The loop and the control are timed inside the program, the rest by wall clock from outside.
    """
    if why_not := probe.program_type("raw_tracepoint"):
        raise CannotRunError(why_not)
    with here.alone("benchmark"):
        rows = [*_loop(), *_control(), *_producers()]
    rows += [
        ("import labkit", "ms", _seconds("import labkit"), 1e3),
        ("./lab list", "ms", _wall([str(paths.ROOT / "lab"), "list"]), 1e3),
        ("report from samples", "s", _report(), 1.0),
    ]
    lines = [f"{'':<28}{'median':>10}{'min':>10}{'max':>10}"]
    for name, unit, values, scale in rows:
        figures = (statistics.median(values), min(values), max(values))
        cells = "".join(f"{scale * value:>10.3g}" for value in figures)
        lines.append(f"{name:<28}{cells}  {unit} (n={len(values)})")
    return "\n".join(lines)


Row = tuple[str, str, list[float], float]


def _loop() -> list[Row]:
    turns = CHUNK * CHUNKS
    host.pin_current_thread(tasks.measuring_cpu(-1))
    definitions = {"CHUNK": CHUNK, "CHUNKS": CHUNKS}
    with programs.compiled(paths.BPF / "harness.c", definitions) as loaded:
        empty = bpf.RawTracepointRun(loaded.raw_tracepoint("lab_empty"))
        nothing = bpf.RawTracepointRun(loaded.raw_tracepoint("lab_nothing"))
        calls = 2000
        return [
            (
                "empty loop, a turn",
                "ns",
                _repeated(lambda: sum(empty(CHUNKS) for _ in range(calls)) / calls / turns),
                1.0,
            ),
            ("in-place run, a call", "us", _repeated(lambda: _timed(nothing, 20_000)), 1e6),
        ]


def _control() -> list[Row]:
    parameters = local_storage.LocalStorageParameters(maps=[1], cpu=tasks.measuring_cpu(-1))
    with local_storage.cases(parameters, ["sequential"]) as (case,):
        calls = 2000

        def control_ns() -> float:
            return sum(case.control(case.operations[-1]).elapsed_ns for _ in range(calls)) / (
                calls * case.operations[-1]
            )

        values = case.worker.submit(_repeated, control_ns).result()
    return [("control, a get at one map", "ns", values, 1.0)]


def _producers() -> list[Row]:
    """Measure what a producer reaches beside another one, as a part of what it reaches alone."""
    cpu = tasks.measuring_cpu(-1)
    if len(host.allowed_cpus()) < 2:
        return []
    with ExitStack() as opened:
        alone, beside = (
            opened.enter_context(
                htab_mem.cases(
                    htab_mem.HtabMemParameters(use_cases=["overwrite"], producers=n, cpu=cpu),
                    ["preallocated"],
                )
            )[0]
            for n in (1, 2)
        )
        windows = [(alone.window(False), beside.window(False)) for _ in range(REPETITIONS)]
    rates = [[one.operations / one.elapsed_ns for one in pair] for pair in windows]
    return [("two producers, each of one", "%", [two / one for one, two in rates], 100.0)]


def _report() -> list[float]:
    from labkit.report import notebook

    run = api.load(str(paths.EXAMPLES / "local-storage"))
    values = []
    for _ in range(3):
        with tempfile.TemporaryDirectory() as folder:
            begin = time.perf_counter()
            notebook.render(run, Path(folder))
            values.append(time.perf_counter() - begin)
    return values


def _repeated(measure: Callable[[], float]) -> list[float]:
    measure()
    return [measure() for _ in range(REPETITIONS)]


def _timed(call: Callable[[], object], calls: int) -> float:
    begin = time.perf_counter()
    for _ in range(calls):
        call()
    return (time.perf_counter() - begin) / calls


def _seconds(statement: str) -> list[float]:
    code = f"import time; t = time.perf_counter(); {statement}; print(time.perf_counter() - t)"
    command = [sys.executable, "-c", code]
    return _repeated(lambda: float(subprocess.check_output(command, text=True)))


def _wall(command: list[str]) -> list[float]:
    def once() -> float:
        begin = time.perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=os.environ)
        return time.perf_counter() - begin

    return _repeated(once)
