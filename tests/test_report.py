# SPDX-License-Identifier: MIT
"""Estimates with values worked out by hand, and what tables, plots and pages hold."""

import dataclasses
import json
import math
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import get_type_hints

import nbformat
import numpy as np
import pandas as pd
import pytest
from conftest import ROOT

from labkit import paths
from labkit.errors import LabkitError, UsageError
from labkit.experiments import find, names
from labkit.report import findings, notebook, plots, summary, tables
from labkit.report.published import published_rows
from labkit.store import journal
from labkit.store.run import JOURNAL, Run

EXPERIMENT = find("local-storage")
PLUS_MINUS = "\N{PLUS-MINUS SIGN}"


def header(repeat=1):
    return {
        "kind": "run",
        "schema": 1,
        "id": "r",
        "experiment": "local-storage",
        "parameters": EXPERIMENT.parameters().as_dict(),
        "command": "./lab run local-storage",
        "repeat": repeat,
    }


def start(process=0):
    return {
        "kind": "start",
        "boot": 0,
        "process": process,
        "seed": 7,
        "labels": list(EXPERIMENT.labels),
        "metrics": [dataclasses.asdict(metric) for metric in EXPERIMENT.metrics],
        "environment": {
            "kernel_release": "6.1.0-test",
            "cpu_model": "Test CPU",
            "command_line": "quiet " * 100,
            "mitigations": {"spectre_v2": "Mitigation: Retpolines", "mds": "Vulnerable"},
        },
    }


def case(index, **labels):
    return {"kind": "case", "case": index, "labels": labels}


def sample(index, round_index, ns_per_get, control=False, important=500):
    return {
        "kind": "sample",
        "case": index,
        "control": control,
        "round": round_index,
        "operations": 1000,
        "elapsed_ns": round(1000 * ns_per_get),
        "steal_ns": 0,
        "counts": {"important": important},
    }


def pairs(index, timed, control, important=500):
    for round_index, (a, b) in enumerate(zip(timed, control, strict=True)):
        yield sample(index, round_index, a, important=important)
        yield sample(index, round_index, b, control=True, important=important)


END = {"kind": "end", "status": "complete", "why": "time budget used", "leaked": []}


@pytest.fixture
def run_of(tmp_path):
    def write(*lines):
        (tmp_path / JOURNAL).write_bytes(b"".join(journal.encode(line) for line in lines))
        return Run.read(tmp_path)

    return write


def row(run, metric, kind, **labels):
    found = summary.summary(run)
    found = found[(found["metric"] == metric) & (found["kind"] == kind)]
    for name, value in labels.items():
        found = found[found[name] == value]
    (only,) = found.to_dict("records")
    return only


def test_net_is_the_median_of_paired_differences_not_a_difference_of_medians(run_of):
    # timed 10 20 60, control 1 15 5: differences 9 5 55, median 9; medians 20 - 5 = 15
    lines = pairs(0, [10, 20, 60], [1, 15, 5])
    run = run_of(header(), start(), case(0, variant="sequential", maps=1), *lines, END)
    assert row(run, "get_ns", "raw")["median"] == 20
    assert row(run, "get_ns", "control")["median"] == 5
    net = row(run, "get_ns", "net")
    assert net["median"] == 9
    assert (net["minimum"], net["maximum"], net["mean"]) == (5, 55, 23)
    # squares of 9 - 23, 5 - 23, 55 - 23: 196 + 324 + 1024 = 1544, half of it 772
    assert net["deviation"] == pytest.approx(math.sqrt(772))


def test_below_six_repetitions_there_is_a_range_and_no_coverage(run_of):
    lines = pairs(0, [10, 20, 60], [1, 15, 5])
    run = run_of(header(), start(), case(0, variant="sequential", maps=1), *lines, END)
    raw = row(run, "get_ns", "raw")
    assert (raw["low"], raw["high"], raw["n"], raw["level"]) == (10, 60, 3, "round")
    assert math.isnan(raw["coverage"])
    text = tables.text(run)
    assert "10.0..60.0" in text
    assert "n = 3 rounds within one process: too few for an interval" in text


def test_rates_come_from_elapsed_time(run_of):
    lines = pairs(0, [20] * 6, [2] * 6, important=250)
    run = run_of(header(), start(), case(0, variant="sequential", maps=4), *lines, END)
    # 1000 gets in 20 us: 50 M/s; 250 of them important: 12.5 M/s
    assert row(run, "hits_mops", "raw")["median"] == 50
    assert row(run, "important_mops", "raw")["median"] == 12.5
    found = summary.summary(run)
    assert set(found[found["kind"] == "net"]["metric"]) == {"get_ns"}


def test_the_outermost_repetition_counts_after_medians_within_it(run_of):
    lines = []
    for process in range(6):
        # The outlier of each process is gone with its median, 10 + process.
        values = [10 + process, 10 + process, 500]
        lines += [start(process), case(0, variant="sequential", maps=1)]
        lines += [*pairs(0, values, [1, 1, 1]), END]
    run = run_of(header(6), *lines)
    raw = row(run, "get_ns", "raw")
    assert (raw["n"], raw["level"]) == (6, "process")
    assert raw["median"] == 12.5
    # Six values: the interval is their range, and covers 1 - 2 / 2**6.
    assert (raw["low"], raw["high"], raw["coverage"]) == (10, 15, 0.96875)
    assert "n = 6 processes; median" in tables.text(run)
    assert "96.9 %" in tables.text(run)


def test_cases_keep_the_order_of_the_experiment(run_of):
    lines = [case(0, variant="sequential", maps=1000), case(1, variant="hashmap", keys=10)]
    lines += [case(2, variant="sequential", maps=17), *pairs(2, [3] * 6, [1] * 6)]
    lines += [*pairs(0, [1] * 6, [1] * 6), *pairs(1, [2] * 6, [1] * 6)]
    run = run_of(header(), start(), *lines, END)
    found = summary.summary(run)
    raw = found[(found["metric"] == "get_ns") & (found["kind"] == "raw")]
    assert raw["variant"].to_list() == ["sequential", "hashmap", "sequential"]
    assert raw["maps"].to_list()[::2] == [1000, 17]


def test_a_round_that_one_series_lacks_leaves_the_other_rounds_paired(run_of):
    full = [*pairs(0, [11, 12, 13], [1, 1, 1])]
    lacking = [line for line in pairs(1, [21, 22, 23], [1, 1, 1]) if line["round"] != 1]
    cases = [case(0, variant="sequential", maps=1), case(1, variant="hashmap", keys=10)]
    found = summary.repetitions(run_of(header(), start(), *cases, *full, *lacking, END))
    sizes, values = summary.matrix(found, {"variant": "sequential"}, "maps", "net", "get_ns")
    assert (sizes, values.T.tolist()) == ([1], [[10, 11, 12]])
    sizes, values = summary.matrix(found, {"variant": "hashmap"}, "keys", "net", "get_ns")
    assert sizes == [10]
    np.testing.assert_equal(values.T.tolist(), [[20, math.nan, 22]])
    sizes, values = summary.matrix(found, {"variant": "interleaved"}, "maps", "net", "get_ns")
    assert (sizes, values.shape) == ([], (3, 0))


@pytest.fixture
def curve_run(run_of):
    """A run of six rounds whose sequential net costs are the model's: 16 slots, 14 ns, 2 ns."""
    lines, index = [], 0
    sizes = EXPERIMENT.parameters().maps
    for variant in ("sequential", "interleaved"):
        for maps in sizes:
            miss = min(1, max(0, 2 * (maps - 16) / maps))
            net = 14 + miss * 2 * maps
            lines.append(case(index, variant=variant, maps=maps))
            spread = [net + 2 + 0.01 * step for step in range(6)]
            lines += pairs(index, spread, [2] * 6, important=1000 // maps)
            index += 1
    for keys, net in ((10, 40.0), (1000, 300.0)):
        lines.append(case(index, variant="hashmap", keys=keys))
        lines += pairs(index, [net + 20 + 0.01 * step for step in range(6)], [20] * 6)
        index += 1
    return run_of(header(), start(), *lines, END)


def test_the_cache_and_the_crossings_are_found(curve_run):
    found = findings.findings(curve_run)
    assert found.cache.fit.slots == 16
    assert found.cache.fit.hit_ns == pytest.approx(14, abs=0.1)
    assert found.cache.fit.b_ns_per_map == pytest.approx(2, abs=0.05)
    by_keys = {one.size: one.interval.maps for one in found.crossings}
    # 40 = 14 + 4 (n - 16) at n = 22.5; 300 = 14 + 2 n at n = 143
    assert by_keys[10] == pytest.approx(22.5, rel=0.03)
    assert by_keys[1000] == pytest.approx(143, rel=0.1)


def test_the_table_can_be_pasted_into_a_mail(curve_run):
    text = tables.text(curve_run)
    lines = text.splitlines()
    assert max(map(len, lines)) <= 72
    assert "\t" not in text
    assert text.replace(PLUS_MINUS, "+-").isascii()
    assert "$ ./lab run local-storage" in lines
    assert any(line.startswith("kernel 6.1.0-test") and "Test CPU" in line for line in lines)
    assert "mitigated: spectre_v2" in lines
    assert "vulnerable: mds" in lines
    assert any(line.startswith("fitted cache of sequential: 16 slots") for line in lines)
    assert any(line.startswith("hashmap 10 keys is no slower from") for line in lines)
    assert "reciprocal throughput" in text
    assert "quiet quiet" not in text


def test_the_important_rate_at_1000_maps_does_not_print_as_zero(curve_run):
    (line,) = [
        one
        for one in tables.text(curve_run).split("rate, ")[1].splitlines()
        if one.startswith("sequential 1000 maps")
    ]
    rates = re.findall(rf"([\d.]+) {PLUS_MINUS}", line)
    assert len(rates) == 2
    assert float(rates[1]) > 0
    assert len(rates[1].replace("0", "").replace(".", "")) >= 2


def test_what_was_not_available_is_a_row_and_a_line_of_the_legend(run_of):
    missing = {"kind": "requirement", "variant": "interleaved", "unavailable": "no such helper"}
    lines = pairs(0, [10] * 6, [1] * 6)
    found = run_of(header(), start(), missing, case(0, variant="sequential", maps=1), *lines, END)
    assert re.search(
        r"^interleaved +unavailable: no such helper$", tables.text(found), re.MULTILINE
    )
    legend = plots.draw(found, "get-ns").axes[0].get_legend()
    said = [text.get_text() for text in legend.get_texts()]
    assert "interleaved unavailable: no such helper" in said


def test_a_run_without_a_fit_says_why_and_still_reports(run_of):
    lines = pairs(0, [10] * 6, [11] * 6)
    run = run_of(header(), start(), case(0, variant="sequential", maps=1), *lines, END)
    assert "no fit of a cache: " in tables.text(run)
    plots.draw(run, "get-ns")


@pytest.mark.parametrize("samples", [0, 1, 2, 3, 40, 150, 250, 370])
def test_a_run_that_ends_anywhere_can_be_shown(curve_run, run_of, samples):
    lines = [json.loads(line) for line in (curve_run.path / JOURNAL).open()]
    first = next(i for i, line in enumerate(lines) if line["kind"] == "sample")
    run = run_of(*lines[: first + samples])
    text = tables.text(run)
    assert "PARTIAL: ended in process 1 of 1" in text.splitlines()
    assert max(map(len, text.splitlines())) <= 72
    assert "<table" in tables.html(run)
    for name in plots.names(run):
        plots.encoded(plots.draw(run, name), "png")


def test_a_long_command_can_be_pasted_from_the_table(curve_run, run_of):
    maps = list(range(1, 60))
    command = f"./lab run local-storage --repeat 9 -p cpu 1 -p maps '{maps}' -p budget_s 0.5"
    text = tables.text(run_of(header() | {"command": command}, *curve_run.lines[1:]))
    assert max(map(len, text.splitlines())) <= 72
    printed = text[text.index("$ ./lab") + len("$ ./lab") : text.index("\nkernel")]
    said = subprocess.check_output(["/bin/sh", "-c", f"printf '%s\\0' {printed}"], text=True)
    words = said.split("\0")[:-1]
    assert words[:7] == ["run", "local-storage", "--repeat", "9", "-p", "cpu", "1"]
    assert EXPERIMENT.parameters.parse({"maps": words[9]}).maps == maps
    assert words[10:] == ["-p", "budget_s", "0.5"]


def test_rates_that_have_no_room_side_by_side_stand_below_each_other(run_of):
    rates = [
        {"name": f"r{i}", "unit": "Mops/s", "title": f"a rate of many words {i}", "count": "x"}
        for i in range(5)
    ]
    timed = sample(0, 0, 10) | {"counts": {"x": 10}}
    begin = start() | {"metrics": [start()["metrics"][0], *rates]}
    run = run_of(header(), begin, case(0, variant="sequential", maps=1000), timed, END)
    lines = tables.text(run).splitlines()
    assert max(map(len, lines)) <= 72
    assert sum(line.startswith("rate, Mops/s") for line in lines) == 3
    assert all(sum(rate["title"] in line for line in lines) == 1 for rate in rates)


def test_stolen_time_and_the_seed_are_said(curve_run, run_of):
    assert "seed 7" in tables.text(curve_run)
    assert "steal" not in tables.text(curve_run)
    lines = pairs(0, [10] * 6, [10] * 6)
    stolen = [line | {"steal_ns": line["elapsed_ns"] // 40} for line in lines]
    run = run_of(header(), start(), case(0, variant="sequential", maps=1), *stolen, END)
    assert "steal 2.5 %" in tables.text(run)


def test_a_partial_run_says_so_first(run_of):
    lines = pairs(0, [10] * 6, [1] * 6)
    run = run_of(header(2), start(), case(0, variant="sequential", maps=1), *lines)
    assert "PARTIAL: ended in process 1 of 2" in tables.text(run)
    assert "PARTIAL" in plots.draw(run, "get-ns").axes[0].get_title(loc="left")


def test_a_run_without_a_sample_can_be_shown(run_of):
    run = run_of(header(), start())
    assert "PARTIAL" in tables.text(run)
    for name in plots.names(run):
        plots.draw(run, name)


def test_plots_have_their_curves_their_lines_and_their_units(curve_run):
    figure = plots.draw(curve_run, "get-ns")
    (axes,) = figure.axes
    legend = [text.get_text() for text in axes.get_legend().get_texts()]
    assert {"sequential", "interleaved", "sequential, published 2022 (Skylake)"} <= set(legend)
    assert "model fitted to sequential: 16 slots (16..16)" in legend
    said = [text.get_text() for text in axes.texts]
    assert {"hashmap 10 keys", "hashmap 1,000 keys"} <= set(said)
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    assert axes.get_ylabel() == "time per get, net (ns/op)"
    png, svg = (plots.encoded(figure, one) for one in ("png", "svg"))
    assert png.startswith(b"\x89PNG")
    assert b"<svg" in svg
    markers = {line.get_marker() for line in axes.lines if len(line.get_xdata()) > 5}
    assert len(markers - {"None"}) >= 3  # to be told apart in grey


def test_the_share_of_important_gets_is_drawn(curve_run):
    (axes,) = plots.draw(curve_run, "important-share").axes
    (line,) = [one for one in axes.lines if list(one.get_xdata())[:1] == [1.0]][:1]
    assert axes.get_ylabel() == "gets of map 0 / gets"
    assert max(line.get_ydata()) <= 1


def test_an_unknown_plot_is_refused_with_the_known_ones(curve_run):
    with pytest.raises(UsageError, match="known: get-ns, important-hits, important-share"):
        plots.draw(curve_run, "x")


def test_published_zeros_are_not_drawn():
    (sequential, _) = EXPERIMENT.plots[1].published
    figures = published_rows(sequential)
    assert 1000 not in figures["value"].to_list()
    assert figures["important_hits_mops"].to_list()[0] == 47.298


def test_a_million_samples_take_seconds(run_of):
    lines = [start(), *(case(index, variant="sequential", maps=index + 1) for index in range(50))]
    run = run_of(header(), *lines)
    frame = pd.concat([run.frame], ignore_index=True)
    count = 1_000_000
    index = pd.RangeIndex(count)
    frame = pd.DataFrame(
        {
            "variant": "sequential",
            "maps": pd.array(index % 50 + 1, dtype="Int64"),
            "keys": pd.array([pd.NA] * count, dtype="Int64"),
            "metric": "get_ns",
            "unit": "ns/op",
            "boot": 0,
            "process": 0,
            "round": index // 100,
            "value": (index % 97) + 1.0,
            "operations": 1,
            "elapsed_ns": 1,
            "steal_ns": 0,
            "control": (index // 50) % 2 == 1,
        }
    )
    run.__dict__["frame"] = frame
    found = summary.summary(run)
    assert len(found) == 150
    assert set(found["n"]) == {count // 100}


# -- notebooks and pages --------------------------------------------------------------------------


@pytest.mark.parametrize("name", names())
def test_a_notebook_takes_what_its_experiment_takes(name):
    experiment = find(name)
    content = nbformat.read(experiment.notebook, as_version=4)
    nbformat.validate(content)
    (cell,) = [one for one in content.cells if "parameters" in one.metadata.get("tags", [])]
    assert "parameters" in content.cells[1].metadata.tags
    values: dict[str, object] = {}
    exec(cell.source, values)
    del values["__builtins__"]
    hints = values.pop("__annotations__", {})
    expected = experiment.parameters().as_dict() | {"repeat": 0, "quick": False, "run": ""}
    assert values == expected
    types = get_type_hints(experiment.parameters) | {"repeat": int, "quick": bool, "run": str}
    for parameter, hint in hints.items():
        assert hint == getattr(types[parameter], "__origin__", types[parameter])
    lines = [line for line in cell.source.splitlines() if line not in ("", "# fmt: off")]
    assert all("  # " in line for line in lines), "every parameter is explained"


@pytest.mark.parametrize("name", names())
def test_a_notebook_is_committed_without_outputs(name):
    content = nbformat.read(find(name).notebook, as_version=4)
    for cell in content.cells:
        assert not cell.get("outputs")
        assert cell.get("execution_count") is None


def test_papermill_explains_the_parameters():
    said = subprocess.run(
        [sys.executable, "-m", "papermill", "--help-notebook", str(EXPERIMENT.notebook)],
        capture_output=True,
        text=True,
        cwd=ROOT,
    ).stdout
    assert re.search(r"maps: list .*numbers of task-storage maps", said, re.S)


def external(page: str) -> list[str]:
    """Return what a page would load: addresses in attributes, styles and scripts."""
    attributes = re.findall(
        r"""(?:src|href|action|data)\s*=\s*["']?\s*((?:https?:)?//[^"'\s>]+)""", page
    )
    return attributes + re.findall(r"url\(\s*['\"]?(?!data:|#)[^)]+\)|@import[^;]+|<script", page)


@pytest.fixture
def report(curve_run, tmp_path):
    """Render a report, which leaves no socket and no temporary file behind."""
    places = [ROOT, Path(tempfile.gettempdir())]
    before = [{path.name for path in place.iterdir()} for place in places]
    folder = tmp_path / "report"
    folder.mkdir()
    notebook.render(curve_run, folder)
    for place, names_before in zip(places, before, strict=True):
        added = {path.name for path in place.iterdir()} - names_before
        assert not {name for name in added if name.startswith(("kernel", "labkit"))}
    return folder


@pytest.mark.slow
def test_a_report_is_whole_and_loads_nothing(report):
    page = (report / notebook.PAGE).read_text()
    assert external(page) == []
    assert len(page) < 2_000_000
    assert {path.suffix for path in report.iterdir()} == {".html", ".ipynb", ".txt", ".png", ".svg"}
    for path in report.glob("*.svg"):
        assert external(path.read_text()) == []
    assert 'name="viewport"' in page
    assert page.count("<img ") == len(EXPERIMENT.plots)
    assert all(alt for alt in re.findall(r'<img [^>]*alt="([^"]*)"', page))
    assert "<details><summary>code</summary>" in page
    for target in re.findall(r'<a href="#([^"]+)">', page):
        assert f'id="{target}"' in page
    assert "sequential 1000 maps" in page
    executed = json.loads((report / notebook.NOTEBOOK).read_text())
    assert any(cell.get("outputs") for cell in executed["cells"])


def test_the_scan_for_external_addresses_finds_them():
    assert external('<script src="https://x.org/a.js"></script>')
    assert external("<link href=//cdn.x.org/a.css>")
    assert external("<style>@import 'a.css';</style>")
    assert external("<p>url(https://x.org)</p>")
    assert not external('<img src="data:image/png;base64,AAAA"><a href="#top">')


def test_nothing_from_a_notebook_becomes_markup():
    evil = "<script>alert(1)</script>"
    content = nbformat.v4.new_notebook(
        cells=[
            nbformat.v4.new_code_cell(
                evil,
                outputs=[
                    nbformat.v4.new_output("stream", text=evil),
                    nbformat.v4.new_output("error", ename=evil, evalue=evil, traceback=[]),
                    nbformat.v4.new_output("execute_result", data={"text/plain": evil}),
                ],
            )
        ]
    )
    page = notebook.page(content, title=evil, notice=evil)
    assert "<script" not in page
    assert page.count("&lt;script&gt;") >= 6


@pytest.mark.slow
@pytest.mark.parametrize(
    ("run", "kind", "message"),
    [
        ("/nowhere", UsageError, "no run is called '/nowhere'"),
        (5, LabkitError, "local_storage.ipynb, cell"),
    ],
)
def test_what_goes_wrong_in_a_notebook_is_one_line(run, kind, message):
    with pytest.raises(kind, match=message) as caught:
        notebook.execute(EXPERIMENT.notebook, {"run": run})
    assert "\n" not in str(caught.value)


@pytest.mark.slow
def test_a_recorded_run_is_rendered_without_bcc_and_without_privileges(open_home):
    (example,) = [path for path in paths.EXAMPLES.iterdir() if "local-storage" in path.name]
    code = (
        "import sys; sys.modules['bcc'] = None\n"
        "from labkit import api, batch\n"
        f"print(batch.report(api.load({str(example)!r})))"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", code],
        capture_output=True,
        text=True,
        user=65534,
        group=65534,
        env={"HOME": str(open_home), "LABKIT_HOME": str(open_home), "PATH": "/usr/bin:/bin"},
        cwd=open_home,
    )
    if "No module named 'labkit'" in done.stderr:
        pytest.skip("an ordinary user cannot read this checkout")
    assert done.returncode == 0, done.stderr
    assert (open_home / "reports" / example.name / notebook.PAGE).is_file()
