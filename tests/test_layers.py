# SPDX-License-Identifier: MIT
"""Imports go one way, and the light parts stay light."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import labkit

PACKAGE = Path(labkit.__file__).parent

#: What a layer may import; every module may import errors and paths.
ALLOWED = {
    "errors": set(),
    "paths": set(),
    "store": set(),
    "kernel": set(),
    "measuring": {"kernel"},
    "experiments": {"kernel", "measuring"},
    "targets": {"kernel", "measuring", "experiments", "store"},
    "report": {"measuring", "experiments", "store"},
    "progress": {"store"},
    "doctor": {"kernel"},
    "api": {"kernel", "measuring", "experiments", "targets", "store", "report", "progress"},
    "batch": {"api", "experiments", "store", "report", "progress"},
    "benchmark": {"api", "kernel", "experiments", "targets", "report"},
    "cli": {"api", "kernel", "batch", "benchmark", "doctor", "experiments", "targets", "report"},
    "__main__": {"cli"},
    "__init__": {"api"},
}


def layer_of(module: Path) -> str:
    return module.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported_layers(module: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(module.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}: relative import"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        found |= {name.split(".")[1] for name in names if name.startswith("labkit.")}
    return found - {"__version__"}


@pytest.mark.parametrize("module", sorted(PACKAGE.rglob("*.py")), ids=lambda path: path.name)
def test_no_layer_imports_upward(module):
    layer = layer_of(module)
    allowed = ALLOWED[layer] | {layer, "errors", "paths"}
    assert imported_layers(module) <= allowed


def imported_by(statement: str, *, path: str = "") -> set[str]:
    code = f"{path}import sys; {statement}; print(*sys.modules)"
    names = subprocess.check_output([sys.executable, "-c", code], text=True).split()
    return {name.partition(".")[0] for name in names}


HEAVY = {"pandas", "numpy", "matplotlib", "scipy", "pyarrow", "IPython", "papermill", "yaml", "bcc"}


@pytest.mark.parametrize("statement", ["import labkit", "import labkit.cli"])
def test_importing_is_light(statement):
    assert not imported_by(statement) & HEAVY


def test_the_measuring_process_needs_the_standard_library_only():
    found = imported_by("from labkit.targets import here; here.find('local-storage')")
    assert not found & HEAVY


def test_reports_never_import_bcc():
    found = imported_by("from labkit.report import notebook, plots, summary, tables")
    assert "bcc" not in found


def test_every_source_file_names_its_licence():
    root = PACKAGE.parent
    sources = [
        path
        for pattern in ("labkit/**/*.py", "tests/**/*.py", "bpf/**/*.c", "bpf/**/*.h")
        for path in root.glob(pattern)
    ]
    assert len(sources) > 30
    for path in sources:
        assert "SPDX-License-Identifier: " in path.read_text().splitlines()[0], path


def test_public_names_do_not_share_a_name_with_a_folder():
    folders = {path.name for path in PACKAGE.iterdir() if path.is_dir()}
    assert not folders & set(labkit.__all__)
    assert all(getattr(labkit, name) for name in labkit.__all__)
