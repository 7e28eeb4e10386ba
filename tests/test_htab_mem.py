# SPDX-License-Identifier: MIT
"""The htab-mem experiment on the running kernel: producers, memory, and what it refuses."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest
from conftest import ROOT, lab, needs_kernel, open_files, wait_until
from test_cgroup import groups, needs_memory

from labkit import paths
from labkit.errors import LabkitError, UsageError
from labkit.experiments import find, htab_mem
from labkit.kernel import bpf, btf, cgroup, host, programs
from labkit.kernel.producers import Produced, Producers, Work, overlap_percent, running_percent
from labkit.measuring.sampling import sampled
from labkit.report import plots, tables
from labkit.store import journal
from labkit.store.run import Run
from labkit.targets import here

EXPERIMENT = find("htab-mem")
SHORT = {"window_s": 0.2, "warm_up_s": 0.05, "budget_s": 0.001}
BOTH = ["preallocated", "bpf_mem_alloc"]

two_cpus = pytest.mark.skipif(len(host.allowed_cpus()) < 2, reason="needs two CPUs")


@pytest.fixture(autouse=True)
def no_group_left():
    yield
    assert not host.cgroup("memory") or not groups()


def measured(**parameters):
    """Measure one round in place and return the journal's lines."""
    lines = list(here.InPlace("htab-mem", SHORT | parameters).lines())
    assert lines[-1]["status"] == "complete", lines[-1]["why"]
    assert lines[-1]["leaked"] == []
    return lines


def of_kind(kind, lines, **fields):
    return [
        line
        for line in lines
        if line["kind"] == kind and all(line[name] == value for name, value in fields.items())
    ]


def as_run(folder, lines):
    header = {
        "kind": "run",
        "schema": 1,
        "id": "r",
        "experiment": "htab-mem",
        "parameters": EXPERIMENT.parameters().as_dict(),
        "command": "./lab run htab-mem",
        "repeat": 1,
    }
    lines = [
        line | {"boot": 0, "process": 0} if line["kind"] == "start" else line for line in lines
    ]
    (folder / "journal.jsonl").write_bytes(b"".join(map(journal.encode, [header, *lines])))
    return Run.read(folder)


# -- what is accepted -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"value_bytes": 0}, "at least 1, at most 4,096"),
        ({"value_bytes": 4097}, "at least 1, at most 4,096"),
        ({"value_bytes": "8k"}, "'8k' is not accepted; it takes a whole number"),
        ({"use_cases": ["overwrit"]}, "each one of overwrite, batch_add_batch_del"),
        ({"flavours": ["malloc"]}, "each one of preallocated, bpf_mem_alloc, kmalloc, rhash"),
        ({"flavours": []}, "the list is empty"),
        ({"producers": 0}, "producers: 0 is not accepted"),
        ({"producers": 3}, "producers: 3 is not accepted with add_del_on_diff_cpu"),
        ({"barrier": "mutex"}, "one of spin, futex"),
        ({"window_s": 2}, "at most 1.0"),
    ],
)
def test_bad_values_are_refused_with_what_is_accepted(given, said):
    with pytest.raises(UsageError, match=said):
        EXPERIMENT.parameters.parse(given)


def test_more_producers_than_cpus_are_refused_before_anything_loads():
    ended = lab("run", "htab-mem", "-p", "producers", "4096")
    assert ended.returncode == 2
    assert "producers: 4096 is not accepted; this process may run on" in ended.stderr


def test_an_odd_count_is_accepted_without_pairs_and_the_default_is_even_with_them(monkeypatch):
    monkeypatch.setattr(host, "allowed_cpus", lambda: {0, 1, 2})
    kinds = EXPERIMENT.parameters
    assert htab_mem.cpus_of_producers(kinds(cpu=1)) == [1, 2]
    assert htab_mem.cpus_of_producers(kinds(cpu=1, use_cases=["overwrite"])) == [1, 2, 0]
    assert htab_mem.cpus_of_producers(kinds.parse({"producers": 2, "cpu": 0})) == [0, 2]


def test_one_cpu_leaves_the_pairs_out_and_measures_the_rest(monkeypatch):
    monkeypatch.setattr(host, "allowed_cpus", lambda: {0})
    found = htab_mem.requirements(EXPERIMENT.parameters())
    assert "pairs need two CPUs" in found["add_del_on_diff_cpu"]
    alone = htab_mem.requirements(EXPERIMENT.parameters(use_cases=["add_del_on_diff_cpu"]))
    assert all("pairs need two CPUs" in alone[flavour] for flavour in htab_mem.FLAVOURS)


class Kernel:
    """Types of a kernel that has these members of struct bpf_htab and these enumerators."""

    def __init__(self, members, **enumerators):
        self._members, self._enumerators = members, enumerators

    def members(self, name):
        return self._members if name == "bpf_htab" else []

    def enumerator(self, name):
        return self._enumerators.get(name)


@needs_kernel
@pytest.mark.parametrize(
    ("kernel", "available"),
    [
        (Kernel(["map", "ma"]), {"preallocated", "bpf_mem_alloc"}),
        (Kernel(["map"]), {"preallocated", "kmalloc"}),
        (
            Kernel(["map", "ma"], BPF_MAP_TYPE_RHASH=34),
            {"preallocated", "bpf_mem_alloc", "rhash"},
        ),
        (None, {"preallocated"}),
    ],
)
def test_types_tell_the_allocator(monkeypatch, kernel, available):
    monkeypatch.setattr(btf, "kernel", lambda: kernel)
    found = htab_mem.requirements(EXPERIMENT.parameters())
    assert {name for name, why in found.items() if not why} == available


@needs_kernel
def test_the_running_kernels_types_are_read():
    types = btf.kernel()
    assert types.enumerator("BPF_MAP_TYPE_HASH") == bpf.MAP_TYPE_HASH
    assert types.enumerator("BPF_MAP_TYPE_TASK_STORAGE") == bpf.MAP_TYPE_TASK_STORAGE
    assert types.enumerator("BPF_MAP_TYPE_NO_SUCH") is None
    assert {"map", "buckets", "count"} <= set(types.members("bpf_htab"))
    assert types.members("no_such_struct") == []


@pytest.mark.parametrize("blob", [b"", b"\x9f\xeb", b"\xeb\x9f" + bytes(30)])
def test_what_is_no_btf_is_refused(blob):
    with pytest.raises(ValueError, match="not BTF"):
        btf.Types(blob)


# -- parts ----------------------------------------------------------------------------------------


def test_overlap_is_the_part_in_which_all_ran():
    def ran(begin, end):
        return Produced(begin, end, 0, b"")

    assert overlap_percent([ran(0, 100), ran(0, 100)]) == 100
    assert overlap_percent([ran(0, 90), ran(10, 100)]) == 80
    assert overlap_percent([ran(0, 10), ran(20, 100)]) == 0


def test_the_producer_that_had_its_cpu_least_counts():
    assert running_percent([Produced(0, 100, 90, b""), Produced(0, 200, 100, b"")]) == 50


def test_readings_keep_their_pace_however_slow_some_are():
    values = iter(range(100))

    def read():
        value = next(values)
        if value == 2:
            time.sleep(0.035)
        return value

    clock_ns, found = sampled(read, 0.2)
    assert found == list(range(len(clock_ns)))
    slots = [ns // 10_000_000 for ns in clock_ns]
    assert slots == sorted(set(slots))
    assert slots[3] >= slots[2] + 3
    assert clock_ns[-1] < 2e8


@needs_kernel
def test_a_control_does_nothing_to_the_map_and_the_rest_is_the_same():
    definitions = {"BATCH": 64, "VALUE_BYTES": 8, "PRODUCERS": 1}
    call, helpers = 0x85, {1: "lookup", 2: "update", 3: "delete", 5: "ktime"}
    wanted = {"overwrite": [2], "add_and_delete": [2, 3], "add_new": [2], "delete": [3]}
    with programs.compiled(EXPERIMENT.source, definitions) as loaded:
        for name, operations in wanted.items():
            calls = []
            for suffix in ("", "_control"):
                code = loaded.instructions(f"lab_{name}{suffix}")
                calls.append([int.from_bytes(one[4:], "little") for one in code if one[0] == call])
                assert set(calls[-1]) <= set(helpers)
            assert sorted(calls[0]) == sorted(calls[1] + operations)


@needs_kernel
@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("flavour", BOTH)
def test_each_program_does_what_it_says_and_failures_are_counted(flavour):
    if htab_mem._flavour(flavour):
        pytest.skip(htab_mem._flavour(flavour))
    definitions = {"BATCH": 64, "VALUE_BYTES": 4096, "PRODUCERS": 1}
    with programs.compiled(EXPERIMENT.source, definitions) as loaded:
        htab_mem._check(loaded, flavour, 4096)
        tallies = loaded.map_fd("lab_tallies")
        map_fd = htab_mem.create(flavour, 4096)
        with loaded.with_maps({"lab_map": map_fd}) as bound:
            bpf.update_element(tallies, 0, bytes(128))
            bpf.RawTracepointRun(bound.raw_tracepoint("lab_delete"))(0, 0, 1)
        batches, failed, elapsed_ns = htab_mem.TALLY.unpack(bpf.element(tallies, 0, 128))
        os.close(map_fd)
    assert (batches, failed) == (1, 64)
    assert elapsed_ns > 0


@needs_kernel
@pytest.mark.usefixtures("nothing_left")
def test_a_program_that_the_kernel_refuses_is_said_by_the_producer():
    definitions = {"BATCH": 64, "VALUE_BYTES": 8, "PRODUCERS": 1}
    with programs.compiled(EXPERIMENT.source, definitions) as loaded:
        tallies = loaded.map_fd("lab_tallies")
        with Producers([min(host.allowed_cpus())], tallies, 128) as producers:
            work = [Work(tallies, (0, 0, 1))]  # a map is no program
            with pytest.raises(LabkitError, match="a producer failed: Invalid argument"):
                producers.run(
                    work, barrier="spin", warm_up_s=0.01, meanwhile=lambda: time.sleep(0.01)
                )


# -- the experiment -------------------------------------------------------------------------------


@needs_kernel
@two_cpus
@pytest.mark.usefixtures("nothing_left")
def test_windows_of_all_use_cases(tmp_path):
    lines = measured()
    available = [one["variant"] for one in of_kind("requirement", lines) if not one["unavailable"]]
    cases = of_kind("case", lines)
    assert len(cases) == len(available) * 3
    for case in cases:
        (timed,) = of_kind("sample", lines, case=case["case"], control=False)
        (control,) = of_kind("sample", lines, case=case["case"], control=True)
        counts = timed["counts"]
        assert timed["operations"] == 64 * counts["batches"] > 0
        assert counts["failed"] == 0
        # Two producers for a fifth of a second each.
        assert 0.35e9 < timed["elapsed_ns"] < 0.8e9
        assert counts["program_ns"] < timed["elapsed_ns"]
        assert counts["program_ns"] / timed["operations"] > 5 * (
            control["counts"]["program_ns"] / control["operations"]
        )
        assert ("barrier" in case["labels"]) == (case["labels"]["use_case"] == htab_mem.PAIRS)
    run = as_run(tmp_path, lines)
    values = run.frame[~run.frame["control"]].pivot(
        index=["variant", "use_case"], columns="metric", values="value"
    )
    pd.testing.assert_series_equal(
        values["batches_kps"] * 64 / 1000, values["operations_mops"], check_names=False
    )
    assert "batches per producer" in tables.text(run)
    for name in plots.names(run):
        assert len(plots.encoded(plots.draw(run, name), "svg")) > 10_000


@needs_kernel
@two_cpus
def test_pairs_take_turns_with_either_barrier():
    for barrier in ("spin", "futex"):
        lines = measured(use_cases=[htab_mem.PAIRS], flavours=["preallocated"], barrier=barrier)
        assert of_kind("case", lines)[0]["labels"]["barrier"] == barrier
        # Elements are new when added and there when deleted: nothing fails if turns are taken.
        (sample,) = of_kind("sample", lines, control=False)
        assert sample["counts"]["batches"] > 20
        assert sample["counts"]["failed"] == 0


@needs_memory
def test_preallocated_memory_is_flat_and_holds_all_values():
    for value_bytes in (8, 4096):
        lines = measured(
            use_cases=["overwrite"], flavours=["preallocated"], value_bytes=value_bytes
        )
        (sample,) = of_kind("sample", lines, control=False)
        (series,) = of_kind("series", lines)
        readings = series["columns"]["memory_bytes"]
        counts = sample["counts"]
        assert max(readings) <= 1.05 * min(readings)
        assert counts["memory_bytes"] >= 8192 * value_bytes
        assert counts["memory_peak_bytes"] >= counts["memory_bytes"]
        assert counts["memory_deviation_bytes"] < 0.05 * counts["memory_bytes"]
    clock_ns = series["columns"]["clock_ns"]
    assert len(clock_ns) == len(readings) > 10
    assert clock_ns == sorted(clock_ns)


@needs_kernel
def test_without_memory_the_rate_is_measured_and_the_reason_given(monkeypatch, tmp_path):
    monkeypatch.setattr(cgroup, "unavailable", lambda: "no such controller")
    lines = measured(use_cases=["overwrite"], flavours=["preallocated"])
    assert of_kind("requirement", lines)[-1] == {
        "kind": "requirement",
        "variant": "memory",
        "unavailable": "no such controller",
    }
    assert not of_kind("series", lines)
    run = as_run(tmp_path, lines)
    assert "batches_kps" in set(run.frame["metric"])
    assert not any(metric.startswith("memory") for metric in run.frame["metric"])
    assert "memory  unavailable: no such controller" in tables.text(run)
    for name in plots.names(run):
        plots.draw(run, name)


def test_a_run_that_ended_before_its_first_sample_is_drawn(tmp_path):
    run = as_run(tmp_path, [])
    for name in plots.names(run):
        plots.draw(run, name)


@needs_kernel
@pytest.mark.usefixtures("nothing_left")
def test_measurements_leave_descriptors_flat():
    def once():
        measured(use_cases=["overwrite"], flavours=["preallocated"], window_s=0.05)
        return open_files()

    first = once()
    assert {once() for _ in range(5)} == {first}


def children(process):
    found = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    return [int(one) for one in found]


@needs_kernel
@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_what_is_interrupted_or_killed_leaves_no_producer_and_no_group(how):
    child = subprocess.Popen(
        [sys.executable, "-m", "labkit", "measure", "htab-mem"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=ROOT,
    )
    child.stdin.write(json.dumps(SHORT | {"budget_s": 60}).encode() + b"\n")
    child.stdin.flush()
    for raw in child.stdout:
        if json.loads(raw)["kind"] == "sample":
            break
    producers = children(child.pid)
    assert producers
    child.send_signal(how)
    child.stdout.read()
    child.wait(10)
    child.stdin.close()
    assert wait_until(lambda: not any(Path(f"/proc/{one}").exists() for one in producers))
    cgroup.sweep()


def test_the_published_figures_are_here_with_their_source():
    text = (paths.PUBLISHED / "htab_mem.csv").read_text()
    assert "20230703141332.3319271-1-houtao@huaweicloud.com" in text
    assert len(pd.read_csv(paths.PUBLISHED / "htab_mem.csv", comment="#")) == 9
