# SPDX-License-Identifier: MIT
"""The machine: its fingerprint, its noise, and what of it this process may use.

What cannot be read is None, never an error: containers, ordinary users and small guests each
hide something else.
"""

import gzip
import hashlib
import importlib.util
import os
import platform
import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from labkit import paths

_CPU = Path("/sys/devices/system/cpu")
_CLOCK_SOURCE = Path("/sys/devices/system/clocksource/clocksource0")
_TICK_NS = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
_CLOCK_MONOTONIC_COARSE = 6  # linux/time.h; the module time does not name it


def environment() -> dict[str, Any]:
    """Return what a figure depends on, JSON-able; None where it cannot be read.

    Returns
    -------
    dict
        ``kernel_release``, ``kernel_version`` (the build's line), ``architecture``,
        ``command_line`` (the kernel's part), ``config_sha256``, ``hz`` (the kernel's tick rate),
        ``cpu_model``, ``cpus_online``, ``cpus_possible``, ``smt_active``, ``governors`` (sorted,
        each once), ``turbo``, ``hypervisor`` (see `hypervisor_of`), ``clock_source``,
        ``mitigations`` (by vulnerability), ``jit`` (by sysctl), ``lockdown``,
        ``unprivileged_bpf_disabled``, ``boot_id``, ``memory_mib``, ``bcc_version``,
        ``libbcc_version``, ``python_version``, ``labkit_version``, ``labkit_commit`` (with
        ``-dirty`` where code differs from it).
    """
    config = _config(platform.release())
    cpuinfo = _text("/proc/cpuinfo")
    return {
        "kernel_release": platform.release(),
        "kernel_version": platform.version(),
        "architecture": platform.machine(),
        "command_line": kernel_parameters_of(_text("/proc/cmdline")),
        "config_sha256": hashlib.sha256(config).hexdigest() if config else None,
        "hz": hz_of(time.clock_getres(_CLOCK_MONOTONIC_COARSE)),
        "cpu_model": cpu_model_of(cpuinfo),
        "cpus_online": os.sysconf("SC_NPROCESSORS_ONLN"),
        "cpus_possible": cpus_of(_text(_CPU / "possible")),
        "smt_active": _flag(_CPU / "smt/active"),
        "governors": sorted(_texts(_CPU.glob("cpufreq/policy*/scaling_governor"))) or None,
        "turbo": _turbo(),
        "hypervisor": hypervisor_of(
            cpuinfo,
            _text(_CLOCK_SOURCE / "available_clocksource"),
            _text("/sys/hypervisor/type") or _text("/sys/class/dmi/id/sys_vendor"),
        ),
        "clock_source": _text(_CLOCK_SOURCE / "current_clocksource"),
        "mitigations": _folder(_CPU / "vulnerabilities"),
        "jit": _folder(Path("/proc/sys/net/core"), "bpf_jit_*"),
        "lockdown": chosen_of(_text("/sys/kernel/security/lockdown")),
        "unprivileged_bpf_disabled": _text("/proc/sys/kernel/unprivileged_bpf_disabled"),
        "boot_id": _text("/proc/sys/kernel/random/boot_id"),
        "memory_mib": _memory_mib("MemTotal"),
        "bcc_version": bcc_version(),
        "libbcc_version": libbcc_version(),
        "python_version": platform.python_version(),
        "labkit_version": _labkit_version(),
        "labkit_commit": _commit(),
    }


def noise() -> dict[str, Any]:
    """Return what disturbs a measurement: load average, steal in ns, pressure in %.

    Taken before and after: the difference of ``steal_ns`` is what the hypervisor took, of all
    CPUs (``cpu``) and of each (``cpu0``, ...).
    """
    pressure = {
        name: pressure_of(_text(Path("/proc/pressure") / name)) for name in ("cpu", "memory", "io")
    }
    return {
        "load_average_1min": load_average_of(_text("/proc/loadavg")),
        "steal_ns": steal_of(_text("/proc/stat")),
        "pressure_avg10_percent": pressure,
    }


def steal_ns(cpu: int) -> int:
    """Return how long the hypervisor has kept `cpu` from us since boot.

    In ns, at the resolution of ``/proc/stat``: a tick of user space's clock, mostly 10 ms. 0 where
    the kernel does not tell.
    """
    return steal_of(_text("/proc/stat")).get(f"cpu{cpu}", 0)


def allowed_cpus() -> set[int]:
    """Return the CPUs that this thread may run on."""
    return os.sched_getaffinity(0)


def pin_current_thread(cpu: int) -> None:
    """Keep the calling thread on `cpu`."""
    os.sched_setaffinity(0, {cpu})


def available_memory_mib() -> float | None:
    """Return the memory that can be had without swapping, in MiB.

    The kernel's estimate, or what the memory cgroups around this process leave if that is less:
    what BPF maps take is charged to them.
    """
    estimates = [_memory_mib("MemAvailable"), *_left_by_cgroups_mib()]
    return min((one for one in estimates if one is not None), default=None)


def cgroup(controller: str) -> tuple[int, Path] | None:
    """Return the version (1 or 2) and the folder of this process's cgroup of a controller.

    None where no mounted hierarchy has it.
    """
    mounts, own = _text("/proc/self/mountinfo"), _text("/proc/self/cgroup")
    found = cgroup_of(mounts, own, controller)
    if found is None:
        return None
    version, folder, point = found
    if version == 2 and controller not in (_text(point / "cgroup.controllers") or "").split():
        return None
    return version, folder if folder.is_dir() else point


# -- texts of the kernel --------------------------------------------------------------------------


def kernel_parameters_of(command_line: str | None) -> str | None:
    """Return what of the command line is the kernel's: the first process and its words are not."""
    if command_line is None:
        return None
    words = command_line.partition(" -- ")[0].split()
    return " ".join(word for word in words if not re.match(r"(rd)?init=", word))


def hz_of(coarse_resolution_s: float) -> int | None:
    """Return the tick rate, of which a coarse clock's resolution is the reciprocal.

    The clocks called coarse advance with the tick, so this is the running kernel's CONFIG_HZ, also
    where its configuration cannot be read. USER_HZ, which sysconf tells, is another thing.
    """
    hz = round(1 / coarse_resolution_s) if coarse_resolution_s > 0 else 0
    return hz if 10 <= hz <= 10_000 else None


def cpu_model_of(cpuinfo: str | None) -> str | None:
    """Return the CPU's name in ``/proc/cpuinfo``; on arm64, which has none, its part numbers."""
    fields: dict[str, str] = dict(re.findall(r"^(.+?)\s*: (.+)$", cpuinfo or "", re.MULTILINE))
    if "model name" in fields:
        return fields["model name"]
    if "CPU part" in fields:
        return f"implementer {fields.get('CPU implementer')} part {fields['CPU part']}"
    return None


def cpus_of(text: str | None) -> int | None:
    """Return how many CPUs a list like ``0-3,7`` holds."""
    if not text:
        return None
    ranges = (part.partition("-") for part in text.split(","))
    return sum(int(last or first) - int(first) + 1 for first, _, last in ranges)


def hypervisor_of(cpuinfo: str | None, clock_sources: str | None, vendor: str | None) -> str | None:
    """Return the name of what runs this kernel as a guest.

    ``none`` on bare metal, ``present`` for one without a name, ``qemu-tcg`` for emulation; None
    where the CPU does not say whether there is one, as all but x86.

    Parameters
    ----------
    cpuinfo
        ``/proc/cpuinfo``.
    clock_sources
        The available ones: a paravirtual one is there only where the kernel has recognised the
        hypervisor that offers it.
    vendor
        Of the machine, by firmware or by ``/sys/hypervisor``.
    """
    if "QEMU TCG" in (cpu_model_of(cpuinfo) or ""):
        return "qemu-tcg"
    flags = re.search(r"^flags\s*:.*", cpuinfo or "", re.MULTILINE)
    if flags and "hypervisor" not in flags[0].split():
        return "none"
    signs = {"kvm-clock": "kvm", "hyperv_clocksource": "hyperv", "xen": "xen"}
    for sign, name in signs.items():
        if sign in (clock_sources or ""):
            return name
    return (vendor or "present") if flags or vendor in ("QEMU", "xen") else None


def chosen_of(text: str | None) -> str | None:
    """Return the word in brackets of a choice like ``none [integrity] confidentiality``."""
    found = re.search(r"\[(\w+)\]", text or "")
    return found[1] if found else None


def load_average_of(loadavg: str | None) -> float | None:
    """Return the first number of ``/proc/loadavg``: tasks that ran or waited, over a minute."""
    return float(loadavg.split()[0]) if loadavg else None


def steal_of(stat: str | None) -> dict[str, int]:
    """Return the steal time in ns of ``cpu`` (all) and each ``cpuN`` line of ``/proc/stat``."""
    rows = (line.split() for line in (stat or "").splitlines() if line.startswith("cpu"))
    return {row[0]: int(row[8]) * _TICK_NS for row in rows if len(row) > 8}


def pressure_of(text: str | None) -> float | None:
    """Return the share of the last 10 s, in %, in which some task waited."""
    found = re.search(r"^some avg10=([\d.]+)", text or "")
    return float(found[1]) if found else None


def cgroup_of(
    mountinfo: str | None, own_cgroups: str | None, controller: str
) -> tuple[int, Path, Path] | None:
    """Return the version, the process's folder and the mount point of a controller's hierarchy.

    Parameters
    ----------
    mountinfo, own_cgroups
        ``/proc/self/mountinfo`` and ``/proc/self/cgroup``.
    controller
        Such as ``memory``. It lives in version 1 where a hierarchy of that version has it, else in
        version 2, if anywhere: the text does not tell.
    """
    own = {}
    for line in (own_cgroups or "").splitlines():
        _, controllers, path = line.split(":", 2)
        own.update(dict.fromkeys(controllers.split(","), path))
    found = None
    for line in (mountinfo or "").splitlines():
        left, _, right = line.partition(" - ")
        root, point = left.split()[3:5]
        kind, _, options = right.split()[:3]
        version_1 = kind == "cgroup" and controller in options.split(",")
        if version_1 or (kind == "cgroup2" and found is None):
            path = own.get(controller if version_1 else "", "/")
            below = os.path.relpath(path, root)
            found = (1 if version_1 else 2, Path(os.path.normpath(f"{point}/{below}")), Path(point))
            if version_1:
                break
    return found


# -- versions -------------------------------------------------------------------------------------


def bcc_version() -> str | None:
    """Return the version of bcc's Python part, without importing it."""
    spec = importlib.util.find_spec("bcc")
    for folder in (spec and spec.submodule_search_locations) or ():
        said = re.search(r"__version__ = '([\d.]+)", _text(Path(folder) / "version.py") or "")
        if said:
            return said[1]
    return None


def libbcc_version() -> str | None:
    """Return the version of the library that bcc's Python part would load, without loading it.

    The loader's cache tells where the library is, and the name of its file the version.
    """
    cache = _text("/etc/ld.so.cache") or ""
    for path in re.findall(r"/[^\0]*/libbcc\.so\.0(?=\0)", cache):
        version = Path(path).resolve().name.removeprefix("libbcc.so.")
        if version.count(".") == 2:
            return version
    return None


def _labkit_version() -> str:
    import labkit

    return labkit.__version__


def commit_of(status: str) -> str | None:
    """Return the commit in ``git status --porcelain=v2 --branch``; see `environment`."""
    commit = re.search(r"^# branch\.oid ([0-9a-f]{12})", status, re.MULTILINE)
    changed = re.search(r"^[^#]", status, re.MULTILINE)
    return commit[1] + ("-dirty" if changed else "") if commit else None


def _commit() -> str | None:
    if not (paths.ROOT / ".git").exists():
        return None
    # Named outright, a repository of another user's is read, too: its code runs already. Without
    # optional locks git does not write its index, which in a child of root's would become root's.
    where = [f"--git-dir={paths.ROOT / '.git'}", f"--work-tree={paths.ROOT}"]
    command = ["git", "--no-optional-locks", *where, "status", "--porcelain=v2", "--branch"]
    try:
        said = subprocess.run(
            [*command, "--", "labkit", "bpf"],
            cwd=paths.ROOT,
            env={name: value for name, value in os.environ.items() if not name.startswith("GIT_")},
            capture_output=True,
            text=True,
            timeout=5,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return commit_of(said.stdout)


# -- reading --------------------------------------------------------------------------------------


def _text(path: Path | str) -> str | None:
    try:
        return Path(path).read_text(errors="replace").strip()
    except OSError:
        return None


def _texts(found: Any) -> set[str]:
    return {text for text in map(_text, found) if text}


def _folder(folder: Path, pattern: str = "*") -> dict[str, str] | None:
    texts = {path.name: _text(path) for path in sorted(folder.glob(pattern))}
    return {name: text for name, text in texts.items() if text is not None} or None


def _flag(path: Path) -> bool | None:
    text = _text(path)
    return None if text is None else text == "1"


def _turbo() -> bool | None:
    no_turbo = _flag(_CPU / "intel_pstate/no_turbo")
    return _flag(_CPU / "cpufreq/boost") if no_turbo is None else not no_turbo


def _config(release: str) -> bytes | None:
    try:
        return gzip.decompress(Path("/proc/config.gz").read_bytes())
    except OSError:
        pass
    try:
        return Path(f"/boot/config-{release}").read_bytes()
    except OSError:
        return None


def _left_by_cgroups_mib() -> Iterator[float]:
    """Yield what each memory cgroup from this process's up has left; page cache can be freed."""
    found = cgroup("memory")
    if found is None:
        return
    version, folder = found
    limit_name, used_name, cached_name = {
        1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
        2: ("memory.max", "memory.current", "inactive_file"),
    }[version]
    # Above the mount point, and in the root of version 2, there is no such file.
    while (used := _text(folder / used_name)) is not None:
        limit = _text(folder / limit_name) or ""
        stat = _text(folder / "memory.stat") or ""
        cached = re.search(rf"^{cached_name} (\d+)$", stat, re.MULTILINE)
        if limit.isdigit():
            yield (int(limit) - int(used) + int(cached[1] if cached else 0)) / 2**20
        folder = folder.parent


def _memory_mib(field: str) -> float | None:
    found = re.search(rf"^{field}:\s+(\d+) kB", _text("/proc/meminfo") or "", re.MULTILINE)
    return int(found[1]) / 1024 if found else None
