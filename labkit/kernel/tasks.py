# SPDX-License-Identifier: MIT
"""Threads that own kernel state: a task's storages, for one, hang on the task that used them."""

from collections.abc import Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager

from labkit.errors import UsageError
from labkit.kernel import host


def measuring_cpu(wanted: int) -> int:
    """Return the CPU to measure on: the wanted one, or for -1 the last one allowed.

    The first CPU of a machine often serves interrupts and timers of all.

    Raises
    ------
    UsageError
        Where this process may not run on the wanted one, with those it may run on.
    """
    allowed = sorted(host.allowed_cpus())
    if wanted != -1 and wanted not in allowed:
        raise UsageError(f"cpu: {wanted} is not accepted; this process may run on {allowed}")
    return allowed[-1] if wanted == -1 else wanted


def working_cpus(first: int) -> list[int]:
    """Return the CPUs that this process may run on: `first`, then the others from the last down."""
    return sorted(host.allowed_cpus(), key=lambda cpu: (cpu != first, -cpu))


@contextmanager
def pinned_workers(count: int, cpu: int) -> Iterator[list[Executor]]:
    """Start `count` threads pinned to `cpu`, each of which runs what it is given, one by one.

    They end with the context, and with them what the kernel keeps for them.
    """
    workers = [
        ThreadPoolExecutor(
            1, f"lab-worker-{index}", initializer=host.pin_current_thread, initargs=(cpu,)
        )
        for index in range(count)
    ]
    try:
        yield list(workers)
    finally:
        for worker in workers:
            worker.shutdown(cancel_futures=True)
