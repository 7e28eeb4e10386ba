# SPDX-License-Identifier: MIT
"""Memory of maps, read from cgroups of their own, and where those are made."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT, needs_kernel

from labkit.kernel import bpf, cgroup, host

ENTRIES = 1024

needs_memory = pytest.mark.skipif(
    bool(needs_kernel.args[0] or cgroup.unavailable()), reason=cgroup.unavailable()
)


def groups() -> list[Path]:
    _, own = host.cgroup("memory")
    return [one for folder in (own, own.parent) for one in folder.glob("lab_mem_*")]


def array(value_bytes):
    return bpf.create_map(
        "lab_test", bpf.MAP_TYPE_ARRAY, key_bytes=4, value_bytes=value_bytes, entries=ENTRIES
    )


@needs_memory
def test_a_group_is_charged_with_the_map_and_nothing_is_left():
    own = host.cgroup("memory")
    for value_bytes in (1024, 8192):
        with cgroup.MemoryGroup() as group:
            before = group.usage_bytes()
            descriptor = group.create(lambda size=value_bytes: array(size))
            assert host.cgroup("memory") == own
            assert group.path in groups()
            seen = group.usage_bytes() - group.before_bytes
            assert group.before_bytes - before < 2**18
            assert ENTRIES * value_bytes <= seen <= 1.1 * ENTRIES * value_bytes + 2**19
            assert group.peak_bytes() is None or group.peak_bytes() >= seen
            os.close(descriptor)
    assert not groups()


@needs_memory
def test_a_process_leaves_the_group_when_making_the_map_fails():
    own = host.cgroup("memory")

    def fail():
        raise OSError("no such map")

    with pytest.raises(OSError, match="no such map"), cgroup.MemoryGroup() as group:
        group.create(fail)
    assert host.cgroup("memory") == own
    assert not groups()


@needs_memory
def test_what_a_killed_process_left_is_swept_and_what_a_living_one_uses_is_not():
    code = (
        "import os; from labkit.kernel import cgroup\n"
        "cgroup.MemoryGroup().__enter__(); os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT)
    (left,) = groups()
    with cgroup.MemoryGroup() as ours:
        cgroup.sweep()
        assert groups() == [ours.path]
    assert not left.exists()


def folder(path: Path, **files: str) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (path / name.replace("__", ".")).write_text(text)
    return path


def parent_of_groups(monkeypatch, version, own):
    monkeypatch.setattr(host, "cgroup", lambda controller: (version, own))
    return cgroup.MemoryGroup().path.parent


def test_version_1_makes_children_of_our_own_group(tmp_path, monkeypatch):
    assert parent_of_groups(monkeypatch, 1, tmp_path / "a") == tmp_path / "a"


def test_version_2_makes_leaves_beside_a_group_that_holds_processes(tmp_path, monkeypatch):
    folder(tmp_path, cgroup__procs="")
    own = folder(tmp_path / "a", cgroup__procs="1\n", memory__current="0\n")
    assert parent_of_groups(monkeypatch, 2, own) == tmp_path


def test_version_2_makes_leaves_in_a_root_that_hands_memory_down(tmp_path, monkeypatch):
    root = folder(tmp_path, cgroup__procs="1\n", cgroup__subtree_control="cpu memory pids\n")
    assert parent_of_groups(monkeypatch, 2, root) == root


@pytest.mark.parametrize(
    ("files", "why"),
    [
        ({"cgroup__subtree_control": "cpu\n"}, r"echo \+memory > .*/a/cgroup.subtree_control"),
        ({"memory__current": "0\n"}, "the top of what can be seen of cgroup v2"),
    ],
)
def test_version_2_says_why_it_cannot(tmp_path, monkeypatch, files, why):
    with pytest.raises(cgroup.Refused, match=why):
        parent_of_groups(monkeypatch, 2, folder(tmp_path / "a", **files))


def unavailable(monkeypatch, **patches):
    for name, value in patches.items():
        monkeypatch.setattr(*{"cgroup": (host, "cgroup")}.get(name, (cgroup, name)), value)
    return cgroup.unavailable.__wrapped__()


def test_no_controller_is_said(monkeypatch):
    why = unavailable(monkeypatch, cgroup=lambda controller: None)
    assert why == "no mounted cgroup hierarchy has the memory controller"


def test_a_folder_that_refuses_is_said(tmp_path, monkeypatch):
    why = unavailable(monkeypatch, cgroup=lambda controller: (1, tmp_path / "missing"))
    assert why.startswith("no memory cgroup can be used: No such file or directory")


@needs_memory
def test_a_reading_that_does_not_see_the_known_map_is_not_believed(monkeypatch):
    why = unavailable(monkeypatch, KNOWN_BYTES=2**12, _SLACK_BYTES=0)
    assert why.startswith("a cgroup shows")
    assert "cgroup.memory=nokmem" in why
