# SPDX-License-Identifier: MIT
"""Journals and run folders: whole files, and whatever was written stays readable."""

import json
import os

import pandas as pd
import pytest

from labkit.errors import LabkitError, UsageError
from labkit.store import journal, run
from labkit.store.run import Run

HEADER = {
    "kind": "run",
    "schema": 1,
    "id": "r",
    "experiment": "x",
    "parameters": {},
    "command": "./lab run x",
    "repeat": 2,
}
START = {
    "kind": "start",
    "labels": ["variant", "maps"],
    "metrics": [
        {"name": "get_ns", "unit": "ns/op", "title": "time per get", "count": ""},
        {"name": "hits_mops", "unit": "Mops/s", "title": "gets", "count": "operations"},
        {"name": "few_mops", "unit": "Mops/s", "title": "few", "count": "few"},
    ],
    "environment": {"kernel_release": "6.1"},
}
CASES = [
    {"kind": "case", "case": 0, "labels": {"variant": "a", "maps": 16}},
    {"kind": "case", "case": 1, "labels": {"variant": "b"}},
]


def sample(case, round_index, elapsed_ns, *, control=False):
    return {
        "kind": "sample",
        "case": case,
        "control": control,
        "round": round_index,
        "operations": 1000,
        "elapsed_ns": elapsed_ns,
        "steal_ns": 0,
        "counts": {"few": 250},
    }


def end(status="complete", **more):
    return {"kind": "end", "status": status, "why": "time budget used", "leaked": []} | more


def process(index, *lines):
    return [START | {"boot": 0, "process": index}, *CASES, *lines]


@pytest.fixture
def written(tmp_path):
    def write(*lines, tail=b""):
        path = tmp_path / "r"
        path.mkdir(exist_ok=True)
        data = b"".join(journal.encode(line) for line in lines) + tail
        (path / run.JOURNAL).write_bytes(data)
        return Run.read(path)

    return write


def test_samples_become_a_row_for_each_metric(written):
    found = written(HEADER, *process(3, sample(0, 5, 20_000), sample(1, 5, 4_000, control=True)))
    rows = found.frame.to_dict("records")
    # 20,000 ns for 1000 operations: 20 ns, 1000 / 20 us = 50 M/s, 250 / 20 us = 12.5 M/s
    assert [row["value"] for row in rows] == [20.0, 50.0, 12.5, 4.0, 250.0, 62.5]
    assert [row["unit"] for row in rows[:3]] == ["ns/op", "Mops/s", "Mops/s"]
    assert {(row["boot"], row["process"], row["round"]) for row in rows} == {(0, 3, 5)}
    assert rows[0]["maps"] == 16
    assert found.frame["maps"].isna().tolist() == [False] * 3 + [True] * 3
    assert [row["control"] for row in rows] == [False] * 3 + [True] * 3


def test_a_unit_says_how_a_count_becomes_a_value_and_what_was_not_counted_has_no_row(written):
    units = {"ns/op": 2.0, "%": 200.0, "Mops/s": 100.0, "k/s": 100_000.0, "MiB": 2000 / 2**20}
    metrics = [
        *({"name": unit, "unit": unit, "title": unit, "count": "many"} for unit in units),
        {"name": "none", "unit": "MiB", "title": "none", "count": "missing"},
    ]
    counted = sample(0, 0, 20_000) | {"counts": {"many": 2000}}
    start = START | {"metrics": metrics, "boot": 0, "process": 0}
    frame = written(HEADER, start, *CASES, counted).frame
    # 2000 of something in 1000 operations and 20 us
    assert dict(zip(frame["metric"], frame["value"], strict=True)) == units


def test_a_run_is_complete_when_every_planned_process_is(written):
    once = [*process(0, sample(0, 0, 1)), end()]
    assert written(HEADER, *once, *once).status == "complete"
    assert written(HEADER, *once).status == "partial"
    assert written(HEADER, *once).why == "ended in process 1 of 2"
    assert written(HEADER, *once, *process(1), end("partial", why="stopped")).why == "stopped"
    assert written(HEADER, *once, *process(1), end("failed", why="bad")).status == "failed"


def test_a_journal_that_ends_in_the_middle_of_a_line_is_read_up_to_there(written):
    found = written(HEADER, *process(0, sample(0, 0, 1)), tail=b'{"kind":"sample","ca')
    assert len(found.samples) == 1
    assert found.status == "partial"
    assert found.warnings == ["1 unreadable lines of the journal left out"]


@pytest.mark.parametrize(
    "junk",
    [
        b"\xff\x00\n",
        b"[1]\n",
        b"null\n",
        b'{"kind":"sample","case":0}\n',
        b'{"no":"kind"}\n',
        b"\n",
    ],
)
def test_a_corrupt_line_is_counted_and_the_rest_used(written, junk):
    found = written(HEADER, *process(0, sample(0, 0, 1)), tail=junk + journal.encode(end()))
    assert found.unreadable_lines == 1
    assert len(found.of_kind("end")) == 1


def test_a_newer_schema_is_refused_with_its_version(written):
    with pytest.raises(UsageError, match="schema 99"):
        written(HEADER | {"schema": 99})


@pytest.mark.parametrize("content", [b"", b"hello\n", b'{"kind":"sample"}\n'])
def test_a_file_that_is_no_journal_is_refused(tmp_path, content):
    (tmp_path / run.JOURNAL).write_bytes(content)
    with pytest.raises(UsageError):
        Run.read(tmp_path)


def test_warnings_name_their_case_once(written):
    warning = {"kind": "warning", "case": 0, "message": "odd"}
    other = {"kind": "warning", "case": 1, "message": "odd"}
    lines = process(0, warning, other, warning)
    found = written(HEADER, *lines, end(leaked=["map lab_x (id 3)"]))
    assert found.warnings == [
        "odd: a 16 maps (2 times), b",
        "left behind in the kernel: map lab_x (id 3)",
    ]


def test_finishing_writes_what_is_made_from_the_journal(written):
    found = written(HEADER, *process(0, sample(0, 0, 20_000)), end(), *process(1), end())
    found.finish()
    summary = json.loads((found.path / run.SUMMARY).read_text())
    assert (summary["schema"], summary["status"]) == (journal.SCHEMA, "complete")
    assert summary["environment"] == {"kernel_release": "6.1"}
    pd.testing.assert_frame_equal(pd.read_parquet(found.path / run.SAMPLES), found.frame)
    assert sorted(path.name for path in found.path.iterdir()) == sorted(
        (run.JOURNAL, run.SUMMARY, run.SAMPLES)
    )


def test_a_file_appears_whole_or_not_at_all(tmp_path):
    target = tmp_path / "t"
    target.write_text("before")
    target.chmod(0o600)
    with pytest.raises(LabkitError, match="cannot write"):
        run.write_whole(tmp_path / "missing" / "t", b"x")
    run.write_whole(target, b"after")
    assert target.read_text() == "after"
    assert list(tmp_path.iterdir()) == [target]


def test_a_full_disk_ends_with_a_message_and_keeps_the_journal():
    full = journal.Journal.__new__(journal.Journal)
    full.path, full._descriptor = "/dev/full", os.open("/dev/full", os.O_WRONLY)
    with pytest.raises(LabkitError, match="No space left on device; what was measured"):
        full.add(HEADER)
    os.close(full._descriptor)


def test_runs_are_found_by_path_id_beginning_or_last(tmp_path):
    for name in ("20260101-a", "20260102-b"):
        folder = run.create(tmp_path, name)
        (folder / run.JOURNAL).write_bytes(journal.encode(HEADER))
    homes = [tmp_path, tmp_path / "missing"]
    assert run.locate("last", homes).name == "20260102-b"
    assert run.locate("last", [tmp_path / "missing", tmp_path]).name == "20260102-b"
    examples = run.create(tmp_path / "examples", "z")
    (examples / run.JOURNAL).write_bytes(journal.encode(HEADER))
    assert run.locate("last", [tmp_path, tmp_path / "examples"]).name == "20260102-b"
    assert run.locate("z", [tmp_path, tmp_path / "examples"]) == examples
    assert run.locate("20260101", homes).name == "20260101-a"
    assert run.locate(str(tmp_path / "20260101-a"), homes).name == "20260101-a"
    with pytest.raises(UsageError, match="2 runs begin with '2026'"):
        run.locate("2026", homes)
    with pytest.raises(UsageError, match="no run is called 'x'; the newest: "):
        run.locate("x", homes)


def test_two_runs_of_one_second_get_two_folders(tmp_path):
    assert run.create(tmp_path, "r").name == "r"
    assert run.create(tmp_path, "r").name == "r-2"


def test_samples_of_a_case_that_could_not_be_read_are_left_out(written):
    found = written(HEADER, START | {"boot": 0, "process": 0}, CASES[1], sample(0, 0, 9), end())
    assert len(found.samples) == 1
    assert found.frame.empty


def test_samples_without_a_number_are_counted_and_the_rest_used(written):
    bad = sample(0, 1, 9) | {"elapsed_ns": "x"}
    found = written(HEADER, *process(0, sample(0, 0, 9), bad, sample(0, 2, 9)), end())
    assert (len(found.samples), found.unreadable_lines) == (2, 1)
    assert found.frame["round"].unique().tolist() == [0, 2]
