# SPDX-License-Identifier: MIT
"""The entry script, in copies of the checkout with one tiny package to install."""

import hashlib
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

LAB = Path(__file__).parent.parent / "lab"
PYTHON = Path("/usr/bin/python3").resolve()
DEBIAN_BCC = Path("/usr/lib/python3/dist-packages/bcc")

# What the script runs in the end: it tells how it was called.
MAIN = """
import json, os, sys
told = {"arguments": sys.argv[1:], "folder": os.getcwd(), "path": sys.path, "cached": __cached__}
told["environment"] = dict(os.environ)
if sys.argv[1] == "measure":
    told["stdin"] = sys.stdin.read()
print(json.dumps(told))
sys.exit(int(sys.argv[2]) if sys.argv[1] == "exit" else 0)
"""

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to hide files and be nobody")
AS_NOBODY = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")


class Checkout:
    """A copy of the script with a stand-in package and a lock of one wheel made here."""

    def __init__(self, folder: Path, wheels: Path) -> None:
        self.folder = folder
        self.venv = folder / ".venv"
        self.stamp = self.venv / "lab.stamp"
        self.environment = {
            "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
            "HOME": str(wheels),
            "PIP_CONFIG_FILE": "/dev/null",
            "PIP_NO_INDEX": "1",
            "PIP_FIND_LINKS": str(wheels),
        }

    @property
    def site(self) -> Path:
        return next(self.venv.glob("lib/python3*/site-packages"))

    def start(
        self,
        *arguments: str,
        prefix: tuple[str, ...] = (),
        script: Path | None = None,
        cwd: str = "/",
        environment: Mapping[str, str] | None = None,
    ) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*prefix, str(script or self.folder / "lab"), *arguments],
            cwd=cwd,
            env=self.environment | dict(environment or {}),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def run(self, *arguments: str, stdin: str = "", **more: Any) -> tuple[int, str, str]:
        """Return status, standard output and standard error."""
        with self.start(*arguments, **more) as process:
            output, errors = process.communicate(stdin, timeout=120)
        return process.returncode, output, errors

    def told(self, *arguments: str, **more: Any) -> dict[str, Any]:
        """Run what needs no setting up, and return what the package told."""
        status, output, errors = self.run(*arguments, **more)
        assert (status, errors) == (0, "")
        return dict(json.loads(output))

    def interrupted(self, step: str, number: signal.Signals, *arguments: str) -> int:
        """Send a signal to all that runs once the script says this step; return the status."""
        with self.start(*arguments) as process:
            assert process.stderr
            while not (line := process.stderr.readline()).startswith(f"lab: {step}"):
                assert line, f"it never said {step}"
            os.killpg(process.pid, number)
        return process.returncode


def write_wheel(folder: Path) -> str:
    """Write a package `tiny` with one module; return its line for the lock."""
    path = folder / "tiny-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr("tiny.py", "")
        wheel.writestr(
            "tiny-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n"
        )
        wheel.writestr("tiny-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        wheel.writestr("tiny-1.0.dist-info/RECORD", "")
    return f"tiny==1.0 --hash=sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}\n"


@pytest.fixture(scope="module")
def new_checkout() -> Iterator[Checkout]:
    """Return a checkout where nobody called the script yet, which nobody else may write."""
    with tempfile.TemporaryDirectory(prefix="lab-script-") as temporary:
        top = Path(temporary)
        top.chmod(0o755)
        checkout = Checkout(top / "a chéckout" / "lab kit", top)
        (checkout.folder / "labkit").mkdir(parents=True)
        shutil.copy2(LAB, checkout.folder)
        (checkout.folder / "labkit" / "__init__.py").touch()
        (checkout.folder / "labkit" / "__main__.py").write_text(MAIN)
        (checkout.folder / "pyproject.toml").write_text("[project]\n")
        (checkout.folder / "requirements.lock").write_text(write_wheel(top))
        yield checkout


@pytest.fixture(scope="module")
def first_call(new_checkout: Checkout) -> tuple[int, str, str]:
    return new_checkout.run("measure", "x", stdin="parameters")


@pytest.fixture
def checkout(new_checkout: Checkout, first_call: tuple[int, str, str]) -> Checkout:
    """Return the checkout, set up; a test that breaks it mends it."""
    return new_checkout


def moved(checkout: Checkout, to: Path) -> Checkout:
    """Return a copy elsewhere, whose .venv is thus of no use."""
    shutil.copytree(checkout.folder, to, symlinks=True)
    return Checkout(to, Path(checkout.environment["HOME"]))


def steps(errors: str) -> list[str]:
    """Return the first word of each line the script said."""
    return [line.removeprefix("lab: ").split()[0] for line in errors.splitlines()]


def test_first_call_sets_up_and_leaves_stdin_and_stdout_to_the_command(
    checkout: Checkout, first_call: tuple[int, str, str]
) -> None:
    status, output, errors = first_call
    assert status == 0
    assert steps(errors) == ["making", "installing", "set"]
    assert json.loads(output)["stdin"] == "parameters"
    assert (checkout.site / "tiny.py").exists()
    assert (checkout.site / "bcc").readlink() == DEBIAN_BCC
    assert "Successfully installed tiny" in (checkout.venv / "setup.log").read_text()


def test_only_the_venv_and_the_checkout_can_be_imported(checkout: Checkout, tmp_path: Path) -> None:
    (tmp_path / "labkit").mkdir()
    (tmp_path / "labkit" / "__main__.py").write_text("raise SystemExit('the wrong labkit')")
    told = checkout.told(
        "list",
        cwd=str(tmp_path),
        environment={"PYTHONPATH": str(tmp_path), "PYTHONHOME": "/nonexistent"},
    )
    assert told["folder"] == str(tmp_path)
    assert told["path"][-2:] == [str(checkout.site), str(checkout.folder)]
    assert all(
        Path(path).parent.name.startswith("python3") or path.startswith("/usr/lib/python3")
        for path in told["path"][:-1]
    )
    assert "/usr/lib/python3/dist-packages" not in told["path"]
    assert told["environment"]["PYTHONNOUSERSITE"] == "1"
    assert told["environment"]["OPENBLAS_NUM_THREADS"] == "1"


def test_byte_code_is_kept_in_the_venv_alone(checkout: Checkout) -> None:
    shutil.rmtree(f"{checkout.venv}/pycache{checkout.folder}/labkit")
    told = checkout.told("list", environment={"PYTHONDONTWRITEBYTECODE": "1"})
    assert Path(told["cached"]).is_relative_to(checkout.venv / "pycache")
    assert list((checkout.venv / "pycache").glob("**/labkit/__init__.*.pyc"))
    assert list((checkout.venv / "pycache").glob("**/tiny.*.pyc"))
    assert not list(checkout.folder.glob("labkit/__pycache__"))


def test_arguments_and_status_pass_through_a_symlink(checkout: Checkout, tmp_path: Path) -> None:
    link = tmp_path / "a link"
    link.symlink_to(checkout.folder / "lab")
    arguments = ["list", "two  words", "", "*", "-p", "$HOME"]
    assert checkout.told(*arguments, script=link)["arguments"] == arguments
    assert checkout.run("exit", "3")[0] == 3


def test_later_calls_cost_little_beside_starting_python(checkout: Checkout) -> None:
    def fastest_s(command: list[str]) -> float:
        times = []
        for _ in range(15):
            start = time.perf_counter()
            subprocess.run(command, env=checkout.environment, stdout=subprocess.DEVNULL, check=True)
            times.append(time.perf_counter() - start)
        return min(times)

    module = [str(checkout.venv / "bin" / "python"), "-P", "-m", "labkit", "list"]
    assert fastest_s([str(checkout.folder / "lab"), "list"]) < 3 * fastest_s(module)


def test_two_first_calls_at_once(checkout: Checkout, tmp_path: Path) -> None:
    copy = moved(checkout, tmp_path / "copy")
    both = [copy.start("list") for _ in range(2)]
    errors = sorted(process.communicate(timeout=120)[1] for process in both)
    assert [process.returncode for process in both] == [0, 0]
    assert [steps(words) for words in errors] == [["making", "installing", "set"], ["waiting"]]


def test_interrupted_set_up_starts_over(checkout: Checkout, tmp_path: Path) -> None:
    copy = moved(checkout, tmp_path / "copy")
    for step, number in [("making", signal.SIGKILL), ("installing", signal.SIGINT)]:
        assert copy.interrupted(step, number, "list") != 0
        assert not copy.stamp.exists()
    status, _, errors = copy.run("list")
    assert (status, steps(errors)) == (0, ["making", "installing", "set"])


def test_what_pip_refuses_is_shown_and_not_taken_for_done(
    checkout: Checkout, tmp_path: Path
) -> None:
    copy = moved(checkout, tmp_path / "copy")
    (copy.folder / "requirements.lock").write_text("tiny==1.0\n")
    status, output, errors = copy.run("list")
    assert (status, output) == (1, "")
    assert "Hashes are required" in errors
    assert errors.splitlines()[-1].startswith("lab: could not install requirements.lock")
    assert not copy.stamp.exists()


@pytest.mark.parametrize("cause", ["requirements.lock", "pyproject.toml", ".venv/bin/python3"])
def test_what_no_longer_fits_is_made_anew(checkout: Checkout, tmp_path: Path, cause: str) -> None:
    copy = moved(checkout, tmp_path / "copy")
    stamp = copy.stamp.read_text()
    copy.stamp.write_text(stamp.replace(str(checkout.folder), str(copy.folder)))
    copy.told("list")
    path = copy.folder / cause
    if path.is_symlink():
        path.unlink()
        path.symlink_to("/usr/bin/python3.0")
    else:
        path.write_text(path.read_text() + "\n")
    assert copy.interrupted("making", signal.SIGKILL, "list") != 0


def test_the_unrelated_bcc_is_removed(checkout: Checkout) -> None:
    link = checkout.site / "bcc"
    link.unlink()
    link.mkdir()
    information = checkout.site / "bcc-0.1.10.dist-info"
    information.mkdir()
    status, output, errors = checkout.run("list")
    assert status == 0
    assert json.loads(output)["arguments"] == ["list"]
    assert "holds PyPI's bcc" in errors
    assert link.readlink() == DEBIAN_BCC
    assert not information.exists()
    checkout.told("list")


@as_root
def test_a_checkout_of_somebody_else(checkout: Checkout) -> None:
    assert checkout.told("list", prefix=AS_NOBODY)["arguments"] == ["list"]
    checkout.stamp.rename(checkout.venv / "aside")
    try:
        status, output, errors = checkout.run("list", prefix=AS_NOBODY)
    finally:
        (checkout.venv / "aside").rename(checkout.stamp)
    assert (status, output) == (1, "")
    assert "is not set up, and nobody cannot write there" in errors
    assert f"run '{checkout.folder}/lab list' as root" in errors


def hiding(*folders: Path) -> tuple[str, ...]:
    """Return a prefix that runs a command where these folders are empty."""
    mounts = "".join(f"mount -t tmpfs none '{folder}' && " for folder in folders)
    return ("unshare", "--mount", "sh", "-c", mounts + 'exec "$@"', "sh")


@pytest.fixture
def tools(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return a folder with the programs that the script uses, but neither apt-get nor sudo."""
    with tempfile.TemporaryDirectory(prefix="lab-script-") as temporary:
        folder = Path(temporary)
        folder.chmod(0o755)
        names = "cat dpkg flock grep id ln mkdir mktemp mount readlink rm setpriv sh sha256sum stat"
        for name in [*names.split(), "tail", "unshare"]:
            found = shutil.which(name)
            assert found
            (folder / name).symlink_to(found)
        yield folder


@as_root
@pytest.mark.skipif(not DEBIAN_BCC.exists(), reason="hides Debian's bcc, and there is none")
class TestWithoutBcc:
    """Where python3-bpfcc is not installed."""

    def test_only_what_measures_needs_it(self, checkout: Checkout, tools: Path) -> None:
        without: dict[str, Any] = {
            "prefix": hiding(DEBIAN_BCC),
            "environment": {"PATH": str(tools)},
        }
        for arguments in (["list"], ["show", "x"], ["report"], ["run", "--help"]):
            checkout.told(*arguments, **without)
        for command in ("run", "measure", "test", "benchmark", "jupyter"):
            status, output, errors = checkout.run(command, "x", **without)
            assert (status, output) == (1, "")
            assert "missing: python3-bpfcc (Debian's names), and no apt-get" in errors

    def test_an_ordinary_user_without_sudo_is_told_the_mend(
        self, checkout: Checkout, tools: Path
    ) -> None:
        (tools / "apt-get").symlink_to("/bin/false")
        status, output, errors = checkout.run(
            "run",
            "x",
            prefix=(*hiding(DEBIAN_BCC), *AS_NOBODY),
            environment={"PATH": str(tools)},
        )
        assert (status, output) == (1, "")
        assert errors == (
            "lab: missing: python3-bpfcc. As root, run: apt-get update && "
            "apt-get install --no-install-recommends python3-bpfcc\n"
        )

    def test_all_that_is_missing_is_named_at_once(
        self, checkout: Checkout, tools: Path, tmp_path: Path
    ) -> None:
        copy = moved(checkout, tmp_path / "copy")
        ensurepip = Path("/usr/lib") / PYTHON.name / "ensurepip"
        status, _, errors = copy.run(
            "run", "x", prefix=hiding(DEBIAN_BCC, ensurepip), environment={"PATH": str(tools)}
        )
        assert status == 1
        assert "missing: python3-venv python3-bpfcc" in errors
        assert not copy.stamp.exists()

    @pytest.mark.slow
    def test_apt_installs_it(self, checkout: Checkout, tmp_path: Path) -> None:
        """In a layer over this machine's files, from which the package is removed."""
        layers = f"""
            mount -t tmpfs none '{tmp_path}' && cd '{tmp_path}' && mkdir upper work root
            mount -t overlay none -o lowerdir=/,upperdir=upper,workdir=work root
            for kernel in proc dev sys; do mount --rbind /$kernel root/$kernel; done
            chroot root dpkg --purge --force-depends python3-bpfcc >&2
            exec chroot root "$@"
        """
        status, output, errors = checkout.run(
            "run",
            "x",
            prefix=("unshare", "--mount", "sh", "-ec", layers, "sh"),
            environment=os.environ | checkout.environment,
        )
        assert status == 0, errors
        assert "lab: installing python3-bpfcc with apt-get" in errors
        assert json.loads(output)["arguments"] == ["run", "x"]
        assert DEBIAN_BCC.exists()


@as_root
def test_a_python_that_is_too_old_is_refused(checkout: Checkout, tmp_path: Path) -> None:
    copy = moved(checkout, tmp_path / "copy")
    old = tmp_path / "python3.10"
    old.write_text("#!/bin/sh\necho 3.10.12\n")
    old.chmod(0o755)
    bind = ("unshare", "--mount", "sh", "-c", f"mount --bind '{old}' {PYTHON} && exec \"$@\"", "sh")
    status, _, errors = copy.run("list", prefix=bind)
    assert status == 1
    assert errors.startswith("lab: needs Python 3.11 or later, and /usr/bin/python3 is 3.10.12")
