# SPDX-License-Identifier: MIT
"""Two runs as a table: what it says, what it refuses, and in which forms."""

import csv
import io
import json
import re
import subprocess
import sys
import time

import numpy as np
import pytest
from conftest import ROOT, lab, needs_kernel

from labkit import api
from labkit.errors import UsageError
from labkit.experiments import find
from labkit.report import compare_plots, formats, index
from labkit.report.compare import compare
from labkit.store import journal
from labkit.store.run import JOURNAL, Run

METRICS = [
    {"name": "get_ns", "unit": "ns/op", "title": "time per get", "count": ""},
    {"name": "hits_mops", "unit": "Mops/s", "title": "gets", "count": "operations"},
]
ENVIRONMENT = {
    "kernel_release": "6.12.1",
    "cpu_model": "Some CPU",
    "clock_source": "tsc",
    "governors": ["performance"],
    "mitigations": {"meltdown": "Not affected", "retbleed": "Mitigation: IBRS"},
    "hypervisor": None,
}
SIZES = (1, 10, 14, 16, 17, 20, 24, 32, 64)


@pytest.fixture
def made(tmp_path):
    """Return what writes a run: ns per get by number of maps, a value for each process."""
    count = 0

    def make(
        costs,
        *,
        environment=None,
        start=None,
        header=None,
        status="complete",
        tail=b"",
        name="",
        experiment="local-storage",
    ):
        nonlocal count
        count += 1
        path = tmp_path / (name or f"run-{count}")
        path.mkdir()
        processes = max(map(len, costs.values()))
        lines = [
            {
                "kind": "run",
                "schema": 1,
                "id": path.name,
                "experiment": experiment,
                "parameters": {"maps": list(costs), "cpu": -1},
                "command": "./lab run local-storage",
                "repeat": processes,
            }
            | (header or {})
        ]
        for process in range(processes):
            lines.append(
                {
                    "kind": "start",
                    "boot": 0,
                    "process": process,
                    "labels": ["variant", "maps", "keys"],
                    "metrics": METRICS,
                    "seed": 1,
                    "harness": "labkit",
                    "code_sha256": "abc",
                    "environment": ENVIRONMENT | (environment or {}),
                }
                | (start or {})
            )
            for case, (maps, values) in enumerate(costs.items()):
                labels = {"variant": "sequential", "maps": maps}
                lines.append({"kind": "case", "case": case, "labels": labels})
                if process >= len(values):
                    continue
                for control in (False, True):
                    elapsed_ns = round(1_000_000 * (2 if control else values[process]))
                    lines.append(
                        {
                            "kind": "sample",
                            "case": case,
                            "control": control,
                            "round": 0,
                            "operations": 1_000_000,
                            "elapsed_ns": elapsed_ns,
                            "steal_ns": 0,
                            "counts": {},
                        }
                    )
            last = process == processes - 1
            end = {"kind": "end", "status": status if last else "complete", "leaked": []}
            lines.append(end | {"why": "stopped" if end["status"] != "complete" else "budget"})
        (path / JOURNAL).write_bytes(b"".join(map(journal.encode, lines)) + tail)
        return Run.read(path)

    return make


def spread(center, n=10, seed=1, width=0.01):
    """Return n values about a center, all different."""
    return (center * (1 + width * np.random.default_rng(seed).normal(size=n))).tolist()


def verdicts(found):
    return {row.labels["maps"]: row.verdict for row in found.rows}


def test_better_worse_and_no_difference(made):
    before = made({1: spread(10, seed=1), 16: spread(10, seed=2), 17: spread(20, seed=3)})
    after = made({1: spread(8, seed=4), 16: spread(10, seed=5), 17: spread(22, seed=6)})
    found = compare([before, after])
    assert verdicts(found) == {1: "better", 16: "~", 17: "worse"}
    assert found.worse
    assert verdicts(compare([after, before])) == {1: "worse", 16: "~", 17: "better"}
    row = found.rows[0]
    assert row.difference.before == pytest.approx(np.median(spread(10, seed=1)), rel=1e-6)
    assert row.percent == pytest.approx(-20, abs=2)
    assert (row.unit, row.kind, row.level, len(row.before)) == ("ns/op", "raw", "process", 10)
    (mean,) = found.means
    ratios = [row.difference.ratio for row in found.rows]
    assert mean.after / mean.before == pytest.approx(np.prod(ratios) ** (1 / 3))


def test_of_a_rate_more_is_better(made):
    before, after = made({1: spread(10)}), made({1: spread(8)})
    (row,) = compare([before, after], ["hits_mops"]).rows
    assert (row.verdict, row.unit) == ("better", "Mops/s")
    assert row.percent == pytest.approx(25, abs=2)


def test_only_what_is_timed_weighs_on_the_adjustment_unless_asked(made):
    before, after = made({1: spread(10)}), made({1: spread(8)})
    assert [row.metric for row in compare([before, after]).rows] == ["get_ns"]
    assert len(compare([before, after], ["all"]).rows) == 2
    with pytest.raises(UsageError, match="'get_ms' is not in all runs; those are: get_ns, hits"):
        compare([before, after], ["get_ms"])


def test_net_and_control_can_be_compared(made):
    before, after = made({1: spread(10)}), made({1: spread(8)})
    (net,) = compare([before, after], kind="net").rows
    assert net.difference.before == pytest.approx(8, abs=0.2)
    (control,) = compare([before, after], kind="control").rows
    assert control.verdict == "~"


@pytest.mark.parametrize("n", [1, 2, 5])
def test_too_few_repetitions_give_no_verdict(made, n):
    found = compare([made({1: spread(10, n)}), made({1: spread(5, n)})])
    assert verdicts(found) == {1: "n too small (need 6)"}
    assert not found.worse


def test_a_large_table_needs_more_repetitions(made):
    sizes = range(1, 41)
    before = made({n: spread(10, 6, n) for n in sizes})
    after = made({n: spread(5, 6, n) for n in sizes})
    assert set(verdicts(compare([before, after])).values()) == {"n too small (need 7)"}


def test_rounds_of_one_process_are_one_repetition(made, tmp_path):
    run = made({1: [10.0]})
    *lines, last = [json.loads(line) for line in (run.path / JOURNAL).open()]
    samples = [line for line in lines if line["kind"] == "sample"]
    more = [s | {"round": index} for index in range(1, 20) for s in samples]
    path = tmp_path / "rounds"
    path.mkdir()
    (path / JOURNAL).write_bytes(b"".join(map(journal.encode, [*lines, *more, last])))
    found = compare([Run.read(path), Run.read(path)])
    assert len(found.rows[0].before) == 1
    assert verdicts(found) == {1: "n too small (need 6)"}


def test_rows_that_one_side_has_alone_are_shown(made):
    before, after = made({1: spread(10), 2: spread(10)}), made({1: spread(10), 3: spread(10)})
    found = compare([before, after])
    assert verdicts(found) == {1: "~", 2: "only before", 3: "only after"}
    assert re.search(r"sequential 2 maps +\d+\.\d+ +- +only before", formats.text(found))


def test_three_runs_are_held_against_the_first(made):
    runs = [made({1: spread(center, seed=center)}) for center in (10, 12, 9)]
    found = compare(runs)
    assert [(row.target, row.verdict) for row in found.rows] == [(1, "worse"), (2, "better")]
    assert found.tested == 2


def test_environments_that_differ_are_listed(made):
    before = made({1: spread(10)})
    after = made(
        {1: spread(10)},
        environment={
            "clock_source": "hpet",
            "mitigations": {"meltdown": "Not affected", "retbleed": "Vulnerable"},
            "hypervisor": "KVM",
            "governors": ["powersave"],
        },
    )
    found = compare([before, after])
    assert found.environment[0] == (
        ("hypervisor", "not known", "KVM"),
        ("clock source", "tsc", "hpet"),
        ("governor", "performance", "powersave"),
        ("mitigations, retbleed", "Mitigation: IBRS", "Vulnerable"),
    )
    assert "differs: clock source: tsc / hpet" in formats.text(found)
    assert verdicts(found) == {1: "~"}


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"start": {"code_sha256": "def"}}, "the experiment's code changed: abc / def"),
        ({"start": {"harness": "kernel bench"}}, "another harness: labkit / kernel bench"),
        ({"environment": {"emulated": True}}, "emulated: after"),
    ],
)
def test_what_cannot_be_compared_has_no_verdict(made, more, why):
    found = compare([made({1: spread(10)}), made({1: spread(20)}, **more)])
    assert found.refusals == ((why,),)
    assert verdicts(found) == {1: "no verdict"}
    assert not found.worse
    assert f"NO VERDICT, {why}" in formats.text(found)


def test_runs_by_turns_are_told_from_runs_one_after_the_other(made):
    turns = {"header": {"turns": "x"}}
    interleaved = compare([made({1: spread(10)}, **turns), made({1: spread(10)}, **turns)])
    assert interleaved.marks == ((),)
    assert "not interleaved" in compare([made({1: spread(10)}), made({1: spread(10)})]).marks[0]
    other = compare([interleaved.runs[0], made({1: spread(9)}, header={"turns": "y"})])
    assert "not interleaved" in other.marks[0]


def test_a_partial_run_is_compared_with_a_mark(made):
    found = compare([made({1: spread(10)}), made({1: spread(20)}, status="partial")])
    assert "after is partial: stopped" in found.marks[0]
    assert verdicts(found) == {1: "worse"}


def test_a_corrupt_line_is_counted_and_the_rest_used(made):
    found = compare([made({1: spread(10)}), made({1: spread(20)}, tail=b"\xff{\n")])
    assert "after: 1 unreadable lines of its journal left out" in found.marks[0]


def test_what_can_never_be_compared_is_refused(made):
    one = made({1: spread(10)})
    with pytest.raises(UsageError, match="two runs or more"):
        compare([one])
    with pytest.raises(UsageError, match="local-storage, run-2 of htab-mem: only runs of one"):
        compare([one, made({1: spread(10)}, experiment="htab-mem")])
    with pytest.raises(UsageError, match="no row in common"):
        compare([one, made({2: spread(10)})])
    with pytest.raises(UsageError, match="holds nothing that was measured"):
        compare([one, made({1: [], 2: [1.0]} | {2: []} | {1: []} | {3: []}, name="empty")])
    with pytest.raises(UsageError, match="kind: 'gross' is not accepted"):
        compare([one, one], kind="gross")


# -- the cliff ------------------------------------------------------------------------------------


def cliff(slots, seed, n=10):
    draw = np.random.default_rng(seed)

    def cost(maps):
        missing = min(1, max(0, 2 * (maps - slots) / maps))
        return 2 + (10 + missing * 2 * maps) * (1 + 0.01 * draw.normal(size=n))

    return {maps: cost(maps).tolist() for maps in SIZES}


def test_the_cliffs_shift_has_an_interval(made):
    found = compare([made(cliff(16, 1)), made(cliff(14, 2))])
    (shift,) = found.shifts
    assert (shift.before.slots, shift.after.slots, shift.slots) == (16, 14, -2)
    assert shift.low <= -2 <= shift.high < 0
    assert "cache: 16 slots before, 14 after: -2 (95 % interval" in formats.text(found)


def test_the_same_cache_has_a_shift_of_none(made):
    (shift,) = compare([made(cliff(16, 1)), made(cliff(16, 2))]).shifts
    assert shift.low <= 0 <= shift.high
    assert compare([made({1: spread(10)}), made({1: spread(10)})]).shifts == (None,)


# -- forms ----------------------------------------------------------------------------------------


@pytest.fixture
def table(made):
    sizes = {1: 10, 16: 10, 1000: 5000}
    before = made({maps: spread(cost, seed=maps) for maps, cost in sizes.items()})
    after = made({maps: spread(0.9 * cost, seed=maps + 7) for maps, cost in sizes.items()})
    return compare([before, after], ["all"])


def test_a_mail_has_72_columns_and_ascii(table):
    text = formats.text(table)
    assert max(map(len, text.splitlines())) <= 72
    assert set(text) <= {*map(chr, range(32, 127)), "\n", "±"}
    assert "n = 10 processes" in text
    assert "Mann-Whitney, Holm over 6 rows" in text
    assert re.search(r"\n  1000 maps +\d+ +\d+ +-\d+\.\d % +-\d.* better\n", text)
    assert re.search(r"geomean +[\d.]+ +[\d.]+ +-10\.\d %", text)


def test_labels_from_elsewhere_keep_to_the_table(made):
    long = made({1: spread(10)}, name="x" * 200, header={"command": "\x1b[2J"})
    text = formats.text(compare([long, long]))
    assert "\x1b" not in text


def test_csv_has_a_line_for_each_row_and_mean(table):
    rows = list(csv.DictReader(io.StringIO(formats.comma_separated(table))))
    assert len(rows) == 8
    assert rows[0]["variant"] == "sequential"
    assert float(rows[0]["percent"]) == pytest.approx(table.rows[0].percent, rel=1e-9)
    assert {row["verdict"] for row in rows} == {"better", "geometric mean"}


def test_json_is_what_its_schema_says(table):
    found = json.loads(formats.as_json(table))
    assert set(found) == {
        *("schema", "experiment", "runs", "targets", "rows", "means", "holm_rows"),
    }
    described = formats.__doc__
    for entry in (found["runs"][0], found["targets"][0], found["rows"][0], found["means"][0]):
        assert all(name in described for name in entry)
    assert found["rows"][0]["p_adjusted"] == table.rows[0].difference.p_adjusted
    assert found["targets"][0]["interleaved"] is False


def test_numbers_that_are_not_known_are_null_in_json(made):
    one = made({1: [10.0], 2: [1.0]})
    found = json.loads(formats.as_json(compare([one, made({1: [9.0]})])))
    assert [row["p"] for row in found["rows"]] == [None, None]
    assert found["rows"][1]["after"] is None


def test_markdown_is_a_table_and_nothing_else_in_it_is_markup(made):
    run = made({1: spread(10)}, name="a|b<script>")
    text = formats.markdown(compare([run, run]))
    assert "<script>" not in text
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert len({len(re.findall(r"(?<!\\)\|", line)) for line in rows}) == 1


def test_go_lines_hold_every_repetition_for_benchstat(table):
    lines = formats.go_benchmark(table).splitlines()
    assert "Unit ns/op better=lower" in lines
    assert "Unit Mops/s better=higher" in lines
    results = [line for line in lines if line.startswith("Benchmark")]
    assert len(results) == 2 * 2 * 3 * 10
    # Name, iterations, value and unit; names have no spaces (design 14313).
    assert all(re.fullmatch(r"Benchmark[A-Z]\S* 1 [-\d.e+]+ \S+", line) for line in results)
    assert sum(line.startswith("run: ") for line in lines) == 2


def test_plots_of_a_comparison(table, tmp_path):
    drawn = api.Comparison(table).plots()
    assert {"change-get_ns", "change-hits_mops", "get-ns"} <= set(drawn)
    for plot in drawn.values():
        assert plot._repr_mimebundle_()[0]["image/png"]
    axes = compare_plots.forest(table, "get_ns").axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()] == [
        f"sequential {n}" for n in ("1 map", "16 maps", "1000 maps")
    ]
    curve = next(one for one in find("local-storage").plots if one.name == "get-ns")
    lines = compare_plots.overlay(table, curve).axes[0].get_lines()
    assert len({line.get_linestyle() for line in lines}) >= 2


def test_200_rows_compare_in_under_a_second(made):
    before = made({n: spread(10, seed=n) for n in range(1, 201)})
    after = made({n: spread(9, seed=n + 500) for n in range(1, 201)})
    compare([before, after])  # the frames are made
    begin = time.process_time()
    text = formats.text(compare([before, after]))
    assert time.process_time() - begin < 1
    assert "Holm over 200 rows" in text


# -- the command ----------------------------------------------------------------------------------


def test_the_command_compares_folders_and_can_fail_on_worse(made):
    before, after = made({1: spread(10)}), made({1: spread(12)})
    ended = lab("compare", str(before.path), str(after.path))
    assert ended.returncode == 0, ended.stderr
    assert "worse" in ended.stdout
    paths = str(before.path), str(after.path)
    assert lab("compare", *paths, "--fail-on", "worse").returncode == 1
    assert lab("compare", *reversed(paths), "--fail-on", "worse").returncode == 0
    assert json.loads(lab("compare", *paths, "--format", "json").stdout)["schema"] == 1


def test_bad_runs_are_refused_in_a_line(made, tmp_path):
    one = str(made({1: spread(10)}).path)
    newer = made({1: spread(10)}, name="newer").path
    text = (newer / JOURNAL).read_text().replace('"schema":1', '"schema":99', 1)
    (newer / JOURNAL).write_text(text)
    for other, message in [
        ("missing", "no run is called 'missing'"),
        (str(newer), "has schema 99"),
        ("published:nothing", "no published figures are called 'published:nothing'"),
        ("/dev/null", "is no run"),
    ]:
        ended = lab("compare", one, other)
        assert ended.returncode == 2, other
        assert message in ended.stderr
        assert len(ended.stderr.splitlines()) == 1


def test_published_figures_are_a_run_and_have_no_verdict(made):
    shown = lab("show", "published:local_storage_get")
    assert shown.returncode == 0, shown.stderr
    assert re.search(r"sequential 17 maps +25\.8 +8\.93 +16\.9", shown.stdout)
    run = made({16: spread(10), 17: spread(20)})
    ended = lab("compare", "published:local_storage_get", str(run.path))
    assert "NO VERDICT, another harness" in ended.stdout
    assert re.search(r"sequential 17 maps +25\.79 +\d", ended.stdout)


def test_a_report_of_a_comparison(made, homes):
    before, after = made(cliff(16, 1)), made(cliff(14, 2))
    ended = lab("compare", str(before.path), str(after.path), "--report")
    assert ended.returncode == 0, ended.stderr
    folder = homes / "reports" / ended.stdout.splitlines()[-1].rpartition("/")[2]
    names = {path.name for path in folder.iterdir()}
    assert {"report.html", "notebook.ipynb", "table.txt", "table.md", "table.csv"} <= names
    assert {"table.json", "change-get_ns.png", "change-get_ns.svg", "get-ns.svg"} <= names
    page = (folder / "report.html").read_text()
    assert "-2 (95 % interval" in page
    assert not re.search(r'(?:src|href)="https?:', page)


def test_an_index_lists_reports_and_what_could_not_run(tmp_path):
    report = tmp_path / "20260101T000000Z-x<y"
    report.mkdir()
    (report / "report.html").write_text("")
    (report / "table.txt").write_text("what <b>was</b> measured\n\nfigures\n")
    page = index.write(tmp_path, {"x": report.name, "z": "cannot run here: <no>"}).read_text()
    assert "<b>" not in page
    assert "cannot run here: &lt;no&gt;" in page
    assert 'href="20260101T000000Z-x&lt;y/report.html"' in page


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run"], "takes the name of an experiment, or --all"),
        (["run", "local-storage", "--all"], "takes the name of an experiment, or --all"),
        (["run", "--all", "--aa"], "--all takes --quick and --repeat"),
        (["compare", "x", "--kind", "y"], "invalid choice"),
    ],
)
def test_bad_command_lines_are_refused(homes, arguments, message):
    ended = lab(*arguments)
    assert ended.returncode == 2
    assert message in ended.stderr


@needs_kernel
@pytest.mark.usefixtures("nothing_left")
def test_a_against_a_is_measured_by_turns(homes):
    ended = lab(
        *("run", "local-storage", "--aa", "--repeat", "2", "-p", "variants", "sequential"),
        *("-p", "maps", "[1, 16]", "-p", "budget_s", "0.2"),
    )
    assert ended.returncode == 0, ended.stderr
    runs = [Run.read(path) for path in sorted((homes / "data" / "runs").iterdir())]
    assert [run.id[-2:] for run in runs] == ["-A", "-B"]
    assert runs[0].header["turns"] == runs[1].header["turns"]
    assert [run.status for run in runs] == ["complete", "complete"]
    assert [len(run.of_kind("start")) for run in runs] == [2, 2]
    assert "not interleaved" not in ended.stdout
    assert "n too small (need 6)" in ended.stdout


@pytest.mark.slow
def test_a_run_of_a_million_samples_renders_in_little_memory_and_time(made, tmp_path):
    run = made({maps: [10.0 + maps] for maps in SIZES})
    *lines, last = (run.path / JOURNAL).read_bytes().splitlines(keepends=True)
    rounds = [line for line in lines if b'"sample"' in line]
    with (run.path / JOURNAL).open("wb") as file:
        file.writelines(lines)
        for index in range(1, 1_000_000 // len(rounds)):
            number = f'"round":{index},'.encode()
            file.writelines(line.replace(b'"round":0,', number) for line in rounds)
        file.write(last)
    code = (
        "import resource, sys, time; from labkit import api; run = api.load(sys.argv[1]);"
        "run.table(); [run.plot(name)._repr_mimebundle_() for name in run.plots];"
        "print(len(run.samples), time.process_time(),"
        " resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6)"
    )
    words = [sys.executable, "-c", code, str(run.path)]
    said = subprocess.check_output(words, text=True, cwd=ROOT).split()
    samples, seconds, gigabytes = map(float, said)
    assert samples > 990_000
    assert gigabytes < 1
    assert seconds < 20  # 10 on a machine that does nothing else
