# SPDX-License-Identifier: MIT
"""What this kernel and this process can do, found by trying or in BTF, never by version.

A probe returns why something is not available, or the empty string where it is.
"""

import errno
import os
import resource
from functools import cache
from pathlib import Path

from labkit.kernel import bpf, btf, host

# enum bpf_prog_type
PROGRAM_TYPES = {
    "kprobe": 2,
    "sched_cls": 3,
    "tracepoint": 5,
    "xdp": 6,
    "perf_event": 7,
    "raw_tracepoint": 17,
    "tracing": 26,
    "lsm": 29,
}

#: enum bpf_attach_type of those that load only for a function of the kernel (fentry, LSM hook).
_ATTACHED = {"tracing": 24, "lsm": 27}

_NEED_PRIVILEGE = "needs root, or CAP_BPF, CAP_PERFMON and CAP_SYS_ADMIN"


def _why(what: str, error: OSError) -> str:
    if error.errno == errno.EPERM:
        if os.geteuid() == 0:
            return f"{what}: refused by the kernel (EPERM: lockdown, or a container without rights)"
        return f"{what}: not permitted for user id {os.geteuid()}; {_NEED_PRIVILEGE}"
    if error.errno == errno.ENOSYS:
        return "this kernel has no bpf(2)"
    name = errno.errorcode.get(error.errno or 0, str(error.errno))
    return f"{what}: {name}, {os.strerror(error.errno or 0)}"


@cache
def program_type(name: str) -> str:
    """Try to load an empty program of the type `name`, one of `PROGRAM_TYPES`.

    A type that is made for one function is loaded without it: that the verifier asks for it is
    a yes.
    """
    try:
        descriptor, _ = bpf.load_program(
            PROGRAM_TYPES[name],
            attach_type=_ATTACHED.get(name, 0),
            log_bytes=4096 if name in _ATTACHED else 0,
        )
    except OSError as error:
        if name in _ATTACHED and "btf_id" in str(error.filename):
            return ""
        return _why(f"{name} programs", error)
    os.close(descriptor)
    return ""


@cache
def helper(program_type_name: str, number: int, name: str) -> str:
    """Ask the verifier about helper `number` in a program of the given type.

    The program calls it without arguments: the verifier looks the helper up before it looks at
    registers, so its words tell a missing helper from one that is merely called wrongly.
    """
    call = bpf.instruction(bpf.CALL, immediate=number) + bpf.RETURN_ZERO
    try:
        descriptor, _ = bpf.load_program(PROGRAM_TYPES[program_type_name], call, log_bytes=65536)
    except OSError as error:
        words = str(error.filename)
        if "invalid func unknown" in words:
            return f"helper {name} is not in this kernel"
        if "cannot use helper" in words or "unknown func" in words:
            return f"helper {name} is not for {program_type_name} programs"
        return "" if words else _why(f"helper {name}", error)
    os.close(descriptor)
    return ""


@cache
def objects() -> str:
    """Try to look at what the kernel holds, which tells whether something was left behind."""
    try:
        bpf.own_objects()
    except OSError as error:
        return _why("the kernel's list of programs and maps", error)
    return ""


@cache
def task_storage() -> str:
    """Try to make a task-storage map."""
    try:
        btf_fd = bpf.load_int_btf()
    except OSError as error:
        return _why("BTF", error)
    try:
        os.close(bpf.create_task_storage(f"{bpf.OWN_PREFIX}probe", btf_fd))
    except OSError as error:
        return _why("task-storage maps", error)
    finally:
        os.close(btf_fd)
    return ""


@cache
def btf_name(ending: str) -> bool:
    """Return whether the kernel's BTF has a name that ends so: an enumerator, a type, a function.

    What was never merged has no stable number; its name tells.
    """
    try:
        return f"{ending}\0".encode() in Path("/sys/kernel/btf/vmlinux").read_bytes()
    except OSError:
        return False


def available_memory(needed_mib: int, what: str) -> str:
    """Hold the memory that the kernel says is available against what is needed, in MiB."""
    available = host.available_memory_mib()
    if available is not None and available < needed_mib:
        return (
            f"{what} needs {needed_mib} MiB of memory, {available:.0f} MiB are available: "
            "end other programs, or leave it out"
        )
    return ""


def open_files(needed: int) -> str:
    """Raise the soft limit of open files where needed; say so where the hard one forbids it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft >= needed:
        return ""
    if hard != resource.RLIM_INFINITY and hard < needed:
        return f"needs {needed} open files, {hard} are allowed: raise that (ulimit -Hn {needed})"
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
    return ""


def locked_memory(needed_mib: int) -> str:
    """Raise the limit of locked memory where the kernel counts maps against it (before 5.11)."""
    types = btf.kernel()
    if types is None or not types.members("bpf_map_memory"):
        return ""
    needed = needed_mib * 2**20
    soft, hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if hard != resource.RLIM_INFINITY and hard < needed:
        return f"maps need {needed_mib} MiB of locked memory: raise that limit (ulimit -l)"
    if soft != resource.RLIM_INFINITY and soft < needed:
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (hard, hard))
    return ""
