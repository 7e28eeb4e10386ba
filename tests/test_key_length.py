# SPDX-License-Identifier: MIT
"""The experiment on long keys, on the running kernel."""

import math
from contextlib import ExitStack
from statistics import median

import pandas as pd
import pytest
from conftest import needs_kernel, only_calls_differ

from labkit.errors import LabkitError, UsageError
from labkit.experiments import find, key_length
from labkit.experiments.key_length import KeySet, distinct, random_descriptions
from labkit.kernel import bpf, cgroup, programs
from labkit.measuring.cache_fit import crossing
from labkit.measuring.line_fit import fit_line
from labkit.report import growth
from labkit.report.published import published_rows
from labkit.targets import here

pytestmark = pytest.mark.usefixtures("nothing_left")

EXPERIMENT = find("key-length")


# -- descriptions ---------------------------------------------------------------------------------


def test_random_descriptions_are_distinct_of_every_length_and_the_same_every_time():
    found = random_descriptions(8192, 64)
    assert found == random_descriptions(8192, 64)
    assert len(set(found)) == 8192
    lengths = [len(one) for one in found]
    assert (min(lengths), max(lengths)) == (1, 64)
    assert median(lengths) == pytest.approx(32.5, abs=2)
    assert all(33 <= value < 127 for one in found for value in one)


def test_what_is_left_out_of_lines_is_counted():
    lines = [b"a", b"", b"b", b"a", b"x" * 4097, b"x" * 5000, b""]
    kept, notes = distinct(lines, "names")
    assert kept == [b"a", b"b", b"x" * 4096]
    assert notes == [
        "names: 2 empty lines left out",
        "names: 2 cut to 4,096 bytes",
        "names: 2 duplicates left out",  # the second a, and the long lines once they are cut
    ]


def test_keys_are_a_cookie_and_a_padded_description():
    keys = KeySet({}, [b"one", b"three"], 5)
    assert keys.keys([1, 0], 13).raw == b"\x05" + bytes(7) + b"three\x03" + bytes(7) + b"one\0\0"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "No such file"),
        (b"", "it is empty"),
        (b"\n\n", "it is empty"),
        (b"\x7fELF\0\0", "it is binary (byte 4 is zero)"),
    ],
)
def test_a_bad_file_is_refused_with_what_is_accepted(tmp_path, content, message):
    path = tmp_path / "names"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UsageError) as refused:
        EXPERIMENT.parameters.parse({"file": str(path)})
    assert f"file: {path}: " in str(refused.value)
    assert message in str(refused.value)
    assert "it takes a text file" in str(refused.value)


def test_a_folder_is_no_file(tmp_path):
    with pytest.raises(UsageError, match="Is a directory"):
        EXPERIMENT.parameters.parse({"file": str(tmp_path)})


def test_a_file_is_found_from_another_working_directory(tmp_path, monkeypatch):
    (tmp_path / "names").write_text("a\n")
    monkeypatch.chdir(tmp_path)
    assert EXPERIMENT.parameters.parse({"file": "names"}).file == str(tmp_path / "names")


@pytest.mark.parametrize("given", [{"longest": [63]}, {"longest": [4097]}, {"entries": 1_000_001}])
def test_sizes_out_of_range_are_refused(given):
    with pytest.raises(UsageError, match="is not accepted; it takes"):
        EXPERIMENT.parameters.parse(given)


# -- on the kernel --------------------------------------------------------------------------------


def measured(**parameters):
    """Measure in place; return the journal's lines and, by labels, the median net ns."""
    given = {"budget_s": 0.5, "data": ["random"], **parameters}
    lines = list(here.InPlace("key-length", given).lines())
    assert lines[-1]["status"] == "complete", lines[-1]["why"]
    labels = {one["case"]: one["labels"] for one in lines if one["kind"] == "case"}
    values = {}
    for line in lines:
        if line["kind"] == "sample":
            ns = line["elapsed_ns"] / line["operations"]
            values.setdefault((line["case"], line["round"]), {})[line["control"]] = ns
    net = {}
    for (case, _), pair in values.items():
        net.setdefault(tuple(labels[case].values()), []).append(pair[False] - pair[True])
    return lines, {key: median(some) for key, some in net.items()}


@needs_kernel
def test_timed_and_control_differ_in_the_calls_only():
    definitions = {"CHUNK": key_length.CHUNK, "CHUNKS": key_length.CHUNKS}
    keys = KeySet({}, [b"a", b"b"], 64)
    with ExitStack() as held, programs.compiled(EXPERIMENT.source, definitions) as made:
        ((_, hash_fd, _),) = key_length._hashes_of_keys(held, keys, ["preallocated"])
        maps = {"lab_hash": hash_fd, "lab_keys": key_length._array_of_keys(held, keys)}
        with made.with_maps(maps) as bound:
            for name, calls in (("lab_lookup", 1), ("lab_delete_update", 2)):
                without = programs.Without("lab_hash")
                pair = bound.raw_tracepoint(name), bound.raw_tracepoint(name, without)
                assert only_calls_differ(*pair, calls=calls)


@needs_kernel
def test_every_key_is_found_and_what_follows_a_key_is_not():
    keys = KeySet({}, random_descriptions(1000, 64), 64)
    definitions = {"CHUNK": key_length.CHUNK, "CHUNKS": key_length.CHUNKS}
    with ExitStack() as held, programs.compiled(EXPERIMENT.source, definitions) as made:
        ((_, hash_fd, _),) = key_length._hashes_of_keys(held, keys, ["normal"])
        maps = {"lab_hash": hash_fd, "lab_keys": key_length._array_of_keys(held, keys)}
        with made.with_maps(maps) as bound:
            in_order = bpf.RawTracepointRun(bound.raw_tracepoint("lab_in_order"))
            key_length._check("normal", keys, in_order)
            delete = bpf.RawTracepointRun(bound.raw_tracepoint("lab_delete_update"))
            assert delete(1, 0, 1000) > 0
            key_length._check("normal", keys, in_order)
            # In a map that lacks the keys a delete fails.
            other = KeySet({}, [b"other"], 64)
            ((_, empty, _),) = key_length._hashes_of_keys(held, other, ["normal"])
        with made.with_maps(maps | {"lab_hash": empty}) as bound:
            assert bpf.RawTracepointRun(bound.raw_tracepoint("lab_delete_update"))(1, 0, 1000) == 0
            in_order = bpf.RawTracepointRun(bound.raw_tracepoint("lab_in_order"))
            with pytest.raises(LabkitError, match="was no hit"):
                key_length._check("normal", keys, in_order)


@needs_kernel
def test_a_lookup_grows_linearly_with_the_key():
    sizes = [256, 512, 1024, 2048, 4096]
    _, net = measured(longest=sizes, variants=["preallocated"], operations=["miss"], budget_s=3.0)
    fit = fit_line(sizes, [net["preallocated", "miss", size] for size in sizes])
    assert fit.each_ns > 0
    assert fit.r_squared > 0.95


@needs_kernel
def test_memory_is_that_of_the_keys():
    if cgroup.unavailable():
        pytest.skip(cgroup.unavailable())
    lines, _ = measured(longest=[1024], operations=["hit"], variants=["normal", "preallocated"])
    labels = {one["case"]: one["labels"]["variant"] for one in lines if one["kind"] == "case"}
    memory = {
        labels[one["case"]]: one["counts"]["memory_bytes"]
        for one in lines
        if one["kind"] == "sample" and not one["control"]
    }
    assert 8192 * 1032 <= memory["preallocated"] < 1.2 * 8192 * 1032
    # Its allocator takes 2048 bytes for an element of some more than 1024.
    assert 8192 * 2048 <= memory["normal"] < 1.2 * 8192 * 2048


@needs_kernel
def test_what_the_kernel_shows_and_a_file_are_measured_and_said(tmp_path):
    path = tmp_path / "names"
    path.write_bytes(b"one\ntwo\none\n\nthree")
    lines, net = measured(
        data=["kallsyms", "btf"], file=str(path), operations=["hit"], variants=["normal", "dynptr"]
    )
    assert {key[-1] for key in net} == {"kallsyms", "btf", "file"}
    said = [one["message"] for one in lines if one["kind"] == "warning" and "case" not in one]
    assert said == [f"{path}: 1 empty lines left out", f"{path}: 1 duplicates left out"]
    unavailable = {one["variant"]: one["unavailable"] for one in lines if "unavailable" in one}
    assert unavailable["dynptr"] == "BPF_F_DYNPTR_IN_KEY is not in this kernel"


@needs_kernel
def test_a_file_that_turns_out_binary_ends_before_anything_is_measured(tmp_path):
    path = tmp_path / "names"
    path.write_bytes(b"name\n" * 20_000 + b"\0")
    lines = list(here.InPlace("key-length", {"file": str(path), "data": "kallsyms"}).lines())
    assert lines[-1]["exit_status"] == UsageError.exit_status
    assert "it is binary (byte 100000 is zero)" in lines[-1]["why"]
    assert not any(line["kind"] == "sample" for line in lines)


# -- published ------------------------------------------------------------------------------------


def test_published_figures_cross_where_their_author_says():
    """The cover letter: dynptr lookups are faster above 256 bytes, updates above 512."""
    for described, within in zip(
        EXPERIMENT.growth.published, [(128, 256), (256, 512)], strict=True
    ):
        figures = published_rows(described)
        sizes = figures["bytes"].astype(int).tolist()
        assert sizes == [64, 128, 256, 512, 1024, 2048, 4096]
        assert within[0] < crossing(sizes, figures[described.y], 1.0) <= within[1]


def test_flavours_are_told_apart_by_paired_ratios():
    ratios = pd.DataFrame(
        {64: [0.9] * 6, 128: [0.9, 1.1] * 3, 256: [1.2] * 6, 512: [1.2] * 5 + [math.nan]}
    ).to_numpy()
    said = growth._compared([64, 128, 256, 512], ratios, "bytes")
    assert said == "faster at 64 bytes, slower at 256 bytes, else not told apart"
    assert "needs 6 repetitions" in growth._compared([64], ratios[:5, :1], "bytes")
