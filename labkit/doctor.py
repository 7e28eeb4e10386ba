# SPDX-License-Identifier: MIT
"""``./lab doctor``: what is wrong with this machine for measuring, and what mends it."""

import os
import re
import resource
import shutil
import subprocess
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from labkit import paths
from labkit.errors import LabkitError
from labkit.kernel import host, probe, programs

#: What the most demanding experiment needs.
OPEN_FILES = 128
MEMORY_MIB = 512
TASKS = 200
DISK_MIB = 100

#: Above these, other work disturbs a measurement.
LOAD_PER_CPU = 0.5
PRESSURE_PERCENT = 5.0

#: linux/capability.h
CAPABILITIES = {"CAP_NET_ADMIN": 12, "CAP_SYS_ADMIN": 21, "CAP_PERFMON": 38, "CAP_BPF": 39}


@dataclass(frozen=True)
class Check:
    """One thing that was looked at.

    Parameters
    ----------
    name
        Of the thing, in a word or two.
    state
        ``ok``; ``note`` for what makes figures noisier or an experiment impossible; ``wrong`` for
        what keeps labkit from measuring or gives figures another meaning.
    what
        What is there, with its value.
    mend
        What mends it; empty where nothing need be mended.
    """

    name: str
    state: Literal["ok", "note", "wrong"]
    what: str
    mend: str = ""


def checks() -> Iterator[Check]:
    """Look at this machine, as this user; nothing on it is changed."""
    environment, noise = host.environment(), host.noise()
    yield _kernel(environment)
    yield _labkit(environment)
    yield _privileges()
    yield _bcc()
    bpf_works = _bpf()
    yield bpf_works
    if bpf_works.state == "ok":
        yield _program_types()
    yield _btf()
    yield jit(environment["jit"])
    yield _open_files()
    yield _memory()
    yield _cgroup()
    yield _tasks()
    yield _disk()
    yield cpus(environment["cpu_model"], len(host.allowed_cpus()))
    yield smt(environment["smt_active"])
    yield governor(environment["governors"])
    yield turbo(environment["turbo"])
    yield hypervisor(environment["hypervisor"], steal_percent_of(_read("/proc/stat")))
    yield clock(environment["clock_source"], environment["architecture"])
    yield mitigations(environment["mitigations"])
    yield load(noise["load_average_1min"], environment["cpus_online"])
    yield pressure(noise["pressure_avg10_percent"])


def render(checks: Iterable[Check]) -> str:
    """Return the checks as plain ASCII of at most 72 columns, and last how many are wrong."""
    lines, states = [], []
    for check in checks:
        states.append(check.state)
        first = f"{check.state:<7}{check.name:<13}"
        for text in filter(None, (check.what, check.mend and f"mend: {check.mend}")):
            lines += textwrap.wrap(
                text.encode("ascii", "replace").decode(),
                width=72,
                initial_indent=first,
                subsequent_indent=" " * 20,
                break_on_hyphens=False,
            )
            first = " " * 20
    counts = ", ".join(f"{states.count(state)} {state}" for state in ("wrong", "note", "ok"))
    return "\n".join([*lines, "", counts])


# -- what measuring needs -------------------------------------------------------------------------


def _kernel(environment: Mapping[str, Any]) -> Check:
    ticks = f", {environment['hz']} ticks/s" if environment["hz"] else ""
    return Check(
        "kernel", "ok", f"{environment['kernel_release']} {environment['architecture']}{ticks}"
    )


def _labkit(environment: Mapping[str, Any]) -> Check:
    commit = environment["labkit_commit"]
    what = f"{environment['labkit_version']}, Python {environment['python_version']}"
    what += f", commit {commit}" if commit else ""
    if (paths.ROOT / ".git").exists() and shutil.which("git") is None:
        mend = "install git, so that runs say which commit measured them"
        return Check("labkit", "note", what, mend)
    return Check("labkit", "ok", what)


def effective_capabilities(status: str) -> set[str] | None:
    """Return which of `CAPABILITIES` the process of a ``/proc/PID/status`` has in effect."""
    found = re.search(r"^CapEff:\s*([0-9a-f]+)$", status, re.MULTILINE)
    if found is None:
        return None
    effective = {name for name, bit in CAPABILITIES.items() if int(found[1], 16) >> bit & 1}
    # The kernel asks for either of the two of BPF, or for CAP_SYS_ADMIN.
    return effective | ({"CAP_BPF", "CAP_PERFMON"} if "CAP_SYS_ADMIN" in effective else set())


def _privileges() -> Check:
    what = f"user id {os.geteuid()}"
    effective = effective_capabilities(_read("/proc/self/status"))
    if effective is None:
        return Check("privileges", "ok", f"{what}, capabilities not told")
    missing = sorted(CAPABILITIES.keys() - effective)
    if not missing:
        return Check("privileges", "ok", f"{what}, with {', '.join(CAPABILITIES)}")
    what += f", without {', '.join(missing)}"
    if missing == ["CAP_NET_ADMIN"]:
        return Check("privileges", "note", what, f"for experiments with packets: {_way_to_root()}")
    return Check("privileges", "wrong", what, _way_to_root())


def _way_to_root() -> str:
    if os.geteuid() == 0:
        return "have the container's owner grant it more, or measure outside of it"
    if shutil.which("sudo") is None:
        return "run as root (there is no sudo here)"
    try:
        asked = subprocess.run(
            ["sudo", "-n", "true"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=10,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return "run as root (sudo does not answer)"
    return f"sudo ./lab run ... (needs {'no' if asked.returncode == 0 else 'a'} password)"


def _bcc() -> Check:
    try:
        module = programs.import_bcc()
    except (LabkitError, OSError) as error:  # OSError: its library cannot be loaded
        what, _, mend = str(error).partition("; ")
        return Check("bcc", "wrong", what, mend or "install Debian's python3-bpfcc")
    return Check("bcc", "ok", f"{module.__version__} in {Path(module.__file__).resolve().parent}")


def _bpf() -> Check:
    if why := probe.program_type("raw_tracepoint"):
        what, _, mend = why.partition("; ")
        return Check("BPF", "wrong", what, mend or "see privileges; else another kernel")
    return Check("BPF", "ok", "the kernel takes a program")


def _program_types() -> Check:
    why = {name: probe.program_type(name) for name in probe.PROGRAM_TYPES}
    what = f"{', '.join(name for name in why if not why[name])} load"
    refused = [reason for reason in why.values() if reason]
    if not refused:
        return Check("programs", "ok", what)
    mend = "for these alone: another kernel, or this one without lockdown (Secure Boot off)"
    return Check("programs", "note", "; ".join([what, *refused]), mend)


def _btf() -> Check:
    path = Path("/sys/kernel/btf/vmlinux")
    if path.exists():
        return Check("BTF", "ok", str(path))
    return Check("BTF", "wrong", f"no {path}", "a kernel with CONFIG_DEBUG_INFO_BTF, and sysfs")


def jit(settings: Mapping[str, str] | None) -> Check:
    """Judge the settings ``net.core.bpf_jit_*``."""
    if not settings or "bpf_jit_enable" not in settings:
        return Check("JIT", "ok", "not told (in a network namespace of its own)")
    if settings["bpf_jit_enable"] == "0":
        return Check("JIT", "wrong", "off: BPF is interpreted", "sysctl net.core.bpf_jit_enable=1")
    if settings.get("bpf_jit_harden", "0") == "2":
        mend = "sysctl net.core.bpf_jit_harden=0"
        return Check("JIT", "note", "on, and hardened for root, too: slower code", mend)
    return Check("JIT", "ok", "on")


def _open_files() -> Check:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    what = f"{soft}, and up to {'any number' if hard == resource.RLIM_INFINITY else hard}"
    if hard == resource.RLIM_INFINITY or hard >= OPEN_FILES:
        return Check("open files", "ok", what)
    return Check("open files", "wrong", what, f"as root: ulimit -Hn {OPEN_FILES}")


def _memory() -> Check:
    available_mib = host.available_memory_mib()
    if available_mib is None:
        return Check("memory", "ok", "not told")
    what = f"{available_mib:.0f} MiB available"
    if available_mib >= MEMORY_MIB:
        return Check("memory", "ok", what)
    mend = f"have {MEMORY_MIB} MiB for a large hash map: end other work, or raise the limit"
    return Check("memory", "wrong", what, mend)


def _cgroup() -> Check:
    found = host.cgroup("memory")
    if found is None:
        mend = "mount a cgroup hierarchy with it (cgroup_enable=memory), to measure maps' memory"
        return Check("cgroup", "note", "no memory controller", mend)
    version, folder = found
    what = f"memory controller of version {version} at {folder}"
    if os.access(folder, os.W_OK):
        return Check("cgroup", "ok", what)
    return Check("cgroup", "note", f"{what}, not writable", "root, to measure maps' memory")


def _tasks() -> Check:
    limits = {
        f"kernel.{name}": _read(f"/proc/sys/kernel/{name}") for name in ("pid_max", "threads-max")
    }
    if os.geteuid() != 0:
        limits["ulimit -u"] = str(resource.getrlimit(resource.RLIMIT_NPROC)[0])
    _, folder = host.cgroup("pids") or (0, Path("/"))
    limits |= {str(at / "pids.max"): _read(at / "pids.max") for at in (folder, *folder.parents)}
    numbers = {name: int(text) for name, text in limits.items() if text.strip().isdigit()}
    if not numbers:
        return Check("tasks", "ok", "not told")
    name = min(numbers, key=lambda one: numbers[one])
    what = f"{numbers[name]} at most ({name})"
    if numbers[name] >= TASKS:
        return Check("tasks", "ok", what)
    return Check("tasks", "wrong", what, f"raise that to {TASKS}")


def _disk() -> Check:
    try:
        folder = paths.runs()
    except LabkitError:  # neither a checkout that can be written nor a home
        return Check("disk", "wrong", "no folder for runs", "set LABKIT_HOME to one")
    # os.path.exists: a home that may not be entered is no error.
    nearest = next(parent for parent in (folder, *folder.parents) if os.path.exists(parent))
    free_mib = shutil.disk_usage(nearest).free / 2**20
    what = f"{free_mib:.0f} MiB free for runs, in {folder}"
    if not os.access(nearest, os.W_OK):
        return Check("disk", "wrong", f"{folder} cannot be written", "set LABKIT_HOME elsewhere")
    if free_mib < DISK_MIB:
        return Check("disk", "wrong", what, f"free {DISK_MIB} MiB, or set LABKIT_HOME elsewhere")
    return Check("disk", "ok", what)


# -- what makes figures noisier -------------------------------------------------------------------


def cpus(model: str | None, allowed: int) -> Check:
    """Judge how many CPUs this process may use."""
    what = f"{allowed} allowed, {model or 'model not told'}"
    if allowed > 1:
        return Check("CPUs", "ok", what)
    mend = "two or more: on one, whatever else runs interrupts the measurement"
    return Check("CPUs", "note", what, mend)


def smt(active: bool | None) -> Check:
    """Judge whether a core is shared by two CPUs."""
    if not active:
        return Check("SMT", "ok", "not told" if active is None else "off")
    mend = "leave the sibling CPU idle, or: echo off > /sys/devices/system/cpu/smt/control"
    return Check("SMT", "note", "on: what runs on the sibling CPU slows the measuring one", mend)


def governor(governors: list[str] | None) -> Check:
    """Judge what sets the clock's frequency."""
    if not governors:
        return Check("governor", "ok", "none: the frequency is not this kernel's to set")
    what = ", ".join(governors)
    if governors == ["performance"]:
        return Check("governor", "ok", what)
    mend = (
        "echo performance | tee /sys/devices/system/cpu/cpufreq/policy*/scaling_governor, as root"
    )
    return Check("governor", "note", f"{what}: the frequency follows the load", mend)


def turbo(enabled: bool | None) -> Check:
    """Judge whether the frequency depends on heat and on the other cores."""
    if not enabled:
        return Check("turbo", "ok", "not told" if enabled is None else "off")
    mend = (
        "echo 0 > /sys/devices/system/cpu/cpufreq/boost, "
        "or echo 1 > /sys/devices/system/cpu/intel_pstate/no_turbo"
    )
    return Check("turbo", "note", "on: the frequency follows heat and the other cores", mend)


def hypervisor(name: str | None, steal_percent: float | None) -> Check:
    """Judge who runs this kernel, and what of its CPUs' time others got."""
    if name in (None, "none"):
        return Check("hypervisor", "ok", name or "not told")
    if name == "qemu-tcg":
        mend = "measure on a machine that has /dev/kvm, or on hardware"
        return Check("hypervisor", "note", f"{name}: emulated, ns mean nothing", mend)
    steal = "" if steal_percent is None else f", which kept {steal_percent:.1f} % of CPU time"
    mend = "measure on hardware; here, compare only what was measured by turns"
    return Check("hypervisor", "note", f"{name}{steal}", mend)


def steal_percent_of(stat: str) -> float | None:
    """Return the part of all CPUs' time since boot that the hypervisor kept, by ``/proc/stat``."""
    fields = stat.partition("\n")[0].split()
    if len(fields) < 9:
        return None
    # user nice system idle iowait irq softirq steal; the guests' time after them is in user.
    ticks = [int(field) for field in fields[1:9]]
    return 100 * ticks[7] / max(sum(ticks), 1)


def clock(source: str | None, architecture: str) -> Check:
    """Judge what the kernel reads the time from: timed windows begin and end with it."""
    if source is None or source == "tsc" or architecture != "x86_64":
        return Check("clock", "ok", source or "not told")
    mend = "boot with tsc=reliable if dmesg says no more than that the tsc was not trusted"
    return Check("clock", "note", f"{source}: slower to read than tsc", mend)


def mitigations(by_vulnerability: Mapping[str, str] | None) -> Check:
    """Count the CPU's vulnerabilities by what is done about them."""
    if not by_vulnerability:
        return Check("mitigations", "ok", "not told")
    open_ones = [
        name
        for name, text in by_vulnerability.items()
        if re.match("(KVM: )?(Processor )?vulnerable", text, re.IGNORECASE)
    ]
    unaffected = sum(text.startswith("Not affected") for text in by_vulnerability.values())
    mitigated = len(by_vulnerability) - unaffected - len(open_ones)
    what = f"{mitigated} mitigated, {len(open_ones)} open, {unaffected} not affected"
    if not open_ones:
        return Check("mitigations", "ok", what)
    mend = "compare only with machines that mitigate the same"
    return Check("mitigations", "note", f"{what}; open: {', '.join(open_ones)}", mend)


def load(average: float | None, online: int) -> Check:
    """Judge how much else runs."""
    if average is None:
        return Check("load", "ok", "not told")
    what = f"{average:.2f} on {online} CPUs in the last minute"
    if average <= LOAD_PER_CPU * online:
        return Check("load", "ok", what)
    return Check("load", "note", what, "end other work, and wait a minute")


def pressure(percent: Mapping[str, float | None]) -> Check:
    """Judge for what tasks wait."""
    told = {name: value for name, value in percent.items() if value is not None}
    if not told:
        return Check("pressure", "ok", "not told (boot with psi=1)")
    what = ", ".join(f"{name} {value:.1f} %" for name, value in told.items())
    what += " of the last 10 s some task waited"
    if max(told.values()) <= PRESSURE_PERCENT:
        return Check("pressure", "ok", what)
    return Check("pressure", "note", what, "end other work")


def _read(path: Path | str) -> str:
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return ""
