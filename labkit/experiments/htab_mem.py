# SPDX-License-Identifier: MIT
"""Which allocator a hash map should use: how fast it is, and how much memory it holds."""

import os
import statistics
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial

from labkit.errors import LabkitError, UsageError
from labkit.experiments._experiment import Bars, Experiment, Metric, Published, Timeline, Tradeoff
from labkit.experiments._parameters import Parameters, parameter
from labkit.kernel import bpf, btf, cgroup, host, probe, programs, tasks
from labkit.kernel.producers import Producers, Work, shares, warning
from labkit.measuring.loop import Window, WindowCase
from labkit.measuring.sampling import sampled

BATCH = 64
KEY_BYTES = 4
#: struct lab_tally: batches, failed operations and ns in the program, then padding.
TALLY = struct.Struct("=QQQ104x")

FLAVOURS = ("preallocated", "bpf_mem_alloc", "kmalloc", "rhash")
PAIRS = "add_del_on_diff_cpu"
#: The programs that the producers of each use case run in turn.
PROGRAMS = {
    "overwrite": ("lab_overwrite",),
    "batch_add_batch_del": ("lab_add_and_delete",),
    PAIRS: ("lab_add_new", "lab_delete"),
}

#: A control holds no memory, and its rate settles at once.
CONTROL_S, CONTROL_WARM_UP_S = 0.1, 0.02


@dataclass(frozen=True, kw_only=True)
class HtabMemParameters(Parameters):
    """Which maps, how they are used, and by how many at the same time."""

    flavours: list[str] = parameter(
        list(FLAVOURS), "which ways to allocate elements", choices=FLAVOURS
    )
    use_cases: list[str] = parameter(
        list(PROGRAMS), "what the producers do with their elements", choices=tuple(PROGRAMS)
    )
    value_bytes: int = parameter(8, "size of a value", minimum=1, maximum=4096)
    producers: int = parameter(
        -1,
        "processes at work at the same time, on a CPU each; -1 takes one for every CPU, "
        "and 0 is none",
        minimum=-1,
        maximum=4096,
    )
    barrier: str = parameter(
        "spin",
        f"how the two of a pair of {PAIRS} wait for each other",
        choices=("spin", "futex"),
    )
    window_s: float = parameter(0.5, "seconds of each timed window", minimum=0.05, maximum=1.0)
    warm_up_s: float = parameter(
        0.2, "seconds of the same work before it, untimed", minimum=0.01, maximum=0.4
    )
    budget_s: float = parameter(
        9.0, "seconds of timed rounds in each process", above=0, maximum=86_400
    )

    def __post_init__(self) -> None:
        accepted = "it takes a whole number from 1 to the number of CPUs, or -1 for one on each"
        if self.producers == 0:
            raise UsageError(f"producers: 0 is not accepted; {accepted}")
        if self.producers > 0 and self.producers % 2 and PAIRS in self.use_cases:
            raise UsageError(
                f"producers: {self.producers} is not accepted with {PAIRS}, whose producers work "
                f"in pairs; take an even number, or -p use_cases without it"
            )


def cpus_of_producers(parameters: HtabMemParameters) -> list[int]:
    """Return the CPU of each producer: the measuring one, then the others from the last down.

    Raises
    ------
    UsageError
        For more producers than CPUs that this process may run on.
    """
    allowed = tasks.working_cpus(parameters.cpu)
    if parameters.producers > len(allowed):
        raise UsageError(
            f"producers: {parameters.producers} is not accepted; "
            f"this process may run on {len(allowed)} CPUs"
        )
    if parameters.producers > 0:
        return allowed[: parameters.producers]
    odd_one = PAIRS in parameters.use_cases and len(allowed) > 1 and len(allowed) % 2
    return allowed[: len(allowed) - odd_one]


def requirements(parameters: HtabMemParameters) -> Mapping[str, str]:
    """Return for each flavour why it is not available here, or the empty text.

    What else is not available is named beside the flavours: pairs where there is one CPU, memory
    where no cgroup counts it.
    """
    cpus = cpus_of_producers(parameters)
    alone = "" if len(cpus) > 1 else "pairs need two CPUs, and this process may run on one"
    common = (
        probe.program_type("raw_tracepoint")
        or probe.open_files(128 + 4 * len(cpus))
        or probe.locked_memory(128)
        or (alone if parameters.use_cases == [PAIRS] else "")
    )
    found = {flavour: common or _flavour(flavour) for flavour in parameters.flavours}
    beside = {PAIRS: alone if PAIRS in parameters.use_cases else "", "memory": cgroup.unavailable()}
    return found | {name: why for name, why in beside.items() if why}


def _flavour(flavour: str) -> str:
    types = btf.kernel()
    if flavour == "preallocated":
        return ""
    if types is None:
        return "which allocator this kernel has cannot be told: it shows no BTF"
    if flavour == "rhash":
        has = types.enumerator("BPF_MAP_TYPE_RHASH") is not None
        return "" if has else "this kernel has no BPF_MAP_TYPE_RHASH"
    has_allocator = "ma" in types.members("bpf_htab")
    if has_allocator == (flavour == "bpf_mem_alloc"):
        return ""
    return (
        "hash maps of this kernel allocate through bpf_mem_alloc"
        if has_allocator
        else "hash maps of this kernel allocate through kmalloc"
    )


def entries() -> int:
    """Return how many elements a map can hold: as many as in the kernel's own tool."""
    return max(8192, BATCH * (os.cpu_count() or 1))


def create(flavour: str, value_bytes: int) -> int:
    """Create a map of a flavour; return its descriptor."""
    map_type = bpf.MAP_TYPE_HASH
    types = btf.kernel()
    if flavour == "rhash" and types is not None:
        map_type = types.enumerator("BPF_MAP_TYPE_RHASH") or map_type
    return bpf.create_map(
        "lab_htab",
        map_type,
        key_bytes=KEY_BYTES,
        value_bytes=value_bytes,
        entries=entries(),
        flags=0 if flavour == "preallocated" else bpf.F_NO_PREALLOC,
    )


@contextmanager
def cases(parameters: HtabMemParameters, variants: Sequence[str]) -> Iterator[list[WindowCase]]:
    """Load the programs, start the producers, check the work, and yield the cases."""
    cgroup.sweep()
    cpus = cpus_of_producers(parameters)
    definitions = {
        "BATCH": BATCH,
        "VALUE_BYTES": parameters.value_bytes,
        "PRODUCERS": len(cpus),
    }
    with programs.compiled(EXPERIMENT.source, definitions) as loaded:
        for flavour in variants:
            _check(loaded, flavour, parameters.value_bytes)
        with Producers(cpus, loaded.map_fd("lab_tallies"), TALLY.size) as producers:
            yield [
                WindowCase(
                    _labels(flavour, use_case, parameters),
                    partial(_window, parameters, cpus, loaded, producers, flavour, use_case),
                )
                for use_case in parameters.use_cases
                for flavour in variants
                if use_case != PAIRS or len(cpus) > 1
            ]


def _labels(flavour: str, use_case: str, parameters: HtabMemParameters) -> dict[str, str | int]:
    barrier: dict[str, str | int] = {"barrier": parameters.barrier} if use_case == PAIRS else {}
    return {"variant": flavour, "use_case": use_case} | barrier


def _check(loaded: programs.Programs, flavour: str, value_bytes: int) -> None:
    """Run each program once and look at what it left in the map."""
    tallies_fd = loaded.map_fd("lab_tallies")
    steps = {"lab_overwrite": BATCH, "lab_delete": 0, "lab_add_new": BATCH, "lab_add_and_delete": 0}
    with ExitStack() as opened:
        map_fd = create(flavour, value_bytes)
        opened.callback(os.close, map_fd)
        bound = opened.enter_context(loaded.with_maps({"lab_map": map_fd}))
        for name, left in steps.items():
            program_fd = bound.raw_tracepoint(name)
            bpf.update_element(tallies_fd, 0, bytes(TALLY.size))
            bpf.RawTracepointRun(program_fd)(0, 1, 2)
            batches, failed, _ = TALLY.unpack(bpf.element(tallies_fd, 0, TALLY.size))
            found = sum(_holds(map_fd, 1 + 2 * turn, value_bytes) for turn in range(BATCH))
            if failed or not batches or found != left:
                raise LabkitError(
                    f"{flavour} {name}: {failed} of {BATCH * batches} operations failed, and "
                    f"{found} elements were there afterwards, not {left}"
                )


def _holds(map_fd: int, key: int, value_bytes: int) -> bool:
    try:
        bpf.element(map_fd, key, value_bytes)
    except FileNotFoundError:
        return False
    return True


def _window(
    parameters: HtabMemParameters,
    cpus: Sequence[int],
    loaded: programs.Programs,
    producers: Producers,
    flavour: str,
    use_case: str,
    control: bool,
) -> Window:
    """Measure a map that is made for this window, with a cgroup of its own."""
    has_memory = not control and not cgroup.unavailable()
    make = partial(create, flavour, parameters.value_bytes)
    with ExitStack() as opened:
        group = opened.enter_context(cgroup.MemoryGroup() if has_memory else nullcontext())
        map_fd = group.create(make) if group else make()
        opened.callback(os.close, map_fd)
        bound = opened.enter_context(loaded.with_maps({"lab_map": map_fd}))
        program_fds = [
            bound.raw_tracepoint(name + "_control" * control) for name in PROGRAMS[use_case]
        ]
        duration_s = CONTROL_S if control else parameters.window_s
        series: list[tuple[list[int], list[int]]] = []

        def meanwhile() -> None:
            series.append(sampled(group.usage_bytes if group else int, duration_s))

        steal_before_ns = sum(map(host.steal_ns, cpus))
        produced = producers.run(
            _work(use_case, program_fds, len(cpus)),
            barrier="futex" if parameters.barrier == "futex" else "spin",
            warm_up_s=CONTROL_WARM_UP_S if control else parameters.warm_up_s,
            meanwhile=meanwhile,
        )
        memory = _memory(group, series[0][1]) if group else {}
    tallies = [TALLY.unpack(one.tally) for one in produced]
    batches, failed, program_ns = (sum(column) for column in zip(*tallies, strict=True))
    counts = {"batches": batches, "failed": failed, "program_ns": program_ns}
    return Window(
        operations=BATCH * batches,
        elapsed_ns=sum(one.end_ns - one.begin_ns for one in produced),
        steal_ns=sum(map(host.steal_ns, cpus)) - steal_before_ns,
        counts=counts | shares(produced) | memory,
        series=dict(zip(("clock_ns", "memory_bytes"), series[0], strict=True)) if group else {},
        warning=warning(produced, may_sleep=use_case == PAIRS and parameters.barrier == "futex"),
    )


def _work(use_case: str, program_fds: Sequence[int], producers: int) -> list[Work]:
    """Return each producer's work: keys of its own, or in pairs those of the pair."""
    if use_case == PAIRS:
        return [
            Work(program_fds[index % 2], (index, index // 2, producers // 2), turn=index % 2)
            for index in range(producers)
        ]
    return [Work(program_fds[0], (index, index, producers)) for index in range(producers)]


def _memory(group: cgroup.MemoryGroup, readings: Sequence[int]) -> dict[str, float]:
    peak = group.peak_bytes()
    return {
        "memory_absolute_bytes": statistics.fmean(readings),
        "memory_bytes": statistics.fmean(readings) - group.before_bytes,
        "memory_deviation_bytes": statistics.stdev(readings),
        "memory_peak_bytes": (max(readings) if peak is None else peak) - group.before_bytes,
    }


def _published(x: str) -> dict[str, Published]:
    """Return the published figures, by our names; the mail's kernels told kmalloc by its frees."""
    names = ("preallocated", "bpf_mem_alloc", "kmalloc_call_rcu")
    return {
        flavour: Published(
            "htab_mem.csv",
            "published 2023 (8 producers)",
            x=x,
            y="kops_per_producer",
            where={"flavour": name},
        )
        for flavour, name in zip(FLAVOURS, names, strict=False)
    }


EXPERIMENT = Experiment(
    name="htab-mem",
    question="Which allocator should a hash map use: how fast is it, what memory does it hold?",
    parameters=HtabMemParameters,
    labels=("variant", "use_case", "barrier"),
    metrics=(
        Metric("program_ns", "ns/op", "time per operation in the program", count="program_ns"),
        Metric("batches_kps", "k/s", "batches per producer", count="batches"),
        Metric("operations_mops", "Mops/s", "operations per producer", count="operations"),
        Metric("failed_percent", "%", "failed operations", count="failed"),
        Metric("memory_mib", "MiB", "average rise", count="memory_bytes"),
        Metric("memory_deviation_mib", "MiB", "deviation", count="memory_deviation_bytes"),
        Metric("memory_peak_mib", "MiB", "peak rise", count="memory_peak_bytes"),
        Metric("memory_absolute_mib", "MiB", "average", count="memory_absolute_bytes"),
    ),
    requirements=requirements,
    cases=cases,
    quick={"window_s": 0.25, "warm_up_s": 0.1, "budget_s": 18.0},
    repeat=6,
    plots=(
        Bars(
            name="rate",
            title="How many batches of 64 a producer makes",
            metric="batches_kps",
            kind="raw",
            groups="use_case",
            variants=FLAVOURS,
            published={name: (one,) for name, one in _published("use_case").items()},
            alternative="Batches per second and producer for each use case, a bar for each way to "
            "allocate elements.",
        ),
        Timeline(
            name="memory",
            title="Memory that the map holds while it is used",
            column="memory_bytes",
            y_title="memory, absolute",
            groups="use_case",
            variants=FLAVOURS,
            alternative="Memory against time for each use case, a line for each way to allocate "
            "elements.",
        ),
        Tradeoff(
            name="rate-and-memory",
            title="What memory buys",
            x="memory_peak_mib",
            metric="batches_kps",
            groups="use_case",
            variants=FLAVOURS,
            published=_published("peak_mem_mib"),
            groups_column="use_case",
            alternative="Batches per second and producer against peak memory: up and to the left "
            "is better.",
        ),
    ),
)
