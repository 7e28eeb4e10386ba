# SPDX-License-Identifier: MIT
"""Rounds of timed windows: calibrated, interleaved, paired with their control.

A *call* is one run of a program in the kernel, which times itself. A *window* is many calls after
an untimed one, about 10 ms together, and makes one sample; a case may also bring a window of its
own kind. A *round* takes one window of every case and of its control, in a new random order; the
two windows of a case follow each other, so that their difference is free of slow drift.
"""

import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from labkit.kernel.host import steal_ns
from labkit.measuring.statistics import MINIMUM_REPETITIONS, median, median_interval

WINDOW_NS = 10_000_000
#: Entering the kernel may take longer than what is timed there, as in a control.
AT_MOST_NS = 2 * WINDOW_NS
#: The kernel does not preempt a call: it must not hold the CPU for long.
CALL_NS = 500_000
#: 2 N operations must take twice as long as N, within this.
PROPORTIONALITY_PERCENT = 5.0
PROPORTIONALITY_PAIRS = 7
DISPROPORTIONATE = (
    f"2 N operations did not take twice as long as N within {PROPORTIONALITY_PERCENT:g} %"
)


@dataclass(frozen=True, slots=True)
class Call:
    """What one call did: operations, the time they took in ns, and counts of special ones."""

    operations: int
    elapsed_ns: int
    counts: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Window:
    """What one window found; it makes one sample.

    Attributes
    ----------
    operations, elapsed_ns
        How many, and the time they took; where several producers worked at the same time, the sum
        over them of both.
    steal_ns
        Time that the hypervisor took meanwhile.
    counts
        What else was counted or read, by name.
    series
        What was read again and again meanwhile, columns of equal length by name.
    warning
        What was wrong with it.
    """

    operations: int
    elapsed_ns: int
    steal_ns: int
    counts: Mapping[str, float] = field(default_factory=dict)
    series: Mapping[str, Sequence[int]] = field(default_factory=dict)
    warning: str = ""


@dataclass(frozen=True)
class WindowCase:
    """One thing to measure whose windows are more than calls that time themselves.

    Attributes
    ----------
    labels
        What tells it from the others, by label name.
    window
        Measures one window, of the control where its argument is true.
    notes
        As of a `Case`.
    """

    labels: Mapping[str, str | int]
    window: Callable[[bool], Window]
    notes: Sequence[str] = ()

    def prepare(self, control: bool, cpu: int) -> "tuple[Callable[[], Window], Line]":
        """Return what measures a window; there is nothing to calibrate."""
        return partial(self.window, control), {}


@dataclass(frozen=True)
class Case:
    """One thing to measure in calls that time themselves.

    Attributes
    ----------
    labels
        What tells it from the others, by label name.
    timed, control
        Make one call of (about) the given number of operations; the control does all but the
        operation itself.
    operations
        The numbers of operations that a call can make: a range with a step.
    cycle
        Operations after which a call touches the same things again; a window makes whole cycles
        as nearly as calls allow, because operations of one cycle may differ in cost.
    worker
        The thread that makes the calls; the kernel's state belongs to it.
    warm_up
        Operations made untimed before each timed window, so that it finds in the CPU's caches
        what it would find there if nothing else had run meanwhile; one call at least.
    facts
        Counts of every timed window that are known beforehand, such as the memory of a map.
    notes
        What is to be said of it, each once.
    """

    labels: Mapping[str, str | int]
    timed: Callable[[int], Call]
    control: Callable[[int], Call]
    operations: range
    worker: Executor
    cycle: int = 1
    warm_up: int = 0
    facts: Mapping[str, float] = field(default_factory=dict)
    notes: Sequence[str] = ()

    def prepare(self, control: bool, cpu: int) -> "tuple[Callable[[], Window], Line]":
        """Calibrate; return what measures a window, and what was found."""
        calls = (
            _Calls(self.control) if control else _Calls(self.timed, self.warm_up, facts=self.facts)
        )
        self.worker.submit(_calibrate, calls, self.operations, self.cycle).result()
        return lambda: self.worker.submit(_window, calls, cpu).result(), {
            "operations_per_call": calls.operations,
            "calls_per_window": calls.calls,
            "proportionality": round(calls.proportionality, 4),
        }


@dataclass
class _Calls:
    """Calls of one kind, with what calibration found."""

    call: Callable[[int], Call]
    warm_up: int = 0
    operations: int = 0
    calls: int = 0
    proportionality: float = 0.0
    facts: Mapping[str, float] = field(default_factory=dict)


@dataclass
class _Series:
    """One case, timed or control."""

    case: int
    control: bool
    window: Callable[[], Window]
    values_ns: list[float] = field(default_factory=list)


Line = dict[str, Any]


def measure(
    cases: Sequence[Case | WindowCase],
    *,
    cpu: int,
    budget_s: float,
    precision_percent: float,
    seed: int,
) -> Iterator[Line]:
    """Measure the cases in rounds and yield the lines of a journal as they come to be.

    Stops after the round in which every interval (95 % of the median's coverage, over rounds) of
    timed, control and net became narrower than `precision_percent`, or `budget_s` was used; the
    last line, of kind ``stop``, says which. The caller may stop earlier by closing the generator.

    Yields
    ------
    dict
        ``case`` lines with what calibration found, then ``sample`` lines, after each round a
        ``round`` line, at last a ``stop`` line; see ``store/journal.py``.
    """
    series = []
    for note in dict.fromkeys(note for case in cases for note in case.notes):
        yield {"kind": "warning", "message": note}
    for index, case in enumerate(cases):
        line: Line = {"kind": "case", "case": index, "labels": dict(case.labels)}
        pair = []
        for control in (False, True):
            window, found = case.prepare(control, cpu)
            pair.append(_Series(index, control, window))
            if not _proportional(found.get("proportionality", 2.0)):
                yield {"kind": "warning", "case": index, "message": DISPROPORTIONATE}
            if found:
                line["control" if control else "timed"] = found
        series.append(pair)
        yield line

    order = random.Random(seed)
    begin = time.monotonic()
    round_index = 0
    while True:
        for pair in order.sample(series, len(series)):
            for one in order.sample(pair, 2):
                yield from _sampled(one, round_index)
        elapsed_s = time.monotonic() - begin
        widest = _widest_half_width_percent(series)
        yield {
            "kind": "round",
            "round": round_index,
            "elapsed_s": round(elapsed_s, 3),
            "widest_half_width_percent": widest,
        }
        if widest is not None and widest <= precision_percent:
            why = f"every interval within {precision_percent:g} %"
            break
        if elapsed_s >= budget_s:
            why = f"time budget of {budget_s:g} s used"
            break
        round_index += 1
    yield {"kind": "stop", "why": why, "rounds": round_index + 1}


def _sampled(series: _Series, round_index: int) -> Iterator[Line]:
    """Measure one window and yield its lines."""
    window = series.window()
    series.values_ns.append(window.elapsed_ns / window.operations)
    place = {"case": series.case, "control": series.control, "round": round_index}
    yield (
        {"kind": "sample"}
        | place
        | {
            "operations": window.operations,
            "elapsed_ns": window.elapsed_ns,
            "steal_ns": window.steal_ns,
            "counts": dict(window.counts),
        }
    )
    if window.series:
        yield {"kind": "series"} | place | {"columns": dict(window.series)}
    if window.warning:
        yield {"kind": "warning", "case": series.case, "message": window.warning}


def _calibrate(series: _Calls, accepted: range, cycle: int) -> None:
    """Find operations a call and calls a window, and check that 2 N take twice as long as N."""
    _warm_up(series, accepted[0])
    per_operation_ns = min(
        _ns_per_operation(series.call, accepted[0], 1 + cycle // accepted[0]) for _ in range(3)
    )
    affordable = [n for n in accepted if n * per_operation_ns <= CALL_NS] or [accepted[0]]
    cycles = max(1, round(WINDOW_NS / per_operation_ns / cycle))
    series.operations = min(
        reversed(affordable[len(affordable) // 2 :]),
        key=lambda n: abs(round(cycles * cycle / n) * n - cycles * cycle),
    )
    wanted = round(cycles * cycle / series.operations)
    call_ns = min(_wall_ns(series.call, series.operations) for _ in range(3))
    series.calls = max(1, min(wanted, AT_MOST_NS // call_ns))

    index = accepted.index(series.operations)
    low, high = (accepted[(index - 1) // 2], accepted[index]) if index else accepted[:2]
    few = max(1, series.calls // 10, cycle // high)
    # By turns, so that a CPU that changes speed shows both its fastest; noise only ever adds.
    pairs = [
        (
            _ns_per_operation(series.call, high, few),
            _ns_per_operation(series.call, low, round(few * high / low)),
        )
        for _ in range(PROPORTIONALITY_PAIRS)
    ]
    fastest_high, fastest_low = map(min, zip(*pairs, strict=True))
    series.proportionality = 2 * fastest_high / fastest_low


def _proportional(ratio: float) -> bool:
    return abs(ratio / 2 - 1) <= PROPORTIONALITY_PERCENT / 100


def _ns_per_operation(call: Callable[[int], Call], operations: int, calls: int) -> float:
    made = [call(operations) for _ in range(calls)]
    return max(sum(one.elapsed_ns for one in made), 1) / sum(one.operations for one in made)


def _wall_ns(call: Callable[[int], Call], operations: int) -> int:
    begin_ns = time.perf_counter_ns()
    call(operations)
    return max(1, time.perf_counter_ns() - begin_ns)


def _warm_up(series: _Calls, operations: int) -> None:
    for _ in range(max(1, -(-series.warm_up // operations))):
        series.call(operations)


def _window(series: _Calls, cpu: int) -> Window:
    _warm_up(series, series.operations)
    steal_before_ns = steal_ns(cpu)
    operations = elapsed_ns = 0
    counts: dict[str, float] = dict(series.facts)
    for _ in range(series.calls):
        call = series.call(series.operations)
        operations += call.operations
        elapsed_ns += call.elapsed_ns
        for name, count in call.counts.items():
            counts[name] = counts.get(name, 0) + count
    return Window(operations, elapsed_ns, steal_ns(cpu) - steal_before_ns, counts)


def _widest_half_width_percent(series: Sequence[Sequence[_Series]]) -> float | None:
    """Return the widest interval of timed, control and net, as a part of the timed median.

    None while there are too few rounds for an interval.

    All three are held against the timed median: a net of nearly nothing has no relative width.
    """
    if len(series[0][0].values_ns) < MINIMUM_REPETITIONS:
        return None
    widest = 0.0
    for timed, control in series:
        net = [a - b for a, b in zip(timed.values_ns, control.values_ns, strict=True)]
        center = median(timed.values_ns)
        for values in (timed.values_ns, control.values_ns, net):
            interval = median_interval(values)
            widest = max(widest, (interval.high - interval.low) / 2 / center)
    return round(100 * widest, 3)
