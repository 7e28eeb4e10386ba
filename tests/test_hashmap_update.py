# SPDX-License-Identifier: MIT
"""Updates of a full hash map and loops on one key, on the running kernel."""

import os
from contextlib import ExitStack

import pandas as pd
import pytest
from conftest import needs_kernel, only_calls_differ

from labkit import paths
from labkit.errors import LabkitError, UsageError
from labkit.experiments import find, hashmap_update
from labkit.kernel import bpf, programs
from labkit.kernel.producers import MINIMUM_OVERLAP_PERCENT
from labkit.targets import here

pytestmark = pytest.mark.usefixtures("nothing_left")

EXPERIMENT = find("hashmap-update")
DEFINITIONS = {"CHUNK": hashmap_update.CHUNK, "CHUNKS": hashmap_update.CHUNKS, "PRODUCERS": 1}


def measured(**parameters):
    """Measure in place; return the journal's lines, and the samples by labels."""
    lines = list(here.InPlace("hashmap-update", {"budget_s": 0.5, **parameters}).lines())
    assert lines[-1]["status"] == "complete", lines[-1]["why"]
    labels = {one["case"]: tuple(one["labels"].values()) for one in lines if one["kind"] == "case"}
    samples = {}
    for line in lines:
        if line["kind"] == "sample":
            samples.setdefault((*labels[line["case"]], line["control"]), []).append(line)
    return lines, samples


def test_every_number_of_cpus_up_to_eight_then_powers_of_two_and_all():
    assert hashmap_update.numbers_of_cpus(1) == [1]
    assert hashmap_update.numbers_of_cpus(6) == [1, 2, 3, 4, 5, 6]
    assert hashmap_update.numbers_of_cpus(16) == [*range(1, 9), 16]
    assert hashmap_update.numbers_of_cpus(48) == [*range(1, 9), 16, 32, 48]


@pytest.mark.parametrize("cpus", [0, -2, 4096])
def test_impossible_numbers_of_cpus_are_refused_before_anything_is_loaded(cpus):
    with pytest.raises(UsageError, match=f"cpus: {cpus} is not accepted"):
        EXPERIMENT.requirements(EXPERIMENT.parameters.parse({"cpus": cpus}))


@needs_kernel
def test_timed_and_control_differ_in_the_calls_only():
    full = programs.Without("lab_hash", -hashmap_update.E2BIG)
    other = programs.Without("lab_hash")
    with programs.compiled(EXPERIMENT.source, DEFINITIONS) as loaded:
        for name, without, calls in (
            ("lab_full_update", full, 1),
            ("lab_update_lookup_delete", other, 3),
            ("lab_lookup", other, 1),
        ):
            pair = loaded.raw_tracepoint(name), loaded.raw_tracepoint(name, without)
            assert only_calls_differ(*pair, calls=calls)


@needs_kernel
@pytest.mark.parametrize("variant", hashmap_update.FLAGS)
def test_each_update_of_a_full_map_fails_and_one_that_does_not_is_noticed(variant):
    with programs.compiled(EXPERIMENT.source, DEFINITIONS) as loaded, ExitStack() as held:
        tallies = loaded.map_fd("lab_tallies")
        for keys, wrong_calls in ((range(1000), 0), (range(999), 1)):
            bound = hashmap_update._bound(held, loaded, variant, keys)
            update = bpf.RawTracepointRun(bound.raw_tracepoint("lab_full_update"))
            bpf.update_element(tallies, 0, bytes(hashmap_update.TALLY.size))
            update(3, 5000, 0)
            raw = bpf.element(tallies, 0, hashmap_update.TALLY.size)
            updates, wrong, elapsed_ns = hashmap_update.TALLY.unpack(raw)
            assert (updates, wrong) == (300, wrong_calls)
            assert elapsed_ns > 0


@needs_kernel
def test_a_map_with_room_ends_the_measurement(monkeypatch):
    monkeypatch.setattr(hashmap_update, "ENTRIES", 1001)

    def too_few(held, loaded, variant, keys):
        return original(held, loaded, variant, keys[:1000])

    original = hashmap_update._bound
    monkeypatch.setattr(hashmap_update, "_bound", too_few)
    lines = list(here.InPlace("hashmap-update", {"loops": "full_update", "cpus": 1}).lines())
    assert lines[-1]["status"] == "failed"
    assert "an update did not fail with E2BIG" in lines[-1]["why"]


@needs_kernel
def test_a_key_that_is_not_as_it_has_to_be_is_noticed():
    with programs.compiled(EXPERIMENT.source, DEFINITIONS) as loaded, ExitStack() as held:
        empty = hashmap_update._bound(held, loaded, "preallocated", range(0))
        with pytest.raises(LabkitError, match="not filled as it has to be"):
            hashmap_update._loop(empty, "preallocated", "lookup", None)


@needs_kernel
def test_events_are_counted_as_the_kernels_samples_count_them():
    _, samples = measured(variants=["preallocated"], loops=["update_lookup_delete", "lookup"])
    for (_, loop, _, control), some in samples.items():
        if not control:
            event = {"update_lookup_delete": 30, "lookup": 1}[loop]
            assert all(one["counts"]["events"] * event == one["operations"] for one in some)


@needs_kernel
def test_as_many_cpus_as_said_are_at_work_at_the_same_time():
    most = len(os.sched_getaffinity(0))
    lines, samples = measured(loops=["full_update"], variants=["preallocated"], budget_s=1.0)
    assert {key[2] for key in samples} == set(hashmap_update.numbers_of_cpus(most))
    overlaps = [one["counts"]["overlap_percent"] for some in samples.values() for one in some]
    assert all(0 < percent <= 100 for percent in overlaps)
    apart = [
        one
        for some in samples.values()
        for one in some
        if one["counts"]["overlap_percent"] < MINIMUM_OVERLAP_PERCENT
    ]
    said = [one for one in lines if "worked together" in one.get("message", "")]
    assert len(said) == len(apart)


def test_published_figures_are_there_with_their_source():
    update = pd.read_csv(paths.PUBLISHED / "hashmap_full_update.csv", comment="#")
    assert update.to_dict("records") == [{"cpu": 1, "loop": "full_update", "events_kps": 555.83}]
    loops = pd.read_csv(paths.PUBLISHED / "map_perf_test.csv", comment="#")
    assert len(loops) == 6
    for name in ("hashmap_full_update.csv", "map_perf_test.csv", "dynptr_key.csv"):
        assert "https://lore.kernel.org/bpf/" in (paths.PUBLISHED / name).read_text()
