# SPDX-License-Identifier: MIT
"""A measurement on this machine: in this process, or in a child process of its own."""

import dataclasses
import errno
import fcntl
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Generator, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol

from labkit.errors import CannotRunError, LabkitError, UsageError
from labkit.experiments import code_sha256, find
from labkit.kernel import bpf, host, probe, tasks
from labkit.measuring import loop
from labkit.store import journal

#: How long a stopped measurement may take to end by itself before its process ends at once.
STOP_GRACE_S = 1.5
#: The kernel frees maps some time after their last user is gone.
FREE_S = 5.0

LOCK = Path("/run/lock" if Path("/run/lock").is_dir() else "/tmp", "labkit-measuring")

Line = dict[str, Any]


class Measurement(Protocol):
    """Something that yields the lines of one process's journal and can be stopped meanwhile."""

    def lines(self) -> Iterator[Line]:
        """Yield the lines, from ``start`` to ``end``."""

    def stop(self) -> None:
        """End soon; the lines that follow say that the measurement is partial."""


class InPlace:
    """A measurement in this process, which needs the privileges itself."""

    def __init__(self, name: str, parameters: Mapping[str, Any]) -> None:
        self._experiment = find(name)
        parsed = self._experiment.parameters.parse(parameters)
        self._parameters = dataclasses.replace(parsed, cpu=tasks.measuring_cpu(parsed.cpu))
        self._stopped = threading.Event()
        self._leaked: list[str] = []

    def stop(self) -> None:
        """End after the window that is being measured."""
        self._stopped.set()

    def lines(self) -> Iterator[Line]:
        """Measure and yield the journal's lines; errors become the ``end`` line."""
        seed = self._parameters.seed or random.SystemRandom().randrange(1, 2**32)
        yield {
            "kind": "start",
            "experiment": self._experiment.name,
            "parameters": self._parameters.as_dict(),
            "labels": list(self._experiment.labels),
            "metrics": [dataclasses.asdict(metric) for metric in self._experiment.metrics],
            "seed": seed,
            "harness": "labkit",
            "code_sha256": code_sha256(self._experiment),
            "environment": host.environment(),
            "noise": host.noise(),
        }
        end: Line = {"kind": "end", "status": "complete", "why": "", "exit_status": 0}
        try:
            with closing(self._measured(seed)) as measured:
                for line in measured:
                    yield line
                    if line["kind"] == "stop":
                        end["why"] = line["why"]
                    elif self._stopped.is_set() and line["kind"] != "requirement":
                        end |= {"status": "partial", "why": "stopped", "exit_status": 130}
                        break
        except LabkitError as error:
            end |= {"status": "failed", "why": str(error), "exit_status": error.exit_status}
        except MemoryError:
            end |= {"status": "failed", "why": "out of memory", "exit_status": 1}
        except OSError as error:
            end |= {"status": "failed", "why": _mend(error), "exit_status": 1}
        yield end | {"noise": host.noise(), "leaked": self._leaked}

    def _measured(self, seed: int) -> Generator[Line, None, None]:
        unavailable = self._experiment.requirements(self._parameters)
        for variant, why in unavailable.items():
            yield {"kind": "requirement", "variant": variant, "unavailable": why}
        available = [variant for variant, why in unavailable.items() if not why]
        if not available:
            raise CannotRunError("; ".join(dict.fromkeys(unavailable.values())))
        if why_not := probe.objects():
            raise CannotRunError(why_not)
        with alone(self._experiment.name):
            before = bpf.own_objects()
            _wait_until_gone(before)
            links = bpf.link_ids()
            with self._experiment.cases(self._parameters, available) as cases:
                yield from loop.measure(
                    cases,
                    cpu=self._parameters.cpu,
                    budget_s=self._parameters.budget_s,
                    precision_percent=self._parameters.precision_percent,
                    seed=seed,
                )
            # Not sooner: to look at thousands of maps takes the kernel seconds.
            left = _wait_until_gone(bpf.own_objects() - before)
            self._leaked = [
                *(f"{one.kind} {one.name} (id {one.id})" for one in sorted(left)),
                *(f"link (id {identity})" for identity in sorted(bpf.link_ids() - links)),
            ]


def _wait_until_gone(objects: frozenset[bpf.KernelObject]) -> frozenset[bpf.KernelObject]:
    """Wait until the kernel holds none of some objects; return those that stay.

    A run's maps go some time after their last user, and until then hold cache slots.
    """
    deadline = time.monotonic() + FREE_S
    while (left := bpf.own_objects() & objects) and time.monotonic() < deadline:
        time.sleep(0.05)
    return left


@contextmanager
def alone(experiment: str) -> Iterator[None]:
    """Hold the machine's measuring lock: two measurements at once would measure each other.

    Raises
    ------
    CannotRunError
        Where another process holds it, with what that process said of itself.
    LabkitError
        Where this user may not use it.
    """
    try:
        descriptor = _open_lock()
    except OSError as error:
        raise LabkitError(
            f"cannot use {LOCK}, which keeps measurements apart: {error.strerror}; "
            "remove it as root"
        ) from None
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(descriptor, 200, 0).decode(errors="replace").strip()
            raise CannotRunError(
                f"this machine is measuring already ({holder}): wait until that has ended"
            ) from None
        os.ftruncate(descriptor, 0)
        since = time.strftime("%H:%M:%S")
        os.pwrite(descriptor, f"{experiment}, process {os.getpid()}, since {since}\n".encode(), 0)
        yield
    finally:
        os.close(descriptor)


def _open_lock() -> int:
    """Open the lock file, which every user may write, whoever made it."""
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        return os.open(LOCK, flags)
    except FileNotFoundError:
        descriptor = os.open(LOCK, flags | os.O_CREAT, 0o666)
        os.fchmod(descriptor, 0o666)
        return descriptor


def _mend(error: OSError) -> str:
    words = {
        "EPERM": "the kernel refused (EPERM): run as root, or see ./lab doctor",
        "EMFILE": "too few open files: raise the limit (ulimit -n 1024)",
        "ENOMEM": "the kernel is out of memory for BPF maps: ask for fewer maps or keys",
    }
    return words.get(errno.errorcode.get(error.errno or 0, ""), str(error))


class Child:
    """A measurement in a fresh child process, the command ``labkit measure``."""

    def __init__(self, name: str, parameters: Mapping[str, Any]) -> None:
        self._words = tempfile.TemporaryFile()  # noqa: SIM115 (closed when the lines end)
        # A session of its own: Ctrl-C reaches the child as the end of its input, and only so.
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "labkit", "measure", name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._words,
            env=os.environ | {"OPENBLAS_NUM_THREADS": "1"},
            start_new_session=True,
        )
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(dict(parameters)).encode() + b"\n")
            self._process.stdin.flush()

    def stop(self) -> None:
        """Close the child's input, which ends it."""
        assert self._process.stdin is not None
        self._process.stdin.close()

    def lines(self) -> Iterator[Line]:
        """Yield the child's lines; where it died, an ``end`` line says how."""
        assert self._process.stdout is not None
        last: Line | None = None
        try:
            for last in journal.read(self._process.stdout):
                if last is not None:
                    yield last
        finally:
            self.stop()
            self._process.stdout.close()
            try:
                status = self._process.wait(4 * STOP_GRACE_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                status = self._process.wait()
            self._words.seek(0)
            words = self._words.read().decode(errors="replace").strip().splitlines()
            self._words.close()
        if last is None or last["kind"] != "end":
            how = f"was killed by {signal.Signals(-status).name}" if status < 0 else "ended early"
            why = f"the measuring process {how}" + (f": {words[-1]}" if words else "")
            yield {"kind": "end", "status": "failed", "why": why, "exit_status": 1, "leaked": []}


def serve(name: str) -> int:
    """Be the child: parameters on standard input, journal on standard output; return a status.

    The end of standard input stops the measurement, as do SIGINT and SIGTERM; where it does not
    end soon after, the process ends at once, and the kernel frees its programs and maps.
    """
    try:
        parameters = json.loads(sys.stdin.buffer.readline())
        if not isinstance(parameters, dict):
            raise ValueError
    except (ValueError, RecursionError):
        raise UsageError("standard input must begin with a line of JSON, the parameters") from None
    measurement = InPlace(name, parameters)

    def stop(*_: object) -> None:
        measurement.stop()
        end_at_once = threading.Timer(STOP_GRACE_S, os._exit, (1,))
        end_at_once.daemon = True
        end_at_once.start()

    def watch_input() -> None:
        while os.read(sys.stdin.fileno(), 4096):
            pass
        stop()

    signal.signal(signal.SIGINT, stop)
    signal.signal(signal.SIGTERM, stop)
    threading.Thread(target=watch_input, daemon=True).start()
    line: Line = {}
    with suppress(BrokenPipeError):
        for line in measurement.lines():
            sys.stdout.buffer.write(journal.encode(line))
            sys.stdout.buffer.flush()
    return int(line.get("exit_status", 1))
