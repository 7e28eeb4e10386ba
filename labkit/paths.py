# SPDX-License-Identifier: MIT
"""Where labkit's own files lie, and where runs and reports go."""

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BPF = ROOT / "bpf"
NOTEBOOKS = ROOT / "notebooks"
PUBLISHED = ROOT / "data" / "published"
EXAMPLES = ROOT / "data" / "examples"


def _writable_home(name: str) -> Path:
    """Return folder `name` of LABKIT_HOME, the checkout, or the user's data home.

    The last one where the checkout cannot be written.
    """
    if chosen := os.environ.get("LABKIT_HOME"):
        return Path(chosen) / name
    folder = ROOT / name
    nearest = next(parent for parent in (folder, *folder.parents) if parent.exists())
    if os.access(nearest, os.W_OK):
        return folder
    data_home = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(data_home) / "labkit" / name


def runs() -> Path:
    """Return the folder of measured runs."""
    return _writable_home("data/runs")


def reports() -> Path:
    """Return the folder of rendered reports."""
    return _writable_home("reports")
