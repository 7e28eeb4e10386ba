# SPDX-License-Identifier: MIT
"""Where labkit's own files lie, and where runs and reports go."""

import os
from pathlib import Path

from labkit.errors import LabkitError

ROOT = Path(__file__).resolve().parent.parent
BPF = ROOT / "bpf"
NOTEBOOKS = ROOT / "notebooks"
PUBLISHED = ROOT / "data" / "published"
EXAMPLES = ROOT / "data" / "examples"


def _writable_home(name: str) -> Path:
    """Return folder `name` of LABKIT_HOME, the checkout, or the user's data home.

    The last one where the checkout cannot be written.

    Raises
    ------
    LabkitError
        Where there is no such place.
    """
    if chosen := os.environ.get("LABKIT_HOME"):
        return Path(chosen) / name
    folder = ROOT / name
    nearest = next(parent for parent in (folder, *folder.parents) if parent.exists())
    if os.access(nearest, os.W_OK):
        return folder
    try:
        data_home = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share")
    except RuntimeError:
        raise LabkitError(
            f"{ROOT} cannot be written, and this user has no home: set LABKIT_HOME to a folder"
        ) from None
    return data_home / "labkit" / name


def runs() -> Path:
    """Return the folder of measured runs."""
    return _writable_home("data/runs")


def reports() -> Path:
    """Return the folder of rendered reports."""
    return _writable_home("reports")
