# SPDX-License-Identifier: MIT
"""The running kernel through bpf(2) and bcc, for real."""

import ctypes
import os
import re
import resource
import subprocess
import sys

import pytest
from conftest import needs_kernel, open_files, wait_until

from labkit import paths
from labkit.errors import CannotRunError, LabkitError, UsageError
from labkit.kernel import bpf, probe, programs, tasks

pytestmark = [needs_kernel, pytest.mark.usefixtures("nothing_left")]

HARNESS = {"CHUNK": 100, "CHUNKS": 70}


def test_a_program_runs_in_place_and_times_itself():
    with programs.compiled(paths.BPF / "harness.c", HARNESS) as loaded:
        empty = bpf.RawTracepointRun(loaded.raw_tracepoint("lab_empty"))
        fastest_ns = {chunks: min(empty(chunks) for _ in range(200)) for chunks in (35, 70)}
    assert 1.5 < fastest_ns[70] / fastest_ns[35] < 2.5


def test_objects_are_named_ours_and_go_with_the_context():
    before = bpf.own_objects()
    with programs.compiled(paths.BPF / "harness.c", HARNESS) as loaded:
        loaded.raw_tracepoint("lab_empty")
        assert [one.name for one in bpf.own_objects() - before] == ["lab_empty"]
    assert wait_until(lambda: bpf.own_objects() <= before)


def test_what_the_compiler_says_is_in_the_error(tmp_path):
    source = tmp_path / "broken.c"
    source.write_text("int lab_broken(void *ctx) { return missing_name; }\n")
    with (
        pytest.raises(LabkitError, match=r"broken\.c did not compile") as caught,
        programs.compiled(source, {}),
    ):
        pass
    assert "use of undeclared identifier 'missing_name'" in str(caught.value)


def test_what_the_verifier_says_is_in_the_error(tmp_path):
    source = tmp_path / "refused.c"
    source.write_text("int lab_refused(long *ctx) { return ctx[100]; }\n")
    with programs.compiled(source, {}) as loaded, pytest.raises(LabkitError) as caught:
        loaded.raw_tracepoint("lab_refused")
    assert "BPF program lab_refused was refused" in str(caught.value)
    assert "invalid bpf_context access" in str(caught.value)
    assert len(str(caught.value).splitlines()) < 20


def test_definitions_are_whole_numbers_only():
    with (
        pytest.raises(ValueError, match="invalid literal"),
        programs.compiled(paths.BPF / "harness.c", {"CHUNK": "1;x"}),
    ):
        pass


def test_a_hash_map_is_filled_with_integers():
    definitions = {
        **HARNESS,
        **{"POSITIONS": 16, "OUTER": 1, "ROWS": 1, "ENTRIES": 100_000, "HASH_FLAGS": 0},
    }
    with programs.compiled(paths.BPF / "local_storage.c", definitions) as loaded:
        bpf.fill_hash_with_integers(loaded.map_fd("lab_hash"), 100_000)
        found = bpf.RawTracepointRun(loaded.raw_tracepoint("lab_hash_count"))
        assert found(1000, 100_000) == 1000
        assert found(1000, 200_000) < 1000


def test_a_thousand_task_storage_maps_need_few_open_files():
    definitions = {
        **HARNESS,
        **{"POSITIONS": 16, "OUTER": 1000, "ROWS": 1, "ENTRIES": 1, "HASH_FLAGS": 0},
    }
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with programs.compiled(paths.BPF / "local_storage.c", definitions) as loaded:
        used = open_files()
        resource.setrlimit(resource.RLIMIT_NOFILE, (used + 40, hard))
        try:
            bpf.fill_with_task_storage(loaded.map_fd("lab_outer"), 0, 1000)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert sum(one.name.startswith("lab_ts_") for one in bpf.own_objects()) == 1000
        assert open_files() == used


def test_loading_again_and_again_leaves_nothing():
    def descriptors_and_objects():
        with programs.compiled(paths.BPF / "harness.c", HARNESS) as loaded:
            loaded.raw_tracepoint("lab_empty")
        assert wait_until(lambda: not bpf.own_objects())
        return open_files()

    assert descriptors_and_objects() == descriptors_and_objects()


def test_probes_try_and_say_why_not():
    assert probe.program_type("raw_tracepoint") == ""
    assert probe.task_storage() == ""
    assert probe.helper("raw_tracepoint", 156, "bpf_task_storage_get") == ""
    assert probe.helper("raw_tracepoint", 5, "bpf_ktime_get_ns") == ""
    assert "not in this kernel" in probe.helper("raw_tracepoint", 100_000, "bpf_never_made")
    assert "not for raw_tracepoint programs" in probe.helper(
        "raw_tracepoint", 44, "bpf_xdp_adjust_head"
    )


def test_an_ordinary_user_is_told_what_is_missing():
    code = "from labkit.kernel import probe; print(probe.program_type('raw_tracepoint'))"
    said = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, user=65534, cwd="/"
    )
    if "ModuleNotFoundError" in said.stderr or "PermissionError" in said.stderr:
        pytest.skip("an ordinary user cannot read this checkout")
    assert re.search(r"not permitted for user id 65534; needs root, or CAP_BPF", said.stdout)


def test_memory_and_open_files_are_held_against_what_is_there():
    assert probe.available_memory(1, "x") == ""
    assert "needs 1000000000 MiB" in probe.available_memory(1_000_000_000, "x")
    assert probe.open_files(3) == ""
    assert "ulimit -Hn" in probe.open_files(10**9)


def test_the_cpu_must_be_an_allowed_one():
    assert tasks.measuring_cpu(-1) == max(os.sched_getaffinity(0))
    with pytest.raises(UsageError, match="cpu: 9999 is not accepted; this process may run on"):
        tasks.measuring_cpu(9999)


def test_a_worker_is_one_thread_on_its_cpu():
    cpu = tasks.measuring_cpu(-1)
    with tasks.pinned_workers(2, cpu) as workers:
        seen = [
            {(worker.submit(os.sched_getaffinity, 0).result() == {cpu}) for _ in range(3)}
            for worker in workers
        ]
    assert seen == [{True}, {True}]


def test_the_unrelated_package_called_bcc_is_told_apart(tmp_path, monkeypatch):
    (tmp_path / "bcc").mkdir()
    (tmp_path / "bcc" / "__init__.py").write_text("")
    code = "from labkit.kernel import programs; programs.import_bcc()"
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{paths.ROOT}")
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert f"{tmp_path}/bcc/__init__.py is an unrelated package from PyPI" in said.stderr


def test_a_library_of_another_version_is_noticed(monkeypatch):
    programs.import_bcc()
    monkeypatch.setattr("bcc.__version__", "0.1.0")
    with pytest.raises(CannotRunError, match=r"Python part is 0\.1\.0 but its library is"):
        programs.import_bcc()


def test_programs_carry_the_dual_licence():
    with programs.compiled(paths.BPF / "harness.c", HARNESS) as loaded:
        from bcc.libbcc import lib

        lib.bpf_module_license.restype = ctypes.c_char_p
        assert lib.bpf_module_license(loaded._module.module) == b"Dual MIT/GPL"
