# SPDX-License-Identifier: MIT
"""What the doctor makes of values, and what it says of this machine and of worse ones."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import pytest
from conftest import ROOT, needs_kernel

from labkit import doctor
from labkit.doctor import Check
from labkit.kernel import host


def test_checks_are_rendered_for_a_terminal():
    checks = [
        Check("kernel", "ok", "6.18.0 x86_64, 250 ticks/s"),
        Check("open files", "wrong", "64, and up to 64", "as root: ulimit -Hn 128"),
        Check("turbo", "note", "Intel® " + "word " * 12, "x" * 60),
    ]
    assert doctor.render(checks) == "\n".join(
        [
            "ok     kernel       6.18.0 x86_64, 250 ticks/s",
            "wrong  open files   64, and up to 64",
            "                    mend: as root: ulimit -Hn 128",
            "note   turbo        Intel? word word word word word word word word word",
            "                    word word word",
            "                    mend: " + "x" * 46,
            "                    " + "x" * 14,
            "",
            "1 wrong, 1 note, 1 ok",
        ]
    )


@pytest.mark.parametrize(
    ("check", "state", "says"),
    [
        (doctor.jit({"bpf_jit_enable": "1", "bpf_jit_harden": "0"}), "ok", "on"),
        (doctor.jit({"bpf_jit_enable": "0"}), "wrong", "sysctl net.core.bpf_jit_enable=1"),
        (doctor.jit({"bpf_jit_enable": "1", "bpf_jit_harden": "2"}), "note", "harden=0"),
        (doctor.jit({"bpf_jit_enable": "1"}), "ok", "on"),  # harden is root's to read
        (doctor.jit(None), "ok", "not told"),
        (doctor.cpus("x", 2), "ok", "2 allowed"),
        (doctor.cpus(None, 1), "note", "1 allowed"),
        (doctor.smt(True), "note", "/sys/devices/system/cpu/smt/control"),
        (doctor.smt(False), "ok", "off"),
        (doctor.smt(None), "ok", "not told"),
        (doctor.governor(["performance"]), "ok", "performance"),
        (doctor.governor(["performance", "powersave"]), "note", "performance, powersave"),
        (doctor.governor(None), "ok", "none"),
        (doctor.turbo(True), "note", "no_turbo"),
        (doctor.turbo(False), "ok", "off"),
        (doctor.turbo(None), "ok", "not told"),
        (doctor.hypervisor("none", 0.0), "ok", "none"),
        (doctor.hypervisor("kvm", 1.25), "note", "kvm, which kept 1.2 % of CPU time"),
        (doctor.hypervisor("qemu-tcg", 0.0), "note", "emulated"),
        (doctor.hypervisor(None, None), "ok", "not told"),
        (doctor.clock("tsc", "x86_64"), "ok", "tsc"),
        (doctor.clock("hpet", "x86_64"), "note", "hpet"),
        (doctor.clock("arch_sys_counter", "aarch64"), "ok", "arch_sys_counter"),
        (doctor.load(1.0, 2), "ok", "1.00 on 2 CPUs"),
        (doctor.load(1.01, 2), "note", "1.01 on 2 CPUs"),
        (doctor.load(None, 2), "ok", "not told"),
        (doctor.pressure({"cpu": 5.0, "io": None}), "ok", "cpu 5.0 % of"),
        (doctor.pressure({"cpu": 0.0, "io": 5.1}), "note", "cpu 0.0 %, io 5.1 %"),
        (doctor.pressure({"cpu": None, "io": None}), "ok", "not told"),
        (doctor.mitigations(None), "ok", "not told"),
    ],
)
def test_judgements(check, state, says):
    assert check.state == state
    assert says in f"{check.what} {check.mend}"
    assert bool(check.mend) == (state != "ok")


def test_vulnerabilities_are_counted_by_what_is_done_about_them():
    texts = {
        "itlb_multihit": "KVM: Mitigation: VMX disabled",
        "l1tf": "Not affected",
        "mds": "Vulnerable: Clear CPU buffers attempted, no microcode",
        "meltdown": "Mitigation: PTI",
        "spec_store_bypass": "Vulnerable",
        "taa": "Mitigation: Clear CPU buffers; SMT vulnerable",
    }
    check = doctor.mitigations(texts)
    assert check.state == "note"
    assert check.what == "3 mitigated, 2 open, 1 not affected; open: mds, spec_store_bypass"
    assert doctor.mitigations({"l1tf": "Not affected"}).state == "ok"


def test_steal_as_a_part_of_all_time():
    # 8 % of 1000 ticks; the two last fields are the guests' time, which user and nice contain.
    stat = "cpu  300 20 100 400 50 25 25 80 300 20\ncpu0 1 1 1 1 1 1 1 1 1 1\n"
    assert doctor.steal_percent_of(stat) == 8.0
    assert doctor.steal_percent_of("") is None


@pytest.mark.parametrize(
    ("bits", "names"),
    [
        ("000001ffffffffff", {"CAP_NET_ADMIN", "CAP_SYS_ADMIN", "CAP_PERFMON", "CAP_BPF"}),
        ("0000000000000000", set()),
        ("0000004000001000", {"CAP_NET_ADMIN", "CAP_PERFMON"}),
        ("0000000000200000", {"CAP_SYS_ADMIN", "CAP_PERFMON", "CAP_BPF"}),
    ],
)
def test_capabilities_in_effect(bits, names):
    status = f"CapPrm:\t000001ffffffffff\nCapEff:\t{bits}\nCapBnd:\t000001ffffffffff\n"
    assert doctor.effective_capabilities(status) == names


def test_capabilities_that_are_not_told():
    assert doctor.effective_capabilities("") is None


# -- this machine, and what can be taken from it --------------------------------------------------


class Said(NamedTuple):
    """How ``./lab doctor`` ended: its status, state and text by check, and all it printed."""

    status: int
    state: dict[str, str]
    text: dict[str, str]
    output: str


def doctor_says(*before: str, python: tuple[str, ...] = (), **more: object) -> Said:
    """Run ``./lab doctor``, perhaps by way of another command, and return what it says."""
    command = [*before, sys.executable, *python, "-m", "labkit", "doctor"]
    ended = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, **more)
    assert ended.stderr == ""
    state, text = {}, {}
    name = ""
    for line in ended.stdout.rpartition("\n\n")[0].splitlines():
        if line[0] != " ":
            name = line[7:20].strip()
            state[name], text[name] = line[:7].strip(), ""
        text[name] = f"{text[name]} {line[20:]}".strip()
    return Said(ended.returncode, state, text, ended.stdout)


def test_what_the_doctor_says_fits_and_its_status_tells_what_is_wrong():
    said = doctor_says()
    assert said.output.isascii()
    assert max(map(len, said.output.splitlines())) <= 72
    assert set(said.state.values()) <= {"ok", "note", "wrong"}
    assert said.status == (1 if "wrong" in said.state.values() else 0)
    assert os.uname().release in said.text["kernel"]
    states = list(said.state.values())
    assert said.output.splitlines()[-1] == ", ".join(
        f"{states.count(state)} {state}" for state in ("wrong", "note", "ok")
    )


@needs_kernel
def test_where_a_program_loads_the_doctor_says_which_types_do():
    said = doctor_says()
    assert (said.state["BPF"], said.state["privileges"]) == ("ok", "ok")
    assert "raw_tracepoint" in said.text["programs"].partition(" load")[0]


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


@pytest.fixture
def ordinary_user():
    """Return what makes subprocess run something as nobody."""
    if os.geteuid() != 0:
        pytest.skip("needs root")
    nobody = {"user": 65534, "group": 65534, "extra_groups": []}
    command = [sys.executable, "-c", "import labkit.cli"]
    if subprocess.run(command, cwd=ROOT, capture_output=True, **nobody).returncode:
        pytest.skip("an ordinary user cannot read this checkout")
    return nobody


def test_an_ordinary_user_is_told_what_is_missing_and_how_to_become_root(ordinary_user):
    said = doctor_says(**ordinary_user)
    assert said.status == 1
    assert said.state["privileges"] == said.state["BPF"] == "wrong"
    assert "user id 65534, without CAP_BPF, " in said.text["privileges"]
    assert "root" in said.text["privileges"] or "sudo" in said.text["privileges"]
    assert "programs" not in said.state


@pytest.mark.parametrize(
    ("status", "says"), [(0, "(needs no password)"), (1, "(needs a password)")]
)
def test_sudo_is_asked_whether_it_wants_a_password(status, says, ordinary_user):
    with tempfile.TemporaryDirectory() as folder:  # pytest's own are closed to others
        Path(folder).chmod(0o755)
        sudo = Path(folder, "sudo")
        sudo.write_text(f'#!/bin/sh\n[ "$*" = "-n true" ] && exit {status}\nexit 9\n')
        sudo.chmod(0o755)
        path = f"{folder}:{os.environ['PATH']}"
        said = doctor_says(**ordinary_user, env=os.environ | {"PATH": path})
    assert f"mend: sudo ./lab run ... {says}" in said.text["privileges"]


@needs_root
def test_root_without_capabilities_is_told_so():
    said = doctor_says("setpriv", "--bounding-set", "-all", "--inh-caps", "-all")
    assert said.state["privileges"] == said.state["BPF"] == "wrong"
    assert "user id 0, without CAP_BPF" in said.text["privileges"]


def test_without_bcc_or_any_other_package_the_doctor_still_works():
    said = doctor_says(python=("-S",))
    assert said.status == 1
    assert said.state["bcc"] == "wrong"
    assert "cannot be imported" in said.text["bcc"]
    assert "mend: install Debian's python3-bpfcc" in said.text["bcc"]


def test_the_unrelated_bcc_is_named(tmp_path):
    (tmp_path / "bcc").mkdir()
    (tmp_path / "bcc/__init__.py").write_text("")
    said = doctor_says(env=os.environ | {"PYTHONPATH": str(tmp_path)})
    assert said.state["bcc"] == "wrong"
    assert "unrelated package from PyPI" in said.text["bcc"]
    assert "mend: pip uninstall bcc" in said.text["bcc"]


def test_too_few_open_files_are_wrong():
    said = doctor_says("prlimit", "--nofile=64:64")
    assert said.state["open files"] == "wrong"
    assert said.text["open files"] == "64, and up to 64 mend: as root: ulimit -Hn 128"


def test_too_few_tasks_are_wrong(ordinary_user):
    said = doctor_says("prlimit", "--nproc=100", **ordinary_user)
    assert said.state["tasks"] == "wrong"
    assert said.text["tasks"] == "100 at most (ulimit -u) mend: raise that to 200"


def test_too_little_memory_is_wrong(monkeypatch):
    monkeypatch.setattr(host, "available_memory_mib", lambda: 100.0)
    (memory,) = (check for check in doctor.checks() if check.name == "memory")
    assert memory.state == "wrong"
    assert memory.what == "100 MiB available"


def in_mount_namespace(script: str) -> tuple[str, ...]:
    """Return the command that runs another after `script`, whose mounts only they see."""
    command = ("unshare", "--mount", "sh", "-c", f'{script} && exec "$@"', "sh")
    if subprocess.run([*command, "true"], capture_output=True).returncode:
        pytest.skip("may not mount here")
    return command


@needs_root
def test_a_full_disk_is_wrong(tmp_path):
    small = in_mount_namespace(f"mount -t tmpfs -o size=1m none {tmp_path}")
    said = doctor_says(*small, env=os.environ | {"LABKIT_HOME": str(tmp_path)})
    assert said.state["disk"] == "wrong"
    assert said.text["disk"].startswith("1 MiB free for runs, in")


def test_a_folder_for_runs_that_cannot_be_written_is_wrong(tmp_path, ordinary_user):
    said = doctor_says(
        **ordinary_user,
        env=os.environ | {"LABKIT_HOME": "/proc/1"},
    )
    assert said.state["disk"] == "wrong"
    assert said.text["disk"].endswith("cannot be written mend: set LABKIT_HOME elsewhere")


@needs_root
def test_without_sysfs_what_is_not_told_is_not_wrong():
    said = doctor_says(*in_mount_namespace("mount -t tmpfs none /sys"))
    assert said.state["BTF"] == "wrong"
    assert {name for name, text in said.text.items() if text == "not told"} >= {
        *("SMT", "turbo", "clock", "mitigations"),
    }
    assert [said.state[name] for name in ("SMT", "turbo", "clock", "mitigations")] == 4 * ["ok"]
    assert said.state["cgroup"] == "note"
