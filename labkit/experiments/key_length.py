# SPDX-License-Identifier: MIT
"""Long keys of a hash map: what their length costs, in time and in memory."""

import ctypes
import os
import random
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Self

from labkit.errors import CannotRunError, LabkitError, UsageError
from labkit.experiments._experiment import Curve, Experiment, Growth, Metric, Published
from labkit.experiments._parameters import Parameters, parameter
from labkit.kernel import bpf, cgroup, probe, programs, tasks
from labkit.measuring.loop import Call, Case

# Lengths of loops are what the verifier walks through in some 10 ms: there are many programs.
CHUNK, CHUNKS = 20, 10

COOKIE_BYTES = 8
MAX_BYTES = 4096
MAX_ENTRIES = 1_000_000
#: More than this exceeds the caches of a CPU, so that nothing is to be warmed up.
CACHED_BYTES = 32 << 20
#: Maps are filled so many bytes at a time.
BATCH_BYTES = 4 << 20

FLAGS = {"normal": bpf.F_NO_PREALLOC, "preallocated": 0}


@dataclass(frozen=True, kw_only=True)
class KeyLengthParameters(Parameters):
    """Which keys, how many, and what is done with them."""

    variants: list[str] = parameter(
        ["normal", "preallocated", "dynptr"],
        "which variants to measure",
        choices=("normal", "preallocated", "dynptr"),
    )
    operations: list[str] = parameter(
        ["hit", "miss", "update_delete"],
        "which operations to measure",
        choices=("hit", "miss", "update_delete"),
    )
    data: list[str] = parameter(
        ["random", "kallsyms", "btf"],
        "which descriptions: of random length, the kernel's symbols, the strings of its BTF",
        choices=("random", "kallsyms", "btf"),
    )
    longest: list[int] = parameter(
        [64, 128, 256, 512, 1024, 2048, 4096],
        "longest random descriptions, in bytes",
        minimum=64,
        maximum=MAX_BYTES,
    )
    entries: int = parameter(
        8192, "number of random descriptions of each length", minimum=1, maximum=MAX_ENTRIES
    )
    file: str = parameter("", "a file of descriptions to measure besides, one a line")
    budget_s: float = parameter(
        6.0, "seconds of timed rounds in each process", above=0, maximum=86_400
    )

    @classmethod
    def parse(cls, given: Mapping[str, Any]) -> Self:
        """Check names and values, and that a file can be read, as `Parameters.parse` does."""
        parsed = super().parse(given)
        if not parsed.file:
            return parsed
        path = Path(parsed.file).absolute()
        try:
            with path.open("rb") as file:
                _check_text(path, file.read(65_536))
        except OSError as error:
            raise _bad_file(path, error.strerror or str(error)) from None
        # The measuring process may have another working directory.
        return super().parse({**given, "file": str(path)})


def _bad_file(path: Path, why: str) -> UsageError:
    return UsageError(f"file: {path}: {why}; it takes a text file with one description a line")


def _check_text(path: Path, content: bytes) -> None:
    if not content.strip():
        raise _bad_file(path, "it is empty")
    if b"\0" in content:
        raise _bad_file(path, f"it is binary (byte {content.index(0)} is zero)")


# -- descriptions ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class KeySet:
    """Distinct descriptions, none of them empty, and what was left out of them."""

    labels: Mapping[str, str | int]
    descriptions: Sequence[bytes]
    max_bytes: int
    notes: Sequence[str] = ()

    @property
    def key_bytes(self) -> int:
        """Return the size of a key: cookie, and description padded to the longest."""
        return COOKIE_BYTES + self.max_bytes

    def keys(self, indices: Sequence[int], each_bytes: int) -> ctypes.Array[ctypes.c_char]:
        """Return the keys of these indices one behind the other, padded to so many bytes each."""
        chosen = (self.descriptions[index] for index in indices)
        joined = b"".join(
            (struct.pack("=Q", len(one)) + one).ljust(each_bytes, b"\0") for one in chosen
        )
        return ctypes.create_string_buffer(joined, len(joined))


def needed_mib(entries: int, max_bytes: int, maps: int) -> int:
    """Return about how much memory an array of keys and so many hash maps of them take.

    An allocator rounds an element, 56 bytes more than its key, to a power of two.
    """
    key_bytes = COOKIE_BYTES + max_bytes
    element_bytes = 1 << (key_bytes + 56 - 1).bit_length()
    return 1 + (entries * (key_bytes + COOKIE_BYTES + maps * element_bytes) >> 20)


def random_descriptions(count: int, max_bytes: int) -> list[bytes]:
    """Return distinct texts of printable characters, their lengths uniform in 1..max_bytes.

    They are the same every time, so that kernels are compared with the same keys. The few short
    texts that there are may run out; longer ones take their place.
    """
    source = random.Random(max_bytes)
    printable = bytes(33 + value % 94 for value in range(256))
    found: dict[bytes, None] = {}
    while len(found) < count:
        length = source.randint(1, max_bytes)
        found[source.randbytes(length).translate(printable)] = None
    return list(found)


def distinct(lines: Sequence[bytes], origin: str) -> tuple[list[bytes], list[str]]:
    """Return the usable lines, each once and at most 4096 bytes long, and what was done to them.

    Empty lines and duplicates are left out, long ones cut; the notes say how many.
    """
    filled = [line for line in lines if line]
    cut = [line[:MAX_BYTES] for line in filled]
    once = list(dict.fromkeys(cut))
    kept = once[:MAX_ENTRIES]
    counts = {
        "empty lines left out": len(lines) - len(filled),
        f"cut to {MAX_BYTES:,} bytes": sum(len(line) > MAX_BYTES for line in filled),
        "duplicates left out": len(cut) - len(once),
        f"over {MAX_ENTRIES:,} left out": len(once) - len(kept),
    }
    return kept, [f"{origin}: {count:,} {what}" for what, count in counts.items() if count]


def _symbols() -> list[bytes]:
    lines = Path("/proc/kallsyms").read_bytes().splitlines()
    return list(dict.fromkeys(line.split()[2] for line in lines))


def _btf_strings() -> list[bytes]:
    content = Path("/sys/kernel/btf/vmlinux").read_bytes()
    # struct btf_header: magic, version, flags, hdr_len, type_off, type_len, str_off, str_len
    header, _, _, offset, length = struct.unpack_from("=IIIII", content, 4)
    strings = content[header + offset : header + offset + length].split(b"\0")
    return list(dict.fromkeys(strings))


def _lines(path: Path) -> list[bytes]:
    content = path.read_bytes()
    _check_text(path, content)
    return content.removesuffix(b"\n").split(b"\n")


def key_sets(parameters: KeyLengthParameters) -> Iterator[KeySet]:
    """Yield the wanted sets; one that the kernel does not show is empty and has a note."""
    if "random" in parameters.data:
        for max_bytes in parameters.longest:
            made = random_descriptions(parameters.entries, max_bytes)
            yield KeySet({"bytes": max_bytes}, made, max_bytes)
    sources: dict[str, Callable[[], list[bytes]]] = {"kallsyms": _symbols, "btf": _btf_strings}
    for name, source in sources.items():
        if name in parameters.data:
            try:
                kept, _ = distinct(source(), name)
            except OSError as error:
                yield KeySet({"data": name}, (), 0, [f"{name} left out: {error}"])
                continue
            yield KeySet({"data": name}, kept, max(map(len, kept)))
    if parameters.file:
        kept, notes = distinct(_lines(Path(parameters.file)), parameters.file)
        yield KeySet({"data": "file"}, kept, max(map(len, kept)), notes)


# -- maps and programs ----------------------------------------------------------------------------


def requirements(parameters: KeyLengthParameters) -> Mapping[str, str]:
    """Return for each variant why it is not available here, or the empty text."""
    maps = len(set(parameters.variants) & FLAGS.keys())
    sizes = parameters.longest if "random" in parameters.data else []
    needed = sum(needed_mib(parameters.entries, size, maps) for size in sizes)
    hash_map = (
        probe.program_type("raw_tracepoint")
        or probe.open_files(64 + 7 * maps * (len(sizes) + 3))
        or probe.available_memory(needed, f"keys of {len(sizes)} lengths")
    )
    dynptr = "" if probe.btf_name("DYNPTR_IN_KEY") else "BPF_F_DYNPTR_IN_KEY is not in this kernel"
    found = {
        variant: hash_map if variant in FLAGS else dynptr or "labkit has no program for it yet"
        for variant in parameters.variants
    }
    # Named beside the variants; without it, times are measured all the same.
    memory = cgroup.unavailable()
    return found | ({"memory": memory} if memory else {})


@contextmanager
def cases(parameters: KeyLengthParameters, variants: Sequence[str]) -> Iterator[list[Case]]:
    """Make and fill the maps, load the programs, check the work, and yield the cases."""
    cgroup.sweep()
    with (
        programs.compiled(EXPERIMENT.source, {"CHUNK": CHUNK, "CHUNKS": CHUNKS}) as loaded,
        ExitStack() as held,
        tasks.pinned_workers(1, parameters.cpu) as (worker,),
    ):
        made: list[Case] = []
        checks, notes = [], list[str]()
        for keys in key_sets(parameters):
            notes += keys.notes
            if not keys.descriptions:
                continue
            why = probe.available_memory(
                needed_mib(len(keys.descriptions), keys.max_bytes, len(variants)),
                f"{len(keys.descriptions):,} keys of {keys.key_bytes:,} bytes",
            )
            if why:
                raise CannotRunError(f"{' '.join(map(str, keys.labels.values()))}: {why}")
            array_fd = _array_of_keys(held, keys)
            for variant, hash_fd, facts in _hashes_of_keys(held, keys, variants):
                maps = {"lab_hash": hash_fd, "lab_keys": array_fd}
                bound = held.enter_context(loaded.with_maps(maps))
                in_order = bpf.RawTracepointRun(bound.raw_tracepoint("lab_in_order"))
                checks.append((variant, keys, in_order))
                made += _cases(bound, variant, keys, facts, parameters.operations, worker)
        if not made:
            raise CannotRunError("; ".join(notes))
        made[0] = replace(made[0], notes=notes)
        for check in checks:
            worker.submit(_check, *check).result()
        yield made
        for check in checks:
            worker.submit(_check, *check).result()


def _array_of_keys(held: ExitStack, keys: KeySet) -> int:
    """Make an array of the keys, each followed by 8 bytes of zero; return its descriptor."""
    entries, value_bytes = len(keys.descriptions), keys.key_bytes + COOKIE_BYTES
    descriptor = bpf.create_map(
        *("lab_keys", bpf.MAP_TYPE_ARRAY), key_bytes=4, value_bytes=value_bytes, entries=entries
    )
    held.callback(os.close, descriptor)
    for indices, numbers in _batches(range(entries), value_bytes):
        bpf.update_batch(descriptor, numbers, keys.keys(indices, value_bytes), len(indices))
    return descriptor


def _hashes_of_keys(
    held: ExitStack, keys: KeySet, variants: Sequence[str]
) -> Iterator[tuple[str, int, Mapping[str, float]]]:
    """Make hash maps from keys to their indices; yield variant, descriptor, and memory.

    They are filled in another order than that of the array, so that the memory of their elements
    is in no order, as in a map that has been in use.
    """
    entries = len(keys.descriptions)
    made = []
    for variant in variants:
        make = partial(
            bpf.create_map,
            *("lab_hash", bpf.MAP_TYPE_HASH),
            key_bytes=keys.key_bytes,
            value_bytes=4,
            entries=entries,
            flags=FLAGS[variant],
        )
        group = None if cgroup.unavailable() else held.enter_context(cgroup.MemoryGroup())
        descriptor = group.create(make) if group else make()
        held.callback(os.close, descriptor)
        made.append((variant, descriptor, group))
    order = random.Random(entries).sample(range(entries), entries)
    for indices, numbers in _batches(order, keys.key_bytes):
        texts = keys.keys(indices, keys.key_bytes)
        for _, descriptor, _ in made:
            bpf.update_batch(descriptor, texts, numbers, len(indices))
    for variant, descriptor, group in made:
        memory_bytes = group.usage_bytes() - group.before_bytes if group else None
        yield variant, descriptor, {} if memory_bytes is None else {"memory_bytes": memory_bytes}


def _batches(
    order: Sequence[int], each_bytes: int
) -> Iterator[tuple[Sequence[int], ctypes.Array[ctypes.c_uint32]]]:
    """Yield the indices in groups that take some MiB, as they are and as an array for bpf(2)."""
    many = max(1, BATCH_BYTES // each_bytes)
    for start in range(0, len(order), many):
        indices = order[start : start + many]
        yield indices, (ctypes.c_uint32 * len(indices))(*indices)


def _check(variant: str, keys: KeySet, in_order: bpf.RawTracepointRun) -> None:
    """Look every key up, and what begins 8 bytes after it.

    The latter is never a key. Its cookie would be the first 8 bytes of a description, and to be
    the length of one, at most 4096, all but two of those would be zero: then the description is
    no longer than them, and what follows is empty, as no description of a key is.
    """
    entries, step = len(keys.descriptions), 256
    for start in range(0, entries, step):
        turns = min(step, entries - start)
        for operation, offset in (("hit", 0), ("miss", COOKIE_BYTES)):
            done = in_order(turns, start, entries, offset)
            if done != turns:
                labels = " ".join(map(str, keys.labels.values()))
                raise LabkitError(f"{variant} {labels}: key {start + done} was no {operation}")


def _cases(
    bound: programs.Programs,
    variant: str,
    keys: KeySet,
    facts: Mapping[str, float],
    operations: Sequence[str],
    worker: Executor,
) -> Iterator[Case]:
    entries = len(keys.descriptions)
    cached = entries * 2 * keys.key_bytes <= CACHED_BYTES

    def pair(name: str) -> tuple[int, int]:
        without = programs.Without("lab_hash")
        return bound.raw_tracepoint(name), bound.raw_tracepoint(name, without)

    def caller(program: int, each: int, offset: int) -> Callable[[int], Call]:
        run = bpf.RawTracepointRun(program)
        position = 0

        def call(operations: int) -> Call:
            nonlocal position
            turns = operations // each
            elapsed_ns = run(turns // CHUNK, position, entries, offset)
            if not elapsed_ns:
                raise LabkitError(f"{variant}: an update or delete failed")
            position = (position + turns) % entries
            return Call(operations, elapsed_ns)

        return call

    lookup = pair("lab_lookup") if {"hit", "miss"} & set(operations) else None
    for operation in operations:
        if lookup is None or operation == "update_delete":
            (timed, control), each, offset = pair("lab_delete_update"), 2, 0
        else:
            (timed, control), each = lookup, 1
            offset = COOKIE_BYTES if operation == "miss" else 0
        yield Case(
            {"variant": variant, "operation": operation, **keys.labels},
            timed=caller(timed, each, offset),
            control=caller(control, each, offset),
            operations=range(each * CHUNK, each * CHUNK * CHUNKS + 1, each * CHUNK),
            worker=worker,
            warm_up=each * entries if cached else 0,
            facts=facts,
        )


def _published(kind: str, figure: str, caption: str, share_of: str = "") -> Published:
    return Published(
        "dynptr_key.csv",
        caption,
        x="bytes",
        y=figure,
        where={"operation": kind, "data_set": "random"},
        share_of=share_of,
    )


def _rate(operation: str, title: str, kind: str = "") -> Curve:
    """Return the plot of an operation's rate beside published ones, if there are."""
    return Curve(
        name=f"rate-{operation.replace('_', '-')}",
        title=title,
        metric="operations_mops",
        kind="raw",
        x="bytes",
        x_title="longest description, bytes",
        variants=("normal", "preallocated", "dynptr"),
        where={"operation": operation},
        published=tuple(
            _published(kind, f"{key}_mops", f"{key}, published 2024 (Xeon, v6.11)")
            for key in ("normal", "dynptr")
            if kind
        ),
        alternative=f"{title} against the greatest length of a key: the rate falls about as the "
        "length grows; variable-length keys, as published, fall less.",
    )


EXPERIMENT = Experiment(
    name="key-length",
    question="What does a long key of a hash map cost, and would a variable-length key pay?",
    parameters=KeyLengthParameters,
    labels=("variant", "operation", "bytes", "data"),
    metrics=(
        Metric("operation_ns", "ns/op", "time per operation"),
        Metric("operations_mops", "Mops/s", "operations", count="operations"),
        Metric("memory_mib", "MiB", "memory", count="memory_bytes"),
    ),
    requirements=requirements,
    cases=cases,
    quick={"longest": [64, 256, 1024, 4096], "budget_s": 4.0},
    repeat=6,
    plots=(
        _rate("hit", "Lookups that find their key", "lookup"),
        _rate("miss", "Lookups of a key that is not there"),
        _rate("update_delete", "Updates and deletes", "update_delete"),
        Curve(
            name="memory",
            title="What a full map takes",
            metric="memory_mib",
            kind="raw",
            x="bytes",
            x_title="longest description, bytes",
            variants=("normal", "preallocated", "dynptr"),
            published=tuple(
                _published("lookup", f"{key}_mb", f"{key}, published 2024, MB")
                for key in ("normal", "dynptr")
            ),
            where={"operation": "hit"},
            alternative="Memory against the greatest length of a key: it grows with the length, "
            "and in powers of two where an allocator rounds.",
        ),
    ),
    growth=Growth(
        metric="operation_ns",
        x="bytes",
        each="key byte",
        from_x=256,
        variants=("normal", "preallocated"),
        along="operation",
        published=(
            _published(
                "lookup", "dynptr_mops", "published 2024, hit, dynptr against normal", "normal_mops"
            ),
            _published(
                *(
                    "update_delete",
                    "dynptr_mops",
                    "published 2024, update_delete, dynptr against normal",
                ),
                "normal_mops",
            ),
        ),
    ),
)
