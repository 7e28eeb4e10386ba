# SPDX-License-Identifier: MIT
"""The machine: its fingerprint, its noise, and what of it this process may use.

What cannot be read is None, never an error: containers, ordinary users and small guests each
hide something else.
"""

import gzip
import hashlib
import os
import platform
import re
import subprocess
from pathlib import Path
from typing import Any

from labkit import paths

_CPU = Path("/sys/devices/system/cpu")
_TICK_NS = 1_000_000_000 // os.sysconf("SC_CLK_TCK")


def environment() -> dict[str, Any]:
    """Return what a figure depends on, JSON-able; None where it cannot be read.

    Returns
    -------
    dict
        ``kernel_release``, ``kernel_version`` (the build's line), ``architecture``,
        ``command_line``, ``config_sha256``, ``hz`` (the kernel's tick rate), ``cpu_model``,
        ``cpus_online``, ``cpus_possible``, ``smt_active``, ``governors``, ``turbo``,
        ``hypervisor``, ``clock_source``, ``mitigations`` (by vulnerability), ``jit`` (by sysctl),
        ``lockdown``, ``unprivileged_bpf_disabled``, ``boot_id``, ``memory_mib``,
        ``bcc_version``, ``libbcc_version``, ``python_version``, ``labkit_version``,
        ``labkit_commit`` (with ``-dirty`` where files were changed).
    """
    config = _config(platform.release())
    return {
        "kernel_release": platform.release(),
        "kernel_version": platform.version(),
        "architecture": platform.machine(),
        "command_line": kernel_parameters_of(_text("/proc/cmdline")),
        "config_sha256": hashlib.sha256(config.encode()).hexdigest() if config else None,
        "hz": hz_of(config),
        "cpu_model": cpu_model_of(_text("/proc/cpuinfo")),
        "cpus_online": os.cpu_count(),
        "cpus_possible": cpus_of(_text(_CPU / "possible")),
        "smt_active": _flag(_CPU / "smt/active"),
        "governors": sorted(_texts(_CPU.glob("cpufreq/policy*/scaling_governor"))) or None,
        "turbo": _turbo(),
        "hypervisor": _hypervisor(),
        "clock_source": _text("/sys/devices/system/clocksource/clocksource0/current_clocksource"),
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
    """Return what disturbs a measurement: load average, steal per CPU in ns, pressure in %.

    Taken before and after: the difference of ``steal_ns`` is what the hypervisor took.
    """
    pressure = {
        name: pressure_of(_text(Path("/proc/pressure") / name)) for name in ("cpu", "memory", "io")
    }
    return {
        "load_average_1min": os.getloadavg()[0],
        "steal_ns": steal_of(_text("/proc/stat")),
        "pressure_avg10_percent": pressure,
    }


def steal_ns(cpu: int) -> int:
    """Return how long the hypervisor has kept `cpu` from us since boot.

    In ns, at the resolution of ``/proc/stat``: a tick of user space's clock, mostly 10 ms.
    """
    return steal_of(_text("/proc/stat")).get(f"cpu{cpu}", 0)


def allowed_cpus() -> set[int]:
    """Return the CPUs that this thread may run on."""
    return os.sched_getaffinity(0)


def pin_current_thread(cpu: int) -> None:
    """Keep the calling thread on `cpu`."""
    os.sched_setaffinity(0, {cpu})


def available_memory_mib() -> float | None:
    """Return the memory that can be had without swapping, in MiB, by the kernel's estimate."""
    return _memory_mib("MemAvailable")


# -- texts of the kernel --------------------------------------------------------------------------


def kernel_parameters_of(command_line: str | None) -> str | None:
    """Return what of the command line is the kernel's: the first process and its words are not."""
    if command_line is None:
        return None
    words = command_line.partition(" -- ")[0].split()
    return " ".join(word for word in words if not re.match(r"(rd)?init=", word))


def hz_of(config: str | None) -> int | None:
    """Return the tick rate that a kernel configuration names."""
    found = re.search(r"^CONFIG_HZ=(\d+)$", config or "", re.MULTILINE)
    return int(found[1]) if found else None


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


def chosen_of(text: str | None) -> str | None:
    """Return the word in brackets of a choice like ``none [integrity] confidentiality``."""
    found = re.search(r"\[(\w+)\]", text or "")
    return found[1] if found else None


def steal_of(stat: str | None) -> dict[str, int]:
    """Return the steal time in ns of each ``cpuN`` line of ``/proc/stat``."""
    rows = (line.split() for line in (stat or "").splitlines() if re.match(r"cpu\d", line))
    return {row[0]: int(row[8]) * _TICK_NS for row in rows if len(row) > 8}


def pressure_of(text: str | None) -> float | None:
    """Return the share of the last 10 s, in %, in which some task waited."""
    found = re.search(r"^some avg10=([\d.]+)", text or "")
    return float(found[1]) if found else None


# -- versions -------------------------------------------------------------------------------------


def bcc_version() -> str | None:
    """Return the version of bcc's Python part, without importing it."""
    for folder in (Path("/usr/lib/python3/dist-packages/bcc"), *_bcc_folders()):
        found = re.search(r"__version__ = '([\d.]+)", _text(folder / "version.py") or "")
        if found:
            return found[1]
    return None


def _bcc_folders() -> list[Path]:
    from importlib.util import find_spec

    spec = find_spec("bcc")
    return [Path(folder) for folder in (spec and spec.submodule_search_locations) or ()]


def libbcc_version() -> str | None:
    """Return the version of the library that bcc's Python part loads, from its file's name."""
    names = (
        path.resolve().name
        for folder in ("/usr/lib", "/usr/lib64", "/lib")
        for path in (*Path(folder).glob("libbcc.so.0"), *Path(folder).glob("*/libbcc.so.0"))
    )
    return next((name.removeprefix("libbcc.so.") for name in names if name.count(".") == 4), None)


def _labkit_version() -> str:
    import labkit

    return labkit.__version__


def _commit() -> str | None:
    if not (paths.ROOT / ".git").exists():
        return None
    try:
        said = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"],
            cwd=paths.ROOT,
            capture_output=True,
            text=True,
            timeout=5,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return said.stdout.strip() or None


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


def _hypervisor() -> str | None:
    kind = _text("/sys/hypervisor/type") or _text("/sys/class/dmi/id/sys_vendor")
    flags = re.search(r"^flags.*\bhypervisor\b", _text("/proc/cpuinfo") or "", re.MULTILINE)
    return (kind or "present") if flags else None


def _config(release: str) -> str | None:
    try:
        return gzip.decompress(Path("/proc/config.gz").read_bytes()).decode()
    except (OSError, ValueError):
        return _text(f"/boot/config-{release}")


def _memory_mib(field: str) -> float | None:
    found = re.search(rf"^{field}:\s+(\d+) kB", _text("/proc/meminfo") or "", re.MULTILINE)
    return int(found[1]) / 1024 if found else None
