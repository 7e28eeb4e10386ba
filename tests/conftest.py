# SPDX-License-Identifier: MIT
"""What the tests share."""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from labkit.kernel import bpf, probe

ROOT = Path(__file__).resolve().parent.parent

#: Tests of the real kernel need privileges; elsewhere they are left out and say so.
needs_kernel = pytest.mark.skipif(
    bool(probe.program_type("raw_tracepoint")), reason=probe.program_type("raw_tracepoint")
)


def wait_until(condition: Callable[[], bool], seconds: float = 10.0) -> bool:
    """Wait for a condition and return whether it came to hold in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def open_files() -> int:
    """Return how many files this process has open."""
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.fixture
def nothing_left() -> Iterator[None]:
    """Check that the kernel holds no more of our objects after a test than before it."""
    before = bpf.own_objects()
    yield
    assert wait_until(lambda: bpf.own_objects() <= before), bpf.own_objects() - before


@pytest.fixture
def homes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Have runs and reports go to a folder of the test's own, in child processes, too."""
    monkeypatch.setenv("LABKIT_HOME", str(tmp_path))
    return tmp_path


@pytest.fixture
def open_home() -> Iterator[Path]:
    """Make a folder that every user may enter and write, as pytest's own is not."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        path.chmod(0o777)
        yield path


def lab(*arguments: str, **more: object) -> subprocess.CompletedProcess[str]:
    """Run a command of labkit's and return how it ended, with what it printed."""
    return subprocess.run(
        [sys.executable, "-m", "labkit", *arguments],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        cwd=ROOT,
        env=os.environ,
        timeout=300,
        **more,
    )
