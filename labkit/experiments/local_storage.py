# SPDX-License-Identifier: MIT
"""The local-storage cliff: what a get costs as more task-storage maps are in use."""

from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate, islice
from itertools import cycle as cycled

from labkit.errors import LabkitError
from labkit.experiments._experiment import Cliff, Curve, Experiment, Metric, Published
from labkit.experiments._parameters import Parameters, parameter
from labkit.kernel import bpf, probe, programs, tasks
from labkit.measuring.loop import Call, Case

ENTRIES = 4_194_304
ZERO_SEED = 1 << 6  # BPF_F_ZERO_SEED

# Lengths of loops are what the verifier walks through in a second or so.
CHUNK, CHUNKS, POSITIONS = 100, 70, 16_384


@dataclass(frozen=True, kw_only=True)
class LocalStorageParameters(Parameters):
    """Which maps and keys, and how the hash map is seeded."""

    variants: list[str] = parameter(
        ["sequential", "interleaved", "hashmap"],
        "which variants to measure",
        choices=("sequential", "interleaved", "hashmap"),
    )
    # The published sizes, and more of them around the cliff. Between 32 and 100 a miss costs less
    # than the cache's model has it, so that sizes there would pull the fitted slots downwards.
    maps: list[int] = parameter(
        [1, 4, 10, 14, 15, 16, 17, 18, 20, 24, 28, 32, 100, 300, 1000],
        "numbers of task-storage maps in use",
        minimum=1,
        maximum=1000,
    )
    keys: list[int] = parameter(
        [10, 1000, 10_000, 100_000, ENTRIES],
        "numbers of keys that the hash map's lookups choose among",
        minimum=1,
        maximum=ENTRIES,
    )
    zero_seed: bool = parameter(
        False, "hash with seed zero, the same in every process, not with a random one"
    )
    budget_s: float = parameter(
        8.0, "seconds of timed rounds in each process", above=0, maximum=86_400
    )


def order_of_gets(variant: str, maps: int) -> list[int]:
    """Return the map indices of one cycle; interleaved asks map 0 again after each third map."""
    if variant == "sequential":
        return list(range(maps))
    return [get for index in range(maps) for get in ([index, 0] if index % 3 == 0 else [index])]


def requirements(parameters: LocalStorageParameters) -> Mapping[str, str]:
    """Return for each variant why it is not available here, or the empty text."""
    common = probe.program_type("raw_tracepoint") or probe.open_files(128)
    storage = (
        common
        or probe.task_storage()
        or probe.helper("raw_tracepoint", 158, "bpf_get_current_task_btf")
        or probe.helper("raw_tracepoint", 156, "bpf_task_storage_get")
    )
    hash_map = common or probe.available_memory(512, f"a hash map of {ENTRIES:,} entries")
    return {
        variant: hash_map if variant == "hashmap" else storage for variant in parameters.variants
    }


@contextmanager
def cases(parameters: LocalStorageParameters, variants: Sequence[str]) -> Iterator[list[Case]]:
    """Load the programs, make and fill the maps, check the work, and yield the cases."""
    storage = [
        (variant, n) for variant in variants if variant != "hashmap" for n in parameters.maps
    ]
    keys = parameters.keys if "hashmap" in variants else []
    definitions = {
        "CHUNK": CHUNK,
        "CHUNKS": CHUNKS,
        "POSITIONS": POSITIONS,
        "OUTER": max(1, sum(n for _, n in storage)),
        "ROWS": max(1, len(storage)),
        "ENTRIES": ENTRIES if keys else 1,
        "HASH_FLAGS": ZERO_SEED if parameters.zero_seed else 0,
    }
    with (
        programs.compiled(EXPERIMENT.source, definitions) as loaded,
        tasks.pinned_workers(len(storage) + len(keys), parameters.cpu) as workers,
    ):
        made = []
        first = 0
        for row, (variant, n) in enumerate(storage):
            order = order_of_gets(variant, n)
            positions = array("H", islice(cycled(first + index for index in order), POSITIONS))
            bpf.update_element(loaded.map_fd("lab_order"), row, positions.tobytes())
            bpf.fill_with_task_storage(loaded.map_fd("lab_outer"), first, n)
            made.append(_storage_case(loaded, variant, n, row, order, workers.pop()))
            first += n
        if keys:
            bpf.fill_hash_with_integers(loaded.map_fd("lab_hash"), ENTRIES)
            made += [_hash_case(loaded, count, workers.pop()) for count in keys]
        yield made


def _storage_case(
    loaded: programs.Programs, variant: str, maps: int, row: int, order: list[int], worker: Executor
) -> Case:
    count = bpf.RawTracepointRun(loaded.raw_tracepoint("lab_storage_count"))
    for start in range(0, len(order), 1000):
        gets = min(1000, len(order) - start)
        _check(f"{variant} {maps} maps", gets, worker.submit(count, gets, start, row).result())
    important = [0, *accumulate(int(index == 0) for index in order)]

    def caller(program: str) -> Callable[[int], Call]:
        run = bpf.RawTracepointRun(loaded.raw_tracepoint(program))
        begin = 0

        def call(gets: int) -> Call:
            nonlocal begin
            elapsed_ns = run(gets // CHUNK, begin, row)
            cycles, end = divmod(begin + gets, len(order))
            hits = cycles * important[-1] + important[end] - important[begin]
            begin = end
            return Call(gets, elapsed_ns, {"important": hits})

        return call

    return Case(
        {"variant": variant, "maps": maps},
        timed=caller("lab_storage_get"),
        control=caller("lab_storage_control"),
        operations=range(CHUNK, CHUNK * CHUNKS + 1, CHUNK),
        cycle=len(order),
        worker=worker,
        warm_up=len(order),
    )


def _hash_case(loaded: programs.Programs, keys: int, worker: Executor) -> Case:
    count = bpf.RawTracepointRun(loaded.raw_tracepoint("lab_hash_count"))
    _check(f"hashmap {keys} keys", 1000, worker.submit(count, 1000, keys).result())

    def caller(program: str) -> Callable[[int], Call]:
        run = bpf.RawTracepointRun(loaded.raw_tracepoint(program))

        def call(lookups: int) -> Call:
            # As in the kernel's tool, where every lookup stands for a get of map 0.
            return Call(lookups, run(lookups // CHUNK, keys), {"important": lookups})

        return call

    return Case(
        {"variant": "hashmap", "keys": keys},
        timed=caller("lab_hash_lookup"),
        control=caller("lab_hash_control"),
        operations=range(CHUNK, CHUNK * CHUNKS + 1, CHUNK),
        worker=worker,
        # Three random lookups a key reach 95 % of the keys. More keys than this exceed any cache.
        warm_up=3 * keys if keys <= 250_000 else 0,
    )


def _check(case: str, wanted: int, done: int) -> None:
    if done != wanted:
        raise LabkitError(f"{case}: only {done} of {wanted} operations found their value")


def _important(name: str, title: str, share_of: str = "") -> Curve:
    return Curve(
        name=name,
        title=title,
        metric="important_mops",
        kind="raw",
        x="maps",
        x_title="task-storage maps in use",
        variants=("sequential", "interleaved"),
        share_of=share_of,
        published=tuple(
            Published(
                "local_storage_get.csv",
                f"{variant}, published 2022 (Skylake)",
                x="value",
                y="important_hits_mops",
                where={"body": "get", "variant": variant},
                share_of=share_of and "hits_mops",
            )
            for variant in ("sequential", "interleaved")
        ),
        alternative=f"{title} against the number of maps: asking for it again after each third "
        "map keeps it high.",
    )


EXPERIMENT = Experiment(
    name="local-storage",
    question="How does the cost of bpf_task_storage_get grow with the number of maps in use?",
    parameters=LocalStorageParameters,
    labels=("variant", "maps", "keys"),
    metrics=(
        Metric("get_ns", "ns/op", "time per get"),
        Metric("hits_mops", "Mops/s", "gets", count="operations"),
        Metric("important_mops", "Mops/s", "gets of map 0", count="important"),
    ),
    requirements=requirements,
    cases=cases,
    quick={"maps": [1, 10, 16, 17, 24, 32, 100, 1000], "budget_s": 5.0},
    repeat=6,
    plots=(
        Curve(
            name="get-ns",
            title="What a get costs as more storage maps are in use",
            metric="get_ns",
            kind="net",
            x="maps",
            x_title="task-storage maps in use",
            variants=("sequential", "interleaved"),
            levels={"hashmap": "keys"},
            published=(
                Published(
                    "local_storage_adjusted.csv",
                    "sequential, published 2022 (Skylake)",
                    x="value",
                    y="ns_per_op",
                    where={"variant": "sequential"},
                ),
            ),
            alternative="Net time per get against the number of maps: flat up to the cache's "
            "slots, then rising; lines show what a hash map costs.",
        ),
        _important("important-hits", "Gets of the one important map"),
        _important("important-share", "Share of gets that ask for the important map", "hits_mops"),
    ),
    cliff=Cliff(
        metric="get_ns",
        variant="sequential",
        x="maps",
        operation="a get",
        against={"hashmap": "keys"},
    ),
)
