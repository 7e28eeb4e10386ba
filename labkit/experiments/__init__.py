# SPDX-License-Identifier: MIT
"""The experiments, found by looking into this folder: a module without a leading underscore."""

import hashlib
import pkgutil
from importlib import import_module
from pathlib import Path

from labkit import paths
from labkit.experiments._experiment import Experiment
from labkit.experiments._parameters import nearest_name

__all__ = ["Experiment", "code_sha256", "find", "names"]


def names() -> list[str]:
    """Return the names of all experiments, sorted."""
    modules = (module.name for module in pkgutil.iter_modules(__path__))
    return sorted(name.replace("_", "-") for name in modules if not name.startswith("_"))


def find(name: str) -> Experiment:
    """Return the experiment called `name`.

    Raises
    ------
    UsageError
        For an unknown name, with the nearest known one.
    """
    if name not in names():
        raise nearest_name("experiment", name, names())
    module = import_module(f"{__name__}.{name.replace('-', '_')}")
    experiment: Experiment = module.EXPERIMENT
    return experiment


def code_sha256(experiment: Experiment) -> str:
    """Return a hash of the experiment's C and Python code, which decides what a figure means."""
    digest = hashlib.sha256()
    shared = sorted((paths.BPF / "include" / "labkit").iterdir())
    for file in (experiment.source, *shared, Path(__file__).parent / f"{experiment.stem}.py"):
        digest.update(file.read_bytes())
    return digest.hexdigest()
