# SPDX-License-Identifier: MIT
"""The machine's fingerprint: what the kernel's texts say, and this machine, for real."""

import gzip
import json
import os
import re
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from conftest import ROOT

from labkit import paths
from labkit.kernel import host

X86 = """\
processor\t: 0
vendor_id\t: GenuineIntel
cpu family\t: 6
model name\t: Intel(R) Xeon(R) Platinum 8375C CPU @ 2.90GHz
microcode\t: 0xd0003f5
flags\t\t: fpu vme de pse tsc msr constant_tsc{more} lahf_lm abm
vmx flags\t: vnmi preemption_timer
bugs\t\t: spectre_v1 spectre_v2
power management:

"""
HARDWARE = X86.format(more="")
GUEST = X86.format(more=" hypervisor")
EMULATED = GUEST.replace(
    "Intel(R) Xeon(R) Platinum 8375C CPU @ 2.90GHz", "QEMU TCG CPU version 2.5+"
)
ARM64 = """\
processor\t: 0
BogoMIPS\t: 243.75
Features\t: fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimdhp cpuid
CPU implementer\t: 0x41
CPU architecture: 8
CPU variant\t: 0x3
CPU part\t: 0xd0c
CPU revision\t: 1

"""


@pytest.mark.parametrize(
    ("cpuinfo", "model"),
    [
        (HARDWARE, "Intel(R) Xeon(R) Platinum 8375C CPU @ 2.90GHz"),
        (2 * ARM64, "implementer 0x41 part 0xd0c"),
        ("processor\t: 0\nhart\t: 0\nisa\t: rv64imafdc\n", None),
        ("", None),
        (None, None),
    ],
)
def test_cpu_model(cpuinfo, model):
    assert host.cpu_model_of(cpuinfo) == model


@pytest.mark.parametrize(
    ("cpuinfo", "clock_sources", "vendor", "name"),
    [
        (HARDWARE, "tsc hpet acpi_pm", "Amazon EC2", "none"),
        (GUEST, "kvm-clock tsc acpi_pm", "Amazon EC2", "kvm"),
        (GUEST, "tsc kvm-clock", None, "kvm"),
        (GUEST, "hyperv_clocksource_tsc_page acpi_pm", "Microsoft Corporation", "hyperv"),
        (GUEST, "xen tsc", "xen", "xen"),
        (GUEST, "tsc acpi_pm", "VMware, Inc.", "VMware, Inc."),
        (GUEST, None, None, "present"),
        (EMULATED, "tsc hpet", "QEMU", "qemu-tcg"),
        (ARM64, "arch_sys_counter", "Amazon EC2", None),
        (ARM64, "arch_sys_counter", "QEMU", "QEMU"),
        (None, None, None, None),
    ],
)
def test_hypervisor(cpuinfo, clock_sources, vendor, name):
    assert host.hypervisor_of(cpuinfo, clock_sources, vendor) == name


@pytest.mark.parametrize(
    ("text", "count"), [("0", 1), ("0-3", 4), ("0-3,7,9-10", 7), ("", None), (None, None)]
)
def test_cpu_lists(text, count):
    assert host.cpus_of(text) == count


@pytest.mark.parametrize(
    ("text", "mode"),
    [("none [integrity] confidentiality", "integrity"), ("[none] integrity", "none"), (None, None)],
)
def test_lockdown_mode(text, mode):
    assert host.chosen_of(text) == mode


@pytest.mark.parametrize(
    ("resolution_s", "hz"),
    # What clock_getres tells of CLOCK_MONOTONIC_COARSE for each choice of CONFIG_HZ.
    [(0.01, 100), (0.004, 250), (0.003333333, 300), (0.001, 1000), (1e-9, None), (0.0, None)],
)
def test_tick_rate(resolution_s, hz):
    assert host.hz_of(resolution_s) == hz


STAT = """\
cpu  124103 0 37362 462087 2072 0 580 2523 0 0
cpu0 49773 0 13535 249002 666 0 45 1318 0 0
cpu3 74330 0 23827 213085 1405 0 535 1205 0 0
intr 997269 0 0
cpufreq_is_no_cpu 1 2 3
ctxt 1990
"""


def test_steal_in_ns():
    # USER_HZ is 100 on all that labkit knows: a tick is 10 ms.
    assert host.steal_of(STAT) == {
        "cpu": 25_230_000_000,
        "cpu0": 13_180_000_000,
        "cpu3": 12_050_000_000,
    }
    assert host.steal_of("cpu0 1 2 3 4 5 6 7\n") == {}
    assert host.steal_of(None) == {}


def test_pressure_and_load():
    told = "some avg10=0.51 avg60=2.10 avg300=9.24 total=111\nfull avg10=0.10 avg60=0.00\n"
    assert host.pressure_of(told) == 0.51
    assert host.pressure_of(None) is None
    assert host.load_average_of("1.28 1.10 0.97 2/211 26022") == 1.28
    assert host.load_average_of(None) is None


def test_only_the_kernels_part_of_its_command_line():
    line = "quiet mitigations=off init=/bin/x rdinit=/y psi=1 -- --token secret"
    assert host.kernel_parameters_of(line) == "quiet mitigations=off psi=1"
    assert host.kernel_parameters_of(None) is None


OID = "0db27cc627ce1a2b3c4d5e6f708192a3b4c5d6e7"


@pytest.mark.parametrize(
    ("status", "commit"),
    [
        (f"# branch.oid {OID}\n# branch.head main\n", "0db27cc627ce"),
        (f"# branch.oid {OID}\n? bpf/new.c\n", "0db27cc627ce-dirty"),
        (f"# branch.oid {OID}\n1 .M N... 100644 100644 100644 a b lab\n", "0db27cc627ce-dirty"),
        ("# branch.oid (initial)\n# branch.head main\n? lab\n", None),
        ("", None),
    ],
)
def test_commit(status, commit):
    assert host.commit_of(status) == commit


V1_MOUNTS = """\
23 27 0:22 / /sys rw,relatime - sysfs sysfs rw
35 31 0:32 / /sys/fs/cgroup/memory rw,relatime shared:12 - cgroup cgroup rw,memory
34 31 0:31 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
"""
V1_OWN = "9:name=systemd:/\n4:memory:/jobs/17\n2:cpu,cpuacct:/\n0::/\n"
V2_MOUNTS = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
V2_OWN = "0::/user.slice/user-1000.slice\n"
BOUND = "35 31 0:32 /docker/ab /sys/fs/cgroup/memory ro master:2 - cgroup cgroup rw,memory\n"


@pytest.mark.parametrize(
    ("mounts", "own", "controller", "version", "folder"),
    [
        (V1_MOUNTS, V1_OWN, "memory", 1, "/sys/fs/cgroup/memory/jobs/17"),
        (V1_MOUNTS, V1_OWN, "cpuacct", 1, "/sys/fs/cgroup/cpu,cpuacct"),
        (V1_MOUNTS, V1_OWN, "hugetlb", 2, "/sys/fs/cgroup/unified"),
        (V2_MOUNTS, V2_OWN, "memory", 2, "/sys/fs/cgroup/user.slice/user-1000.slice"),
        (BOUND, "4:memory:/docker/ab/x\n", "memory", 1, "/sys/fs/cgroup/memory/x"),
    ],
)
def test_place_of_a_cgroup_controller(mounts, own, controller, version, folder):
    found = host.cgroup_of(mounts, own, controller)
    assert found is not None
    assert found[:2] == (version, Path(folder))


def test_no_cgroups():
    assert host.cgroup_of("23 27 0:22 / /sys rw - sysfs sysfs rw\n", V2_OWN, "memory") is None
    assert host.cgroup_of(None, None, "memory") is None


# -- this machine ---------------------------------------------------------------------------------


def said_by(code: str, *before: str, **more: object) -> str:
    """Run code in a process of its own and return what it prints."""
    ended = subprocess.run(
        [*before, sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, **more
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


PRINT_ALL = """
import json
from labkit.kernel import host
print(json.dumps([host.environment(), host.noise(), host.steal_ns(0), host.available_memory_mib()]))
"""


def test_the_fingerprint_of_this_machine():
    environment = host.environment()
    assert json.loads(json.dumps(environment)) == environment
    assert environment["kernel_release"] == os.uname().release
    assert environment["architecture"] == os.uname().machine
    assert len(environment["boot_id"]) == 36
    assert 1 <= environment["cpus_online"] <= environment["cpus_possible"]
    assert environment["python_version"] == sys.version.split()[0]
    assert environment["memory_mib"] > host.available_memory_mib() > 0
    for name, text in (environment["mitigations"] or {}).items():
        assert Path("/sys/devices/system/cpu/vulnerabilities", name).read_text().strip() == text


def test_the_tick_rate_is_the_configured_one():
    try:
        config = gzip.decompress(Path("/proc/config.gz").read_bytes()).decode()
    except OSError:
        pytest.skip("this kernel does not show its configuration")
    assert f"\nCONFIG_HZ={host.environment()['hz']}\n" in config


def test_versions_of_bcc_are_found_without_importing_it():
    pytest.importorskip("bcc")
    code = """
import sys
from pathlib import Path
from labkit.kernel import host
found = host.environment()
assert "bcc" not in sys.modules
import bcc
assert found["bcc_version"] == bcc.__version__.split("+")[0]
assert f"libbcc.so.{found['libbcc_version']}\\n" in Path("/proc/self/maps").read_text()
"""
    said_by(code)


def test_noise_names_every_cpu():
    noise = host.noise()
    assert {f"cpu{cpu}" for cpu in host.allowed_cpus()} | {"cpu"} <= noise["steal_ns"].keys()
    each = sum(value for name, value in noise["steal_ns"].items() if name != "cpu")
    tick_ns = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
    assert abs(noise["steal_ns"]["cpu"] - each) <= len(noise["steal_ns"]) * tick_ns
    assert noise["load_average_1min"] >= 0
    assert noise["pressure_avg10_percent"].keys() == {"cpu", "memory", "io"}


def test_steal_of_one_cpu_only_grows():
    cpu = max(host.allowed_cpus())
    before = host.noise()["steal_ns"][f"cpu{cpu}"]
    now = host.steal_ns(cpu)
    assert before <= now <= host.noise()["steal_ns"][f"cpu{cpu}"]
    assert host.steal_ns(99_999) == 0


def test_pinning_is_the_calling_threads_own():
    everywhere = host.allowed_cpus()
    seen = []

    def pinned() -> None:
        host.pin_current_thread(max(everywhere))
        seen.append(host.allowed_cpus())

    thread = threading.Thread(target=pinned)
    thread.start()
    thread.join()
    assert seen == [{max(everywhere)}]
    assert host.allowed_cpus() == everywhere


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


@needs_root
def test_an_ordinary_user_gets_a_fingerprint_too():
    nobody = {"user": 65534, "group": 65534, "extra_groups": []}
    command = [sys.executable, "-c", "import labkit.errors"]
    if subprocess.run(command, cwd=ROOT, capture_output=True, **nobody).returncode:
        pytest.skip("an ordinary user cannot read this checkout")
    said = said_by(PRINT_ALL, **nobody)
    environment, *_ = json.loads(said)
    assert environment["boot_id"] == host.environment()["boot_id"]


@needs_root
def test_what_cannot_be_read_is_null():
    hide = 'mount -t tmpfs none /sys && mount -t tmpfs none /proc && exec "$@"'
    hidden = ["unshare", "--mount", "sh", "-c", hide, "sh"]
    if subprocess.run([*hidden, "true"], capture_output=True).returncode:
        pytest.skip("may not mount here")
    environment, noise, steal_ns, available_mib = json.loads(said_by(PRINT_ALL, *hidden))
    assert environment.keys() == host.environment().keys()
    assert environment["kernel_release"] == os.uname().release
    assert {name for name, value in environment.items() if value is None} >= {
        *("command_line", "cpu_model", "cpus_possible", "smt_active", "governors", "turbo"),
        *("hypervisor", "clock_source", "mitigations", "jit", "lockdown", "boot_id"),
        *("unprivileged_bpf_disabled", "memory_mib"),
    }
    assert noise == {
        "load_average_1min": None,
        "steal_ns": {},
        "pressure_avg10_percent": {"cpu": None, "memory": None, "io": None},
    }
    assert (steal_ns, available_mib) == (0, None)


@needs_root
def test_memory_is_what_the_cgroup_leaves():
    version, parent = host.cgroup("memory") or (0, Path())
    limit = {1: "memory.limit_in_bytes", 2: "memory.max"}.get(version, "")
    folder = parent / f"lab_test_{os.getpid()}"
    try:
        folder.mkdir()
    except OSError as error:
        pytest.skip(f"no cgroup to be had: {error}")
    try:
        if not (folder / limit).exists():
            pytest.skip("the memory controller is not for groups below this one")
        (folder / limit).write_text(str(256 * 2**20))
        code = f"""
import os
from pathlib import Path
Path({str(folder / "cgroup.procs")!r}).write_text(str(os.getpid()))
from labkit.kernel import host
print(host.available_memory_mib())
"""
        assert 128 < float(said_by(code)) < 256
    finally:
        folder.rmdir()


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """Return git in a checkout of its own, which labkit is told is its."""
    if shutil.which("git") is None:
        pytest.skip("needs git")
    for name in [name for name in os.environ if name.startswith("GIT_")]:
        monkeypatch.delenv(name)
    monkeypatch.setattr(paths, "ROOT", tmp_path)

    def git(*words: str) -> str:
        identity = ["-c", "user.name=x", "-c", "user.email=x@example.org"]
        command = ["git", "-C", str(tmp_path), *identity, *words]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    git("init", "--quiet")
    (tmp_path / "labkit").mkdir()
    (tmp_path / "labkit/code.py").write_text("1\n")
    (tmp_path / "README.md").write_text("x\n")
    assert host.environment()["labkit_commit"] is None
    git("add", ".")
    git("commit", "--quiet", "--message", "x")
    return git


def test_the_commit_is_dirty_where_code_differs(repository, tmp_path, monkeypatch):
    commit = repository("rev-parse", "HEAD")[:12]
    assert host.environment()["labkit_commit"] == commit
    (tmp_path / "README.md").write_text("y\n")
    monkeypatch.setenv("GIT_INDEX_FILE", str(tmp_path / "elsewhere"))  # as in a hook
    assert host.environment()["labkit_commit"] == commit
    (tmp_path / "labkit/new.py").write_text("2\n")
    assert host.environment()["labkit_commit"] == f"{commit}-dirty"
    (tmp_path / "labkit/new.py").unlink()
    (tmp_path / "labkit/code.py").write_text("3\n")
    assert host.environment()["labkit_commit"] == f"{commit}-dirty"


@needs_root
def test_another_users_checkout_is_read_and_left_as_it_is(repository, tmp_path):
    for path in (tmp_path, *tmp_path.rglob("*")):
        os.chown(path, 65534, 65534)
    os.utime(tmp_path / "labkit/code.py", (1, 1))  # git would note that in its index
    index = (tmp_path / ".git/index").read_bytes()
    assert re.fullmatch("[0-9a-f]{12}", host.environment()["labkit_commit"])
    assert (tmp_path / ".git/index").read_bytes() == index


def test_outside_of_a_checkout_there_is_no_commit(tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "ROOT", tmp_path)
    assert host.environment()["labkit_commit"] is None
