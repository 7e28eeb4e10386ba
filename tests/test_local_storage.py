# SPDX-License-Identifier: MIT
"""The local-storage experiment on the running kernel."""

import os
from statistics import median

import pytest
from conftest import differing_instructions, needs_kernel, open_files

from labkit import paths
from labkit.errors import CannotRunError
from labkit.experiments import find, local_storage
from labkit.kernel import programs, tasks
from labkit.targets import here

pytestmark = pytest.mark.usefixtures("nothing_left")

EXPERIMENT = find("local-storage")


def measured(**parameters):
    """Measure in place; return the journal's lines and, by labels, the windows' ns per get."""
    lines = list(here.InPlace("local-storage", {"budget_s": 0.5, **parameters}).lines())
    assert lines[-1]["status"] == "complete", lines[-1]["why"]
    labels = {one["case"]: tuple(one["labels"].values()) for one in lines if one["kind"] == "case"}
    values = {}
    for line in lines:
        if line["kind"] == "sample":
            key = (*labels[line["case"]], "control" if line["control"] else "timed")
            values.setdefault(key, []).append(line["elapsed_ns"] / line["operations"])
    return lines, values


def net_ns(values, *labels):
    pairs = zip(values[*labels, "timed"], values[*labels, "control"], strict=True)
    return median(timed - control for timed, control in pairs)


def test_the_order_of_gets():
    assert local_storage.order_of_gets("sequential", 4) == [0, 1, 2, 3]
    assert local_storage.order_of_gets("interleaved", 1) == [0, 0]
    interleaved = local_storage.order_of_gets("interleaved", 10)
    assert interleaved == [0, 0, 1, 2, 3, 0, 4, 5, 6, 0, 7, 8, 9, 0]
    assert interleaved.count(0) == 5  # of 14: 35.7 %, as in the kernel's tool


@needs_kernel
def test_timed_and_control_differ_in_the_call_and_its_arguments_only():
    definitions = {
        **{"CHUNK": 100, "CHUNKS": 70, "POSITIONS": 16_384},
        **{"OUTER": 1, "ROWS": 1, "ENTRIES": 1, "HASH_FLAGS": 0},
    }
    call, load_immediate = 0x85, 0x18
    with programs.compiled(EXPERIMENT.source, definitions) as loaded:
        for kind, operation in (("storage", "get"), ("hash", "lookup")):
            only_timed, only_control, changes = differing_instructions(
                *(loaded.raw_tracepoint(f"lab_{kind}_{name}") for name in (operation, "control"))
            )
            assert changes <= 2
            assert sum(one[0] == call for one in only_timed) == 1
            assert not any(one[0] == call for one in only_control)
            assert len(only_timed) - len(only_control) <= 7
            arguments = {0xBF, 0xB7, 0x07, call, load_immediate, 0x00}
            inlined = {0x15, 0x07}  # what the verifier puts behind a hash lookup
            assert {one[0] for one in only_timed} <= arguments | inlined
            assert {one[0] for one in only_control} <= arguments


@needs_kernel
def test_the_cliff_is_there():
    _, values = measured(maps=[1, 16, 32, 1000], variants=["sequential"], budget_s=2.0)
    assert net_ns(values, "sequential", 32) >= 3 * net_ns(values, "sequential", 16)
    assert net_ns(values, "sequential", 1000) >= 50 * net_ns(values, "sequential", 1)


@needs_kernel
def test_a_size_costs_the_same_before_and_after_a_thousand_maps_were_used():
    """The storages of one case hang on its own thread: see "State belongs to someone"."""
    parameters = EXPERIMENT.parameters(
        maps=[24, 1000], variants=["sequential"], cpu=tasks.measuring_cpu(-1)
    )
    with EXPERIMENT.cases(parameters, parameters.variants) as (small, large):

        def ns_per_get(case):
            calls = [case.timed(2400) for _ in range(100)]
            return median(call.elapsed_ns / call.operations for call in calls)

        before = small.worker.submit(ns_per_get, small).result()
        large.worker.submit(ns_per_get, large).result()
        after = small.worker.submit(ns_per_get, small).result()
        # In one thread, storages of the later maps come first in the task's list.
        small.worker.submit(ns_per_get, large).result()
        in_one_thread = small.worker.submit(ns_per_get, small).result()
    assert 0.4 < after / before < 2.5
    assert in_one_thread > 10 * before


@needs_kernel
def test_a_hash_of_more_keys_is_no_faster_and_important_gets_are_counted_exactly():
    lines, values = measured(maps=[10], keys=[10, 4_194_304], budget_s=1.0)
    assert net_ns(values, "hashmap", 4_194_304) > net_ns(values, "hashmap", 10)
    labels = {one["case"]: one["labels"] for one in lines if one["kind"] == "case"}
    totals = {}
    for line in lines:
        if line["kind"] == "sample":
            gets, important = totals.get(line["case"], (0, 0))
            totals[line["case"]] = (
                gets + line["operations"],
                important + line["counts"]["important"],
            )
    share = {
        labels[case]["variant"]: important / gets for case, (gets, important) in totals.items()
    }
    assert share["sequential"] == pytest.approx(1 / 10, rel=0.01)
    assert share["interleaved"] == pytest.approx(5 / 14, rel=0.01)
    assert share["hashmap"] == 1


@needs_kernel
def test_a_measurement_says_what_it_was_and_leaves_nothing():
    lines, _ = measured(maps=[1, 2], variants=["interleaved"], seed=7, zero_seed=True)
    start, end = lines[0], lines[-1]
    assert start["kind"] == "start"
    assert start["seed"] == 7
    assert start["parameters"]["zero_seed"] is True
    assert start["environment"]["kernel_release"] == os.uname().release
    assert len(start["code_sha256"]) == 64
    assert end["leaked"] == []
    kinds = [line["kind"] for line in lines if line["kind"] not in ("sample", "warning")]
    rounds = lines[-2]["rounds"]
    assert kinds == ["start", "requirement", "case", "case", *["round"] * rounds, "stop", "end"]


@needs_kernel
def test_what_is_stopped_is_partial_and_leaves_nothing():
    measurement = here.InPlace("local-storage", {"maps": [1, 1000], "variants": ["sequential"]})
    lines = []
    for line in measurement.lines():
        lines.append(line)
        if line["kind"] == "round":
            measurement.stop()
    assert lines[-1]["status"] == "partial"
    assert lines[-1]["why"] == "stopped"
    assert sum(line["kind"] == "round" for line in lines) == 1


@needs_kernel
@pytest.mark.slow
def test_fifty_measurements_in_one_process_leave_descriptors_and_objects_flat():
    def once():
        measured(maps=[1, 17], variants=["sequential"], budget_s=0.001, precision_percent=100)
        return open_files()

    first = once()
    assert {once() for _ in range(50)} == {first}


@needs_kernel
def test_two_measurements_at_once_are_refused_with_who_measures():
    with here.alone("somebody"):
        lines = list(here.InPlace("local-storage", {}).lines())
    assert lines[-1]["exit_status"] == CannotRunError.exit_status
    assert f"measuring already (somebody, process {os.getpid()}, since" in lines[-1]["why"]


@needs_kernel
def test_a_variant_without_memory_is_left_out_and_the_rest_measured(monkeypatch):
    monkeypatch.setattr("labkit.kernel.host.available_memory_mib", lambda: 100.0)
    lines, values = measured(maps=[1], keys=[10])
    requirements = {one["variant"]: one["unavailable"] for one in lines if "unavailable" in one}
    assert "needs 512 MiB of memory, 100 MiB are available" in requirements["hashmap"]
    assert {key[0] for key in values} == {"sequential", "interleaved"}


def test_the_published_figures_are_here_with_their_source():
    text = (paths.PUBLISHED / "local_storage_get.csv").read_text()
    readme = "\n".join(path.read_text() for path in paths.PUBLISHED.glob("*.md"))
    assert "73087489250d" in text + readme
