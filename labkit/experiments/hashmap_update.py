# SPDX-License-Identifier: MIT
"""Small hash maps: updates of a full one on one CPU and more, and the classic loops on one key."""

import ctypes
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from labkit.errors import LabkitError
from labkit.experiments._experiment import Experiment, Metric
from labkit.experiments._parameters import Parameters, parameter
from labkit.kernel import bpf, probe, programs, tasks
from labkit.measuring.loop import Call, Case

ENTRIES = 1000
E2BIG = 7
CHUNK, CHUNKS = 100, 70

FLAGS = {"preallocated": 0, "not_preallocated": bpf.F_NO_PREALLOC}


@dataclass(frozen=True)
class Loop:
    """One of the loops.

    `program` times it, its control has `result` in place of each map operation. A turn makes
    `operations` of those; `event` is how many of them the kernel's own tool or sample counts as
    one. Before the loop the map holds its first `filled` keys, and the loop uses the key `key`,
    plus the number of the CPU if `per_cpu`.
    """

    program: str
    result: int
    operations: int
    event: int
    filled: int
    key: int


LOOPS = {
    "full_update": Loop("lab_full_update", -E2BIG, 1, 1, ENTRIES, ENTRIES),
    "update_lookup_delete": Loop("lab_update_lookup_delete", 0, 3, 30, 0, 1),
    "lookup": Loop("lab_lookup", 0, 1, 1, 2, 1),
}


@dataclass(frozen=True, kw_only=True)
class HashmapUpdateParameters(Parameters):
    """Which loops on which maps."""

    variants: list[str] = parameter(list(FLAGS), "which hash maps to measure", choices=tuple(FLAGS))
    loops: list[str] = parameter(list(LOOPS), "which loops to measure", choices=tuple(LOOPS))
    budget_s: float = parameter(
        8.0, "seconds of timed rounds in each process", above=0, maximum=86_400
    )


def requirements(parameters: HashmapUpdateParameters) -> Mapping[str, str]:
    """Return for each variant why it is not available here, or the empty text."""
    why = probe.program_type("raw_tracepoint")
    return dict.fromkeys(parameters.variants, why)


@contextmanager
def cases(parameters: HashmapUpdateParameters, variants: Sequence[str]) -> Iterator[list[Case]]:
    """Make and fill the maps, load the programs, check the work, and yield the cases."""
    with (
        ExitStack() as held,
        programs.compiled(EXPERIMENT.source, {"CHUNK": CHUNK, "CHUNKS": CHUNKS}) as loaded,
        tasks.pinned_workers(1, parameters.cpu) as (worker,),
    ):
        yield [
            _case(held, loaded, variant, name, worker)
            for name in parameters.loops
            for variant in variants
        ]


def _case(
    held: ExitStack, loaded: programs.Programs, variant: str, name: str, worker: Executor
) -> Case:
    loop = LOOPS[name]
    descriptor = bpf.create_map(
        *("lab_hash", bpf.MAP_TYPE_HASH),
        key_bytes=4,
        value_bytes=8,
        entries=ENTRIES,
        flags=FLAGS[variant],
    )
    held.callback(os.close, descriptor)
    if loop.filled:
        keys = (ctypes.c_uint32 * loop.filled)(*range(loop.filled))
        bpf.update_batch(descriptor, keys, (ctypes.c_uint64 * loop.filled)(), loop.filled)
    maps = {"lab_hash": descriptor}
    has = bpf.RawTracepointRun(loaded.raw_tracepoint("lab_has", maps))
    if has(0, loop.key) != (loop.key < loop.filled):
        raise LabkitError(f"{variant} {name}: the map is not filled as it has to be")

    def caller(program: int) -> Callable[[int], Call]:
        run = bpf.RawTracepointRun(program)

        def call(operations: int) -> Call:
            elapsed_ns = run(operations // loop.operations // CHUNK, loop.key)
            if not elapsed_ns:
                raise LabkitError(f"{variant} {name}: an operation did not end as it has to")
            return Call(operations, elapsed_ns, {"events": operations // loop.event})

        return call

    chunk = CHUNK * loop.operations
    without = programs.Without("lab_hash", loop.result)
    return Case(
        {"variant": variant, "loop": name},
        timed=caller(loaded.raw_tracepoint(loop.program, maps)),
        control=caller(loaded.raw_tracepoint(loop.program, maps, without)),
        operations=range(chunk, chunk * CHUNKS + 1, chunk),
        worker=worker,
    )


EXPERIMENT = Experiment(
    name="hashmap-update",
    question="What do updates of a full hash map cost, and the classic loops on one key?",
    parameters=HashmapUpdateParameters,
    labels=("variant", "loop"),
    metrics=(
        Metric("operation_ns", "ns/op", "time per map operation"),
        Metric("events_mops", "Mops/s", "events", count="events"),
    ),
    requirements=requirements,
    cases=cases,
    quick={"budget_s": 3.0},
    repeat=6,
)
