# SPDX-License-Identifier: MIT
"""The running kernel's types, read from its BTF: what a kernel can do is often told by a name.

The layout is that of the kernel's ``Documentation/bpf/btf.rst``.
"""

import struct
from collections.abc import Iterator
from functools import cache
from pathlib import Path

_VMLINUX = Path("/sys/kernel/btf/vmlinux")

_STRUCT, _ENUM = 4, 6
# Bytes that follow a type's first twelve: fixed ones, and some for each of its members.
_FIXED = {1: 4, 3: 12, 14: 4, 17: 4}
_EACH = {4: 12, 5: 12, 6: 8, 13: 8, 15: 12, 19: 12}


class Types:
    """A BTF blob, such as ``/sys/kernel/btf/vmlinux``.

    Raises
    ------
    ValueError
        Where it is none of this machine's byte order.
    """

    def __init__(self, blob: bytes) -> None:
        try:
            magic, _, _, header, types, length, strings, _ = struct.unpack_from("=HBBIIIII", blob)
        except struct.error:
            magic = 0
        if magic != 0xEB9F:
            raise ValueError("not BTF of this machine's byte order")
        self._types = memoryview(blob)[header + types : header + types + length]
        self._strings = blob[header + strings :]

    def members(self, name: str) -> list[str]:
        """Return the names of the members of ``struct name``, an empty list where there is none."""
        return [
            self._string(member)
            for position, count in self._named(_STRUCT, name)
            for member, _, _ in struct.iter_unpack(
                "=III", self._types[position : position + 12 * count]
            )
        ]

    def enumerator(self, name: str) -> int | None:
        """Return the value of an enumerator of any 32-bit enum, None where there is none."""
        wanted = self._offset(name)
        if wanted is None:
            return None
        for position, count in self._of_kind(_ENUM):
            for member, value in struct.iter_unpack(
                "=Ii", self._types[position : position + 8 * count]
            ):
                if member == wanted:
                    return int(value)
        return None

    def _offset(self, name: str) -> int | None:
        # The kernel's strings are deduplicated: a name has one offset.
        found = self._strings.find(f"\0{name}\0".encode())
        return None if found < 0 else found + 1

    def _string(self, offset: int) -> str:
        return self._strings[offset : self._strings.index(b"\0", offset)].decode()

    def _named(self, kind: int, name: str) -> Iterator[tuple[int, int]]:
        wanted = self._offset(name)
        if wanted is not None:
            yield from self._of_kind(kind, wanted)

    def _of_kind(self, wanted: int, name: int | None = None) -> Iterator[tuple[int, int]]:
        """Yield where the members of each type of a kind begin, and how many they are."""
        read = struct.Struct("=II").unpack_from
        position, types = 0, self._types
        while position < len(types):
            offset, info = read(types, position)
            kind, count = info >> 24 & 31, info & 0xFFFF
            if kind == wanted and name in (None, offset):
                yield position + 12, count
            position += 12 + _FIXED.get(kind, 0) + _EACH.get(kind, 0) * count


@cache
def kernel() -> Types | None:
    """Return the running kernel's types, None where it does not show them."""
    try:
        return Types(_VMLINUX.read_bytes())
    except (OSError, ValueError):
        return None
