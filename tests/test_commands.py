# SPDX-License-Identifier: MIT
"""The commands, as a person types them."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import ROOT, lab, needs_kernel, wait_until

from labkit.experiments import names
from labkit.kernel import bpf
from labkit.store.run import Run

SHORT = ["-p", "maps", "[1, 17]", "-p", "variants", "sequential", "-p", "budget_s", "0.5"]


def refused(*arguments: str) -> str:
    """Run a command that is refused as bad usage; return its one line."""
    ended = lab(*arguments)
    assert ended.returncode == 2, ended.stderr
    assert ended.stdout == ""
    (line,) = ended.stderr.splitlines()
    assert line.startswith("lab: ")
    return line


def test_list_names_every_experiment_and_its_variants():
    ended = lab("list")
    assert ended.returncode == 0
    assert all(name in ended.stdout.splitlines() for name in names())
    assert "sequential" in ended.stdout


def test_list_of_one_explains_its_parameters():
    said = lab("list", "local-storage").stdout
    assert '-p maps "[1, ' in said
    assert "at least 1, at most 1,000" in said


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["local-strage"], "did you mean 'local-storage'?"),
        (["local-storage", "-p", "map", "1"], "did you mean 'maps'?"),
        (["local-storage", "-p", "maps", "[]"], "the list is empty"),
        (["local-storage", "-p", "maps", "0"], "0 is not accepted"),
        (["local-storage", "-p", "maps", "-1"], "-1 is not accepted"),
        (["local-storage", "-p", "maps", "1001"], "1001 is not accepted"),
        (["local-storage", "-p", "maps", "many"], "'many' is not accepted"),
        (["local-storage", "-p", "keys", "0"], "0 is not accepted"),
        (["local-storage", "-p", "keys", "4194305"], "4194305 is not accepted"),
        (["local-storage", "-p", "budget_s", "0"], "above 0"),
        (["local-storage", "-p", "budget_s", "nan"], "nan is not accepted"),
        (["local-storage", "-p", "budget_s", "inf"], "inf is not accepted"),
        (["local-storage", "-p", "cpu", "4096"], "this process may run on"),
        (["local-storage", "--repeat", "-1"], "-1 is not accepted"),
    ],
)
def test_bad_input_is_refused_before_anything_is_loaded(homes, arguments, message):
    assert message in refused("run", *arguments)
    assert list(homes.iterdir()) == []


@pytest.mark.parametrize("arguments", [[], ["frobnicate"], ["list", "--frob"], ["run"]])
def test_what_is_no_command_is_refused_in_one_line(arguments):
    assert "--help says what is accepted" in refused(*arguments)


def test_a_run_that_does_not_exist_is_refused(homes):
    assert "no run is called 'nothing'" in refused("show", "nothing")
    assert "no run is called 'nothing'" in refused("report", "nothing")


def test_a_folder_that_cannot_be_written_is_refused(monkeypatch):
    monkeypatch.setenv("LABKIT_HOME", "/proc")
    ended = lab("run", "local-storage", *SHORT)
    assert ended.returncode == 1
    assert "cannot make /proc/reports" in ended.stderr
    assert len(ended.stderr.splitlines()) == 1


def test_an_ordinary_user_is_told_what_is_missing(homes):
    homes.chmod(0o777)
    ended = subprocess.run(
        [sys.executable, "-m", "labkit", "run", "local-storage", *SHORT],
        capture_output=True,
        text=True,
        user=65534,
        group=65534,
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
    )
    if "No module named labkit" in ended.stderr or "PermissionError" in ended.stderr:
        pytest.skip("an ordinary user cannot read this checkout")
    assert ended.returncode == 3
    assert "needs root, or CAP_BPF" in ended.stderr
    assert len(ended.stderr.splitlines()) == 1


@needs_kernel
@pytest.mark.usefixtures("nothing_left")
def test_a_run_ends_with_a_report_and_can_be_shown_and_rendered_again(homes):
    ended = lab("run", "local-storage", "--quick")
    assert ended.returncode == 0, ended.stderr
    folder = Path(ended.stdout.splitlines()[-1])
    names = {path.name for path in folder.iterdir()}
    assert {"report.html", "notebook.ipynb", "table.txt"} <= names
    assert any(name.endswith(".png") for name in names)
    assert any(name.endswith(".svg") for name in names)
    run = Run.read(homes / "data" / "runs" / folder.name)
    assert run.status == "complete"
    shown = lab("show", folder.name)
    assert shown.stdout == (folder / "table.txt").read_text()
    again = lab("report", "last")
    assert Path(again.stdout.strip()) == folder


def measuring(homes: Path, *more: str) -> tuple[subprocess.Popen[bytes], Path]:
    """Start a long run and wait until it measures; return the process and the run's folder."""
    process = subprocess.Popen(
        [sys.executable, "-m", "labkit", "run", "local-storage", *SHORT[:-1], "60", *more],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd=ROOT,
        start_new_session=True,
    )
    runs = homes / "data" / "runs"

    def has_samples() -> bool:
        journals = list(runs.glob("*/journal.jsonl"))
        return bool(journals) and b'"sample"' in journals[0].read_bytes()

    assert wait_until(has_samples, 60)
    return process, next(runs.iterdir())


def descendants(process: int) -> set[int]:
    found = set()
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(path.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        if parent == process:
            found |= {int(path.parent.name)} | descendants(int(path.parent.name))
    return found


@needs_kernel
@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_what_is_interrupted_or_killed_leaves_a_partial_run_and_nothing_else(homes, how):
    process, folder = measuring(homes)
    family = descendants(process.pid)
    assert len(family) >= 2
    process.send_signal(how)
    process.wait(20)
    assert wait_until(lambda: not any(Path(f"/proc/{one}").exists() for one in family))
    assert wait_until(lambda: not bpf.own_objects())
    assert Run.read(folder).status == "partial"
    assert "PARTIAL: " in lab("show", folder.name).stdout


@needs_kernel
@pytest.mark.usefixtures("nothing_left")
def test_a_killed_measuring_process_is_an_error_that_names_what_was_measured(homes):
    process, folder = measuring(homes)
    for one in descendants(process.pid):
        command = Path(f"/proc/{one}/cmdline").read_bytes().split(b"\0")
        if b"measure" in command:
            os.kill(one, signal.SIGKILL)
    assert process.wait(60) == 1
    run = Run.read(folder)
    assert run.status == "failed"
    assert "was killed by SIGKILL" in run.why


@needs_kernel
@pytest.mark.usefixtures("nothing_left")
def test_a_second_run_at_once_is_told_who_measures(homes):
    process, _ = measuring(homes)
    second = lab("run", "local-storage", *SHORT)
    process.send_signal(signal.SIGINT)
    process.wait(20)
    assert second.returncode == 3
    assert "this machine is measuring already (local-storage, process" in second.stderr
    assert len(list((homes / "data" / "runs").iterdir())) == 1


@needs_kernel
@pytest.mark.usefixtures("nothing_left")
def test_the_measuring_process_ends_soon_after_its_input():
    child = subprocess.Popen(
        [sys.executable, "-m", "labkit", "measure", "local-storage"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=ROOT,
    )
    child.stdin.write(b'{"maps": [1], "variants": ["sequential"], "budget_s": 60}\n')
    child.stdin.flush()
    for raw in child.stdout:
        if json.loads(raw)["kind"] == "sample":
            break
    begin = time.monotonic()
    child.stdin.close()
    last = child.stdout.read().splitlines()[-1]
    child.wait(10)
    assert time.monotonic() - begin < 3
    assert json.loads(last)["status"] == "partial"


@pytest.mark.parametrize("line", [b"", b"[1]\n", b"{\n", b"\xff\n"])
def test_the_measuring_process_refuses_what_is_not_parameters(line):
    ended = subprocess.run(
        [sys.executable, "-m", "labkit", "measure", "local-storage"],
        input=line,
        capture_output=True,
        cwd=ROOT,
    )
    assert ended.returncode == 2
    assert b"must begin with a line of JSON" in ended.stderr


def test_output_into_a_closed_pipe_is_no_error():
    ended = subprocess.run(
        f"{sys.executable} -m labkit list | true", shell=True, capture_output=True, cwd=ROOT
    )
    assert ended.stderr == b""
