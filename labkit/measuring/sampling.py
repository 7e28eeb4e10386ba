# SPDX-License-Identifier: MIT
"""Readings at a fixed pace while something else runs."""

import time
from collections.abc import Callable

PERIOD_NS = 10_000_000


def sampled(
    read: Callable[[], int], duration_s: float, period_ns: int = PERIOD_NS
) -> tuple[list[int], list[int]]:
    """Read again and again for a while.

    Times come from one start and a fixed period, so that lateness does not add up; what was
    missed is left out, not made up for.

    Returns
    -------
    clock_ns : list of int
        When each reading was taken, since the start.
    values : list of int
        What was read.
    """
    begin_ns = time.monotonic_ns()
    clock_ns, values = [], []
    now_ns = 0
    while now_ns < duration_s * 1e9:
        clock_ns.append(now_ns)
        values.append(read())
        now_ns = time.monotonic_ns() - begin_ns
        time.sleep((period_ns - now_ns % period_ns) / 1e9)
        now_ns = time.monotonic_ns() - begin_ns
    return clock_ns, values
