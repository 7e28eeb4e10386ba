# SPDX-License-Identifier: MIT
"""Processes that run BPF programs at the same time, each pinned to a CPU of its own.

They are processes, not threads, because threads would take turns at Python's lock between calls.
They share a page with this process: its first word tells what to do, others hand turns over
between the two of a pair.
"""

import ctypes
import itertools
import json
import mmap
import os
import platform
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, Self

from labkit.errors import LabkitError
from labkit.kernel import bpf, host

#: How the two of a pair wait for each other: looking all the time, or asleep in the kernel.
Barrier = Literal["spin", "futex"]

#: Below these, producers were not at work at the same time, or not all of the time.
MINIMUM_OVERLAP_PERCENT, MINIMUM_RUNNING_PERCENT = 95, 90

_PAGE_BYTES = 4096
_PHASE = 0
_IDLE, _WARM_UP, _TIMED, _STOP = range(4)
#: Words between those that different tasks write, so that they share no cache line.
_APART = 32
_CALLS_AT_ONCE = 8
_STARTED_S, _STOPPED_S = 30, 10

_PR_SET_PDEATHSIG = 1
_FUTEX = {"x86_64": 202}.get(platform.machine(), 98)
_FUTEX_WAIT, _FUTEX_WAKE = 0, 1
_ASLEEP_NS = 2_000_000

_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True)
class Work:
    """What one producer does over and over: a program and its arguments.

    Where `turn` is 0 or 1, the producer takes turns with the other one of its pair, which is the
    producer before or after it; 0 begins.
    """

    program_fd: int
    arguments: Sequence[int]
    turn: int | None = None


@dataclass(frozen=True)
class Produced:
    """What one producer did in the timed window.

    Attributes
    ----------
    begin_ns, end_ns
        When, by CLOCK_MONOTONIC.
    cpu_ns
        For how long of that it had its CPU.
    tally
        Its element of the tallies.
    """

    begin_ns: int
    end_ns: int
    cpu_ns: int
    tally: bytes


def overlap_percent(produced: Sequence[Produced]) -> float:
    """Return for how much of the time between first begin and last end all of them ran."""
    together_ns = min(one.end_ns for one in produced) - max(one.begin_ns for one in produced)
    whole_ns = max(one.end_ns for one in produced) - min(one.begin_ns for one in produced)
    return 100 * max(together_ns, 0) / whole_ns


def running_percent(produced: Sequence[Produced]) -> float:
    """Return for how much of its time the one that had its CPU least had it."""
    return 100 * min(one.cpu_ns / (one.end_ns - one.begin_ns) for one in produced)


def shares(produced: Sequence[Produced]) -> dict[str, float]:
    """Return `overlap_percent` and `running_percent` by name, rounded."""
    return {
        "overlap_percent": round(overlap_percent(produced), 2),
        "running_percent": round(running_percent(produced), 2),
    }


def warning(produced: Sequence[Produced], *, may_sleep: bool = False) -> str:
    """Return what is wrong where producers were not at work at the same time, or nothing."""
    if overlap_percent(produced) < MINIMUM_OVERLAP_PERCENT:
        return f"producers worked together for less than {MINIMUM_OVERLAP_PERCENT} % of a window"
    if running_percent(produced) < MINIMUM_RUNNING_PERCENT and not may_sleep:
        return f"a producer had its CPU for less than {MINIMUM_RUNNING_PERCENT} % of a window"
    return ""


class Producers:
    """One process for each CPU in `cpus`; they end with the context, or with this process.

    Parameters
    ----------
    cpus
        The CPU of each producer.
    tallies_fd
        An array map with an element for each producer, in which its program keeps count.
    tally_bytes
        Size of an element.
    """

    def __init__(self, cpus: Sequence[int], tallies_fd: int, tally_bytes: int) -> None:
        self._cpus, self._tallies_fd, self._tally_bytes = cpus, tallies_fd, tally_bytes
        self._channels: list[socket.socket] = []
        self._processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        memory_fd = os.memfd_create("lab_producers")
        try:
            os.ftruncate(memory_fd, _PAGE_BYTES)
            self._words = memoryview(mmap.mmap(memory_fd, _PAGE_BYTES)).cast("I")
            for index, cpu in enumerate(self._cpus):
                ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                self._channels.append(ours)
                ours.settimeout(_STARTED_S)
                with theirs:
                    inherited = (theirs.fileno(), memory_fd, self._tallies_fd)
                    numbers = (index, cpu, self._tally_bytes, *inherited)
                    self._processes.append(
                        subprocess.Popen(
                            [sys.executable, "-m", __name__, *map(str, numbers)],
                            stdin=subprocess.DEVNULL,
                            stdout=subprocess.DEVNULL,
                            pass_fds=inherited,
                        )
                    )
        except BaseException:
            self.__exit__()
            raise
        finally:
            os.close(memory_fd)
        return self

    def __exit__(self, *_: object) -> None:
        for channel in self._channels:
            channel.close()
        for process in self._processes:
            try:
                process.wait(_STOPPED_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def run(
        self,
        work: Sequence[Work],
        *,
        barrier: Barrier,
        warm_up_s: float,
        meanwhile: Callable[[], None],
    ) -> list[Produced]:
        """Have producers work, first untimed, then for as long as `meanwhile` takes.

        Those for whom there is no work stay idle.

        Raises
        ------
        LabkitError
            Where a producer died or the kernel refused its program.
        """
        self._words[:] = memoryview(bytes(_PAGE_BYTES)).cast("I")
        channels = self._channels[: len(work)]
        try:
            for channel, one in zip(channels, work, strict=True):
                told = asdict(one) | {"barrier": barrier}
                socket.send_fds(channel, [json.dumps(told).encode()], [one.program_fd])
            for channel in channels:
                _answer(channel)
            self._words[_PHASE] = _WARM_UP
            time.sleep(warm_up_s)
            self._words[_PHASE] = _TIMED
            meanwhile()
        finally:
            self._words[_PHASE] = _STOP
        answers = [_answer(channel) for channel in channels]
        return [Produced(**one | {"tally": bytes.fromhex(one["tally"])}) for one in answers]


def _answer(channel: socket.socket) -> dict[str, Any]:
    try:
        answer: dict[str, Any] = json.loads(channel.recv(65536) or b'{"error": "it died"}')
    except OSError as error:
        answer = {"error": error.strerror or str(error)}
    if "error" in answer:
        raise LabkitError(f"a producer failed: {answer['error']}")
    return answer


# -- the producer's side --------------------------------------------------------------------------


def _produce(index: int, cpu: int, tally_bytes: int, channel_fd: int, *fds: int) -> None:
    memory_fd, tallies_fd = fds
    host.pin_current_thread(cpu)
    memory = mmap.mmap(memory_fd, _PAGE_BYTES)
    words = memoryview(memory).cast("I")
    channel = socket.socket(fileno=channel_fd)
    while True:
        message, passed, _, _ = socket.recv_fds(channel, 65536, 1)
        if not message:
            return
        work = json.loads(message)
        run = bpf.RawTracepointRun(passed[0])
        call = run.prepared(*work["arguments"])
        if work["turn"] is None:
            repeat = _repeater(call, words)
        else:
            place = _APART * (1 + index // 2)
            repeat = _turns(call, words, place, work["turn"], _hand_over(memory, place, work))
        channel.send(b"{}")
        try:
            while words[_PHASE] == _IDLE:
                time.sleep(1e-4)
            repeat(_WARM_UP)
            bpf.update_element(tallies_fd, index, bytes(tally_bytes))
            begin_ns, cpu_ns = time.monotonic_ns(), time.process_time_ns()
            repeat(_TIMED)
            answer: dict[str, Any] = {
                "begin_ns": begin_ns,
                "end_ns": time.monotonic_ns(),
                "cpu_ns": time.process_time_ns() - cpu_ns,
                "tally": bpf.element(tallies_fd, index, tally_bytes).hex(),
            }
        except OSError as error:
            answer = {"error": error.strerror}
        os.close(passed[0])
        channel.send(json.dumps(answer).encode())


def _refused() -> OSError:
    error = ctypes.get_errno()
    return OSError(error, os.strerror(error))


def _repeater(call: Callable[[], int], words: Sequence[int]) -> Callable[[int], None]:
    def repeat(phase: int) -> None:
        while words[_PHASE] == phase:
            for _ in itertools.repeat(None, _CALLS_AT_ONCE):
                if call() < 0:
                    raise _refused()

    return repeat


def _turns(
    call: Callable[[], int],
    words: Any,
    place: int,
    turn: int,
    wait_and_wake: tuple[Callable[[int], object], Callable[[], object]],
) -> Callable[[int], None]:
    wait, wake = wait_and_wake

    def repeat(phase: int) -> None:
        while words[_PHASE] == phase:
            taken = words[place]
            if taken & 1 != turn:
                wait(taken)
                continue
            if call() < 0:
                raise _refused()
            words[place] = (taken + 1) & 0xFFFFFFFF
            wake()
        # The other one may sleep until its turn, which does not come any more.
        wake()

    return repeat


def _hand_over(
    memory: mmap.mmap, place: int, work: dict[str, Any]
) -> tuple[Callable[[int], object], Callable[[], object]]:
    """Return what waits while the word at `place` has a value, and what wakes who waits there."""
    if work["barrier"] == "spin":
        return (lambda taken: None), (lambda: None)
    word = ctypes.byref(ctypes.c_uint32.from_buffer(memory, 4 * place))
    # The other one may have left just before we fall asleep.
    at_most = (ctypes.c_long * 2)(0, _ASLEEP_NS)
    return (
        lambda taken: _libc.syscall(_FUTEX, word, _FUTEX_WAIT, ctypes.c_uint32(taken), at_most),
        lambda: _libc.syscall(_FUTEX, word, _FUTEX_WAKE, 1),
    )


if __name__ == "__main__":
    parent = os.getppid()
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # who started us decides
    if os.getppid() == parent:
        _produce(*map(int, sys.argv[1:]))
