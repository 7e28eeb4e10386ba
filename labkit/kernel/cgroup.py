# SPDX-License-Identifier: MIT
"""What memory a BPF map is charged with, read from a cgroup of its own.

The kernel charges a map's memory, and what its elements take later, to the memory cgroup of the
task that creates the map. So a fresh child cgroup is entered for the creation and left again: it
then holds no process, and what it is charged with is the map.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from itertools import count
from pathlib import Path
from typing import Self, TypeVar

from labkit.kernel import bpf, btf, host

#: Of the map whose charge is known, with which a reading is tried; the kernel hands charges out
#: in batches of 64 pages a CPU, and adds what the map needs beside its values.
KNOWN_BYTES = 4 * 2**20
_SLACK_BYTES = 2**20

_PREFIX = f"{bpf.OWN_PREFIX}mem"
_numbers = count()

Made = TypeVar("Made")


@dataclass(frozen=True)
class _Hierarchy:
    """Where cgroups of ours are made, and what their files are called in this version."""

    version: int
    own: Path
    parent: Path

    @property
    def usage(self) -> str:
        # In version 1 the other file counts page cache, too.
        return {1: "memory.kmem.usage_in_bytes", 2: "memory.current"}[self.version]

    @property
    def peak(self) -> str:
        return {1: "memory.kmem.max_usage_in_bytes", 2: "memory.peak"}[self.version]


class Refused(Exception):
    """Memory cannot be read here; the message says why."""


def _hierarchy() -> _Hierarchy:
    found = host.cgroup("memory")
    if found is None:
        raise Refused("no mounted cgroup hierarchy has the memory controller")
    version, own = found
    if version == 1:
        return _Hierarchy(version, own, own)
    # Version 2 has no controllers below a group with processes: our groups are leaves beside ours.
    if (own / "memory.current").exists():
        if not (own.parent / "cgroup.procs").exists():
            raise Refused(f"{own} holds processes and is the top of what can be seen of cgroup v2")
        return _Hierarchy(version, own, own.parent)
    if "memory" not in (own / "cgroup.subtree_control").read_text().split():
        raise Refused(
            f"{own} hands no memory controller down: echo +memory > {own}/cgroup.subtree_control"
        )
    return _Hierarchy(version, own, own)


class MemoryGroup:
    """A cgroup that counts the memory of what is created in it; removed with its context.

    Raises
    ------
    OSError
        Where it cannot be made, entered or read.
    Refused
        Where there is no memory controller.
    """

    def __init__(self) -> None:
        self._hierarchy = _hierarchy()
        started = _started(os.getpid())
        name = f"{_PREFIX}_{os.getpid()}_{started}_{next(_numbers)}"
        self.path = self._hierarchy.parent / name
        #: What the group was charged with before anything was created in it.
        self.before_bytes = 0

    def __enter__(self) -> Self:
        self.path.mkdir()
        try:
            self._usage = os.open(self.path / self._hierarchy.usage, os.O_RDONLY | os.O_CLOEXEC)
        except BaseException:
            self.path.rmdir()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._usage)
        self.path.rmdir()

    def create(self, make: Callable[[], Made]) -> Made:
        """Return what `make` makes while this process is in the group."""
        (self.path / "cgroup.procs").write_text(f"{os.getpid()}\n")
        try:
            self.before_bytes = self.usage_bytes()
            return make()
        finally:
            (self._hierarchy.own / "cgroup.procs").write_text(f"{os.getpid()}\n")

    def usage_bytes(self) -> int:
        """Return what the group is charged with now; some microseconds."""
        return int(os.pread(self._usage, 32, 0))

    def peak_bytes(self) -> int | None:
        """Return the kernel's own high-water mark, None where it keeps none (v2 before 5.19)."""
        try:
            return int((self.path / self._hierarchy.peak).read_text())
        except FileNotFoundError:
            return None


def sweep() -> None:
    """Remove groups that killed processes left behind."""
    try:
        left = list(_hierarchy().parent.glob(f"{_PREFIX}_*"))
    except (OSError, Refused):
        return
    for group in left:
        process, started, _ = group.name.removeprefix(f"{_PREFIX}_").split("_")
        if _started(int(process)) != int(started):
            with suppress(OSError):
                group.rmdir()


def _started(process: int) -> int | None:
    """Return when a process was started, in ticks after boot; None where there is none."""
    try:
        return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[19])
    except OSError:
        return None


@cache
def unavailable() -> str:
    """Return why a map's memory cannot be read here, or the empty text.

    A map of known size is made, and the reading must show it.
    """
    types = btf.kernel()
    if types is not None and types.members("bpf_map_memory"):
        return "maps of this kernel are charged to the user's locked memory, not to a cgroup"
    try:
        with MemoryGroup() as group, _known(group):
            seen_bytes = group.usage_bytes() - group.before_bytes
    except Refused as why:
        return str(why)
    except OSError as error:
        return f"no memory cgroup can be used: {error.strerror} ({error.filename or 'bpf'})"
    if not KNOWN_BYTES <= seen_bytes <= KNOWN_BYTES + _SLACK_BYTES:
        return (
            f"a cgroup shows {seen_bytes} bytes for a map of {KNOWN_BYTES} bytes: is the kernel's "
            "memory counted (cgroup.memory=nokmem)?"
        )
    return ""


@contextmanager
def _known(group: MemoryGroup) -> Iterator[None]:
    value_bytes = 4096
    descriptor = group.create(
        lambda: bpf.create_map(
            f"{bpf.OWN_PREFIX}known",
            bpf.MAP_TYPE_ARRAY,
            key_bytes=4,
            value_bytes=value_bytes,
            entries=KNOWN_BYTES // value_bytes,
        )
    )
    try:
        yield
    finally:
        os.close(descriptor)
