# SPDX-License-Identifier: MIT
"""Small hash maps: updates of a full one, on one CPU and on more, and loops on one key."""

import ctypes
import os
import struct
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial

from labkit.errors import LabkitError, UsageError
from labkit.experiments._experiment import Bars, Curve, Experiment, Metric, Published
from labkit.experiments._parameters import Parameters, parameter
from labkit.kernel import bpf, host, probe, programs, tasks
from labkit.kernel.producers import Producers, Work, shares, warning
from labkit.measuring.loop import Call, Case, Window, WindowCase

ENTRIES = 1000
E2BIG = 7
CHUNK, CHUNKS = 100, 70

FLAGS = {"preallocated": 0, "not_preallocated": bpf.F_NO_PREALLOC}
FULL_UPDATE = "full_update"
WITHOUT_UPDATE = programs.Without("lab_hash", -E2BIG)
#: Up to so many CPUs, the kernel counts the elements of a map of 1000 on each CPU apart.
MOST_CPUS_TO_COUNT_APART = 15
COUNTED_AT_ONCE = (
    f"more than {MOST_CPUS_TO_COUNT_APART} CPUs: elements of a map of {ENTRIES} are counted at once"
)
#: struct lab_tally: updates, calls in which one did not fail as it had to, ns, then padding.
TALLY = struct.Struct("=QQQ104x")
WARM_UP_S, WINDOW_S = 0.01, 0.1
#: Producers look up some calls later whether the window is over: a call is short.
CALL_CHUNKS = 10


@dataclass(frozen=True)
class Loop:
    """A loop on key 1 of a map, which holds it before if `filled`.

    A turn makes `operations` map operations; the kernel's own sample counts `event` of them as one.
    """

    program: str
    operations: int
    event: int
    filled: bool


LOOPS = {
    "update_lookup_delete": Loop("lab_update_lookup_delete", 3, 30, filled=False),
    "lookup": Loop("lab_lookup", 1, 1, filled=True),
}


@dataclass(frozen=True, kw_only=True)
class HashmapUpdateParameters(Parameters):
    """Which loops on which maps, and on how many CPUs."""

    variants: list[str] = parameter(list(FLAGS), "which hash maps to measure", choices=tuple(FLAGS))
    loops: list[str] = parameter(
        [FULL_UPDATE, *LOOPS], "which loops to measure", choices=(FULL_UPDATE, *LOOPS)
    )
    cpus: int = parameter(
        -1,
        f"CPUs at work at the same time in {FULL_UPDATE}, at most; -1 takes all, and 0 is none",
        minimum=-1,
        maximum=4096,
    )
    budget_s: float = parameter(
        10.0, "seconds of timed rounds in each process", above=0, maximum=86_400
    )

    def __post_init__(self) -> None:
        if self.cpus == 0:
            raise UsageError(
                "cpus: 0 is not accepted; it takes a whole number from 1 to the number of CPUs, "
                "or -1 for all of them"
            )


def working_cpus(parameters: HashmapUpdateParameters) -> list[int]:
    """Return the CPUs that are at work where all are, the measuring one first.

    Raises
    ------
    UsageError
        For more than this process may run on.
    """
    allowed = tasks.working_cpus(parameters.cpu)
    if parameters.cpus > len(allowed):
        raise UsageError(
            f"cpus: {parameters.cpus} is not accepted; this process may run on {len(allowed)} CPUs"
        )
    return allowed[: parameters.cpus] if parameters.cpus > 0 else allowed


def numbers_of_cpus(most: int) -> list[int]:
    """Return every number up to eight and then powers of two, and the greatest."""
    doubled = (2**power for power in range(4, most.bit_length()))
    return sorted({*range(1, min(most, 8) + 1), *doubled, most})


def requirements(parameters: HashmapUpdateParameters) -> Mapping[str, str]:
    """Return for each variant why it is not available here, or the empty text."""
    cpus = working_cpus(parameters)
    why = probe.program_type("raw_tracepoint") or probe.open_files(128 + 4 * len(cpus))
    return dict.fromkeys(parameters.variants, why)


@contextmanager
def cases(
    parameters: HashmapUpdateParameters, variants: Sequence[str]
) -> Iterator[list[Case | WindowCase]]:
    """Make and fill the maps, load the programs, check the work, and yield the cases."""
    cpus = working_cpus(parameters)
    definitions = {"CHUNK": CHUNK, "CHUNKS": CHUNKS, "PRODUCERS": len(cpus)}
    with (
        programs.compiled(EXPERIMENT.source, definitions) as loaded,
        ExitStack() as held,
        tasks.pinned_workers(1, parameters.cpu) as (worker,),
    ):
        made: list[Case | WindowCase] = []
        if FULL_UPDATE in parameters.loops:
            tallies_fd = loaded.map_fd("lab_tallies")
            producers = held.enter_context(Producers(cpus, tallies_fd, TALLY.size))
            for variant in variants:
                bound = _bound(held, loaded, variant, range(ENTRIES))
                made += _full_updates(bound, producers, cpus, variant)
        for name, loop in LOOPS.items():
            if name in parameters.loops:
                for variant in variants:
                    bound = _bound(held, loaded, variant, range(2 if loop.filled else 0))
                    made.append(_loop(bound, variant, name, worker))
        yield made


def _bound(
    held: ExitStack, loaded: programs.Programs, variant: str, keys: range
) -> programs.Programs:
    """Make a map, put keys into it, and return the programs bound to it."""
    descriptor = bpf.create_map(
        *("lab_hash", bpf.MAP_TYPE_HASH),
        key_bytes=4,
        value_bytes=8,
        entries=ENTRIES,
        flags=FLAGS[variant],
    )
    held.callback(os.close, descriptor)
    if keys:
        numbers, values = (ctypes.c_uint32 * len(keys))(*keys), (ctypes.c_uint64 * len(keys))()
        bpf.update_batch(descriptor, numbers, values, len(keys))
    return held.enter_context(loaded.with_maps({"lab_hash": descriptor}))


def _full_updates(
    bound: programs.Programs, producers: Producers, cpus: Sequence[int], variant: str
) -> Iterator[WindowCase]:
    timed = bound.raw_tracepoint("lab_full_update")
    control = bound.raw_tracepoint("lab_full_update", WITHOUT_UPDATE)
    for many in numbers_of_cpus(len(cpus)):
        yield WindowCase(
            {"variant": variant, "loop": FULL_UPDATE, "cpus": many},
            partial(_full_update, timed, control, producers, cpus[:many], variant),
            [COUNTED_AT_ONCE] if (os.cpu_count() or 1) > MOST_CPUS_TO_COUNT_APART else [],
        )


def _full_update(
    timed: int,
    control: int,
    producers: Producers,
    cpus: Sequence[int],
    variant: str,
    is_control: bool,
) -> Window:
    """Have each CPU update a key of its own that the full map lacks, all at the same time."""
    program = control if is_control else timed
    steal_before_ns = sum(map(host.steal_ns, cpus))
    produced = producers.run(
        [Work(program, (CALL_CHUNKS, ENTRIES + cpu, index)) for index, cpu in enumerate(cpus)],
        barrier="spin",
        warm_up_s=WARM_UP_S,
        meanwhile=partial(time.sleep, WINDOW_S),
    )
    steal_ns = sum(map(host.steal_ns, cpus)) - steal_before_ns
    tallies = [TALLY.unpack(one.tally) for one in produced]
    updates, wrong_calls, elapsed_ns = (sum(column) for column in zip(*tallies, strict=True))
    if wrong_calls:
        raise LabkitError(f"{variant} {FULL_UPDATE}: an update did not fail with E2BIG")
    counts = {"events": updates} | shares(produced)
    return Window(updates, elapsed_ns, steal_ns, counts, warning=warning(produced))


def _loop(bound: programs.Programs, variant: str, name: str, worker: Executor) -> Case:
    loop, key = LOOPS[name], 1
    has = bpf.RawTracepointRun(bound.raw_tracepoint("lab_has"))
    if has(0, key) != loop.filled:
        raise LabkitError(f"{variant} {name}: the map is not filled as it has to be")

    def caller(program: int) -> Callable[[int], Call]:
        run = bpf.RawTracepointRun(program)

        def call(operations: int) -> Call:
            elapsed_ns = run(operations // loop.operations // CHUNK, key)
            if not elapsed_ns:
                raise LabkitError(f"{variant} {name}: an operation failed")
            return Call(operations, elapsed_ns, {"events": operations // loop.event})

        return call

    chunk = CHUNK * loop.operations
    return Case(
        {"variant": variant, "loop": name, "cpus": 1},
        timed=caller(bound.raw_tracepoint(loop.program)),
        control=caller(bound.raw_tracepoint(loop.program, programs.Without("lab_hash"))),
        operations=range(chunk, chunk * CHUNKS + 1, chunk),
        worker=worker,
    )


def _map_perf_test(variant: str) -> Published:
    return Published(
        "map_perf_test.csv",
        "published 2024 (Xeon, v6.11)",
        x="loop",
        y="events_kps",
        where={"map": variant, "series": "before"},
    )


EXPERIMENT = Experiment(
    name="hashmap-update",
    question="What do updates of a full hash map cost, and do they scale with the CPUs at work?",
    parameters=HashmapUpdateParameters,
    labels=("variant", "loop", "cpus"),
    metrics=(
        Metric("operation_ns", "ns/op", "time per map operation"),
        Metric("events_kps", "k/s", "events per CPU", count="events"),
    ),
    requirements=requirements,
    cases=cases,
    quick={"budget_s": 4.0},
    repeat=6,
    plots=(
        Curve(
            name="full-update",
            title="Updates of a full map, by each CPU",
            metric="events_kps",
            kind="raw",
            x="cpus",
            x_title="CPUs at work at the same time",
            variants=tuple(FLAGS),
            where={"loop": FULL_UPDATE},
            alternative="Updates per second and CPU against the number of CPUs at work: level "
            "where they scale, falling where CPUs wait for each other.",
        ),
        Bars(
            name="events",
            title="Events as the kernel's own tools count them, on one CPU",
            metric="events_kps",
            kind="raw",
            groups="loop",
            variants=tuple(FLAGS),
            where={"cpus": 1},
            published={
                "preallocated": (
                    Published(
                        "hashmap_full_update.csv",
                        "published 2022 (all CPUs but one at work)",
                        x="loop",
                        y="events_kps",
                        where={},
                    ),
                    _map_perf_test("preallocated"),
                ),
                "not_preallocated": (_map_perf_test("not_preallocated"),),
            },
            alternative="Events per second for each loop, a bar for each kind of map.",
        ),
    ),
)
