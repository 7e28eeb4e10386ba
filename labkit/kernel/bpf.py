# SPDX-License-Identifier: MIT
"""The bpf(2) system call: test runs, maps that bcc cannot make, and what is loaded.

Attribute layouts follow `union bpf_attr` in the kernel's uapi header ``linux/bpf.h``; every
field not set is zero, which is what the kernel expects of a field that the caller does not know.
"""

import ctypes
import errno
import os
import platform
import struct
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from labkit.errors import CannotRunError

_SYSCALL_NUMBER = {
    "x86_64": 321,
    "aarch64": 280,
    "riscv64": 280,
    "loongarch64": 280,
    "s390x": 351,
    "ppc64le": 361,
    "ppc64": 361,
}
_NUMBER = _SYSCALL_NUMBER.get(platform.machine())

# enum bpf_cmd
MAP_CREATE, MAP_LOOKUP_ELEM, MAP_UPDATE_ELEM = 0, 1, 2
PROG_LOAD, PROG_TEST_RUN = 5, 10
PROG_GET_NEXT_ID, MAP_GET_NEXT_ID, LINK_GET_NEXT_ID = 11, 12, 31
PROG_GET_FD_BY_ID, MAP_GET_FD_BY_ID, LINK_GET_FD_BY_ID = 13, 14, 30
OBJ_GET_INFO_BY_FD, BTF_LOAD, MAP_UPDATE_BATCH = 15, 18, 26

MAP_TYPE_HASH, MAP_TYPE_ARRAY, MAP_TYPE_TASK_STORAGE = 1, 2, 29
F_NO_PREALLOC = 1

#: Names of labkit's own programs and maps start so; the kernel keeps 15 characters.
OWN_PREFIX = "lab_"

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


def bpf(command: int, attributes: ctypes.Array[ctypes.c_char] | ctypes.Structure) -> int:
    """Call bpf(2) and return its result; interrupted calls are made again.

    Raises
    ------
    OSError
        With the kernel's errno.
    CannotRunError
        On an architecture whose system-call number is not known.
    """
    if _NUMBER is None:
        raise CannotRunError(
            f"bpf(2) has no known system-call number on {platform.machine()!r}; "
            f"known: {', '.join(_SYSCALL_NUMBER)}"
        )
    while True:
        result: int = _libc.syscall(
            _NUMBER, command, ctypes.byref(attributes), ctypes.sizeof(attributes)
        )
        if result >= 0:
            return result
        error = ctypes.get_errno()
        if error != errno.EINTR:
            raise OSError(error, os.strerror(error))


def _attributes(layout: str, *values: int | bytes) -> ctypes.Array[ctypes.c_char]:
    packed = struct.pack("=" + layout, *values)
    return ctypes.create_string_buffer(packed, len(packed))


# -- test runs ------------------------------------------------------------------------------------


class _TestRunAttributes(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_uint32) for name in ("prog_fd", "retval", "size_in", "size_out")),
        *((name, ctypes.c_uint64) for name in ("data_in", "data_out")),
        *((name, ctypes.c_uint32) for name in ("repeat", "duration", "ctx_size_in")),
        *((name, ctypes.c_uint32) for name in ("ctx_size_out",)),
        *((name, ctypes.c_uint64) for name in ("ctx_in", "ctx_out")),
        *((name, ctypes.c_uint32) for name in ("flags", "cpu", "batch_size", "padding")),
    )


class RawTracepointRun:
    """Run a raw tracepoint program in place (BPF_PROG_TEST_RUN), on the calling thread's CPU.

    Called with up to twelve whole numbers, which the program reads from ``ctx->args``; returns the
    program's return value (32 bits, unsigned). Nothing is attached and no other task sees the
    program. While one call runs the kernel does not preempt it.

    Not safe to call from two threads at once: the argument buffer is reused, so that a call costs
    little more than the system call.
    """

    MAX_ARGUMENTS = 12

    def __init__(self, program_fd: int) -> None:
        self._arguments = (ctypes.c_uint64 * self.MAX_ARGUMENTS)()
        self._attributes = _TestRunAttributes(
            prog_fd=program_fd,
            ctx_size_in=ctypes.sizeof(self._arguments),
            ctx_in=ctypes.addressof(self._arguments),
        )

    def __call__(self, *arguments: int) -> int:
        """Run once and return the program's return value."""
        struct.pack_into(f"={len(arguments)}Q", self._arguments, 0, *arguments)
        bpf(PROG_TEST_RUN, self._attributes)
        return int(self._attributes.retval)

    def prepared(self, *arguments: int) -> Callable[[], int]:
        """Return what runs once with these arguments, as fast as Python can.

        It works as long as this object lives, and with these arguments until it gets others. Its
        result is negative where the kernel refused; see `ctypes.get_errno` then.
        """
        struct.pack_into(f"={len(arguments)}Q", self._arguments, 0, *arguments)
        size = ctypes.sizeof(self._attributes)
        return partial(_libc.syscall, _NUMBER, PROG_TEST_RUN, ctypes.byref(self._attributes), size)


# -- maps -----------------------------------------------------------------------------------------


def update_batch(
    map_fd: int, keys: ctypes.Array[ctypes.c_uint32], values: ctypes.Array[ctypes.c_uint32]
) -> None:
    """Put `keys` and `values` (equally long) into a map in one system call.

    For an array of maps the values are file descriptors of inner maps; the outer map holds a
    reference of its own, so the descriptors may be closed afterwards.
    """
    bpf(
        MAP_UPDATE_BATCH,
        _attributes(
            "QQQQIIQQ",
            0,
            0,
            ctypes.addressof(keys),
            ctypes.addressof(values),
            len(keys),
            map_fd,
            0,
            0,
        ),
    )


def create_map(
    name: str, map_type: int, *, key_bytes: int, value_bytes: int, entries: int, flags: int = 0
) -> int:
    """Create a map; return its descriptor."""
    return bpf(
        MAP_CREATE,
        _attributes(
            "IIIIIII16s",
            *(map_type, key_bytes, value_bytes, entries, flags, 0, 0),
            name.encode()[:15],
        ),
    )


def load_int_btf() -> int:
    """Load a BTF object of one type, a signed 32-bit ``int`` with id 1; return its descriptor."""
    strings = b"\0int\0"
    signed_32_bits = (1 << 24) | 32
    types = struct.pack("=IIII", 1, 1 << 24, 4, signed_32_bits)
    header = struct.pack("=HBBIIIII", 0xEB9F, 1, 0, 24, 0, len(types), len(types), len(strings))
    blob = ctypes.create_string_buffer(header + types + strings, 24 + len(types) + len(strings))
    return bpf(BTF_LOAD, _attributes("QQIIII", ctypes.addressof(blob), 0, len(blob), 0, 0, 0))


def create_task_storage(name: str, btf_fd: int) -> int:
    """Create a task-storage map of one int per task; return its descriptor.

    `btf_fd` comes from `load_int_btf`: the kernel demands types of key and value for these maps.
    """
    return bpf(
        MAP_CREATE,
        _attributes(
            "IIIIIII16sIIII",
            *(MAP_TYPE_TASK_STORAGE, 4, 4, 0, F_NO_PREALLOC, 0, 0),
            name.encode()[:15],
            *(0, btf_fd, 1, 1),
        ),
    )


def fill_with_task_storage(outer_fd: int, first: int, count: int) -> None:
    """Create `count` task-storage maps and put them into an array of maps from slot `first` on.

    They are created in index order, since the kernel hands out its cache slots in that order, and
    in groups whose descriptors are closed at once, so that a low limit of open files suffices.
    """
    group = 32
    btf_fd = load_int_btf()
    try:
        for start in range(first, first + count, group):
            indices = range(start, min(start + group, first + count))
            descriptors: list[int] = []
            try:
                for index in indices:
                    descriptors.append(create_task_storage(f"{OWN_PREFIX}ts_{index}", btf_fd))
                group_of = ctypes.c_uint32 * len(indices)
                update_batch(outer_fd, group_of(*indices), group_of(*descriptors))
            finally:
                for descriptor in descriptors:
                    os.close(descriptor)
    finally:
        os.close(btf_fd)


def fill_hash_with_integers(map_fd: int, count: int) -> None:
    """Fill a hash map of 32-bit keys and values with key = value = 0 .. count-1."""
    chunk = 65_536
    for start in range(0, count, chunk):
        values = array("I", range(start, min(start + chunk, count)))
        keys = (ctypes.c_uint32 * len(values)).from_buffer(values)
        update_batch(map_fd, keys, keys)


# -- programs, raw --------------------------------------------------------------------------------


def instruction(code: int, *, immediate: int = 0) -> bytes:
    """Return one eBPF instruction on register 0 (8 bytes, RFC 9669 section 3)."""
    return struct.pack("=BBhi", code, 0, 0, immediate)


RETURN_ZERO = instruction(0xB7) + instruction(0x95)


def load_program(
    program_type: int,
    instructions: bytes = RETURN_ZERO,
    *,
    attach_type: int = 0,
    attach_btf_id: int = 0,
    log_bytes: int = 0,
    name: str = f"{OWN_PREFIX}probe",
) -> tuple[int, str]:
    """Load a program; return (descriptor, verifier's words), or raise OSError with them as text.

    The words are empty unless `log_bytes` asks for them.
    """
    code = ctypes.create_string_buffer(instructions, len(instructions))
    license_text = ctypes.create_string_buffer(b"Dual MIT/GPL")
    log = ctypes.create_string_buffer(max(log_bytes, 1))
    attributes = _attributes(
        "IIQQIIQII16sIIIIQIIQIIIi",
        *(program_type, len(instructions) // 8),
        *(ctypes.addressof(code), ctypes.addressof(license_text)),
        *((1, log_bytes, ctypes.addressof(log)) if log_bytes else (0, 0, 0)),
        *(0, 0, name.encode()[:15]),
        *(0, attach_type, 0, 0, 0, 0, 0, 0, 0, attach_btf_id, 0, 0),
    )
    try:
        return bpf(PROG_LOAD, attributes), log.value.decode(errors="replace")
    except OSError as error:
        raise OSError(error.errno, os.strerror(error.errno or 0), log.value.decode()) from None


def with_map(instructions: Sequence[bytes], replaced_fd: int, map_fd: int) -> bytes:
    """Return a program's code with another map in place of one of its maps.

    A map is loaded as the immediate of an instruction whose source register says that it is a
    descriptor (BPF_PSEUDO_MAP_FD).
    """
    load_immediate, is_map_fd = 0x18, 0x10
    code = list(instructions)
    for at, one in enumerate(instructions):
        operation, registers, _, immediate = struct.unpack("=BBhi", one)
        is_map = operation == load_immediate and registers & 0xF0 == is_map_fd
        if is_map and immediate == replaced_fd:
            code[at] = one[:4] + struct.pack("=i", map_fd)
    return b"".join(code)


# -- what is loaded -------------------------------------------------------------------------------

_KINDS = {
    "program": (PROG_GET_NEXT_ID, PROG_GET_FD_BY_ID, 64),  # offset of name in bpf_prog_info
    "map": (MAP_GET_NEXT_ID, MAP_GET_FD_BY_ID, 24),  # offset of name in bpf_map_info
}


@dataclass(frozen=True, order=True)
class KernelObject:
    """A program, map or link that the kernel holds; links have no name of their own."""

    kind: str
    id: int
    name: str


def _ids(command: int) -> Iterator[int]:
    identity = 0
    while True:
        attributes = _attributes("III", identity, 0, 0)
        try:
            bpf(command, attributes)
        except OSError as error:
            if error.errno == errno.ENOENT:
                return
            raise
        identity = struct.unpack_from("=I", attributes, 4)[0]
        yield identity


@contextmanager
def _opened(command: int, identity: int) -> Iterator[int]:
    descriptor = bpf(command, _attributes("III", identity, 0, 0))
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _info(descriptor: int, buffer: ctypes.Array[ctypes.c_char]) -> None:
    bpf(
        OBJ_GET_INFO_BY_FD,
        _attributes("IIQ", descriptor, len(buffer), ctypes.addressof(buffer)),
    )


def own_objects() -> frozenset[KernelObject]:
    """Return the programs and maps in the kernel whose name starts with `OWN_PREFIX`.

    An object that goes away while it is looked at is left out. Needs CAP_SYS_ADMIN.
    """
    found = set()
    for kind, (next_id, fd_by_id, name_offset) in _KINDS.items():
        for identity in _ids(next_id):
            info = ctypes.create_string_buffer(256)
            try:
                with _opened(fd_by_id, identity) as descriptor:
                    _info(descriptor, info)
            except OSError as error:
                if error.errno == errno.ENOENT:
                    continue
                raise
            name = info.raw[name_offset : name_offset + 16].split(b"\0")[0].decode(errors="replace")
            if name.startswith(OWN_PREFIX):
                found.add(KernelObject(kind, identity, name))
    return frozenset(found)


def link_ids() -> frozenset[int]:
    """Return the ids of all links in the kernel. Needs CAP_SYS_ADMIN."""
    return frozenset(_ids(LINK_GET_NEXT_ID))


def translated_instructions(program_fd: int) -> list[bytes]:
    """Return the instructions of a loaded program as the verifier left them, 8 bytes each."""
    info = ctypes.create_string_buffer(256)
    _info(program_fd, info)
    # struct bpf_prog_info: type, id, tag[8], jited_prog_len, xlated_prog_len, two pointers
    length = struct.unpack_from("=I", info, 20)[0]
    code = ctypes.create_string_buffer(length)
    info = ctypes.create_string_buffer(256)
    struct.pack_into("=I", info, 20, length)
    struct.pack_into("=Q", info, 32, ctypes.addressof(code))
    _info(program_fd, info)
    raw = bytes(code)
    return [raw[at : at + 8] for at in range(0, length, 8)]


def update_element(map_fd: int, key: int, value: bytes) -> None:
    """Put one value under a 32-bit key."""
    _element(MAP_UPDATE_ELEM, map_fd, key, ctypes.create_string_buffer(value, len(value)))


def element(map_fd: int, key: int, value_bytes: int) -> bytes:
    """Return the value under a 32-bit key, of a map whose values have `value_bytes`."""
    value = ctypes.create_string_buffer(value_bytes)
    _element(MAP_LOOKUP_ELEM, map_fd, key, value)
    return value.raw


def _element(command: int, map_fd: int, key: int, value: ctypes.Array[ctypes.c_char]) -> None:
    key_buffer = ctypes.c_uint32(key)
    bpf(
        command,
        _attributes("IxxxxQQQ", map_fd, ctypes.addressof(key_buffer), ctypes.addressof(value), 0),
    )
