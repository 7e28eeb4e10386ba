# SPDX-License-Identifier: MIT
"""What an experiment says of itself: what it measures, and what its table and plots show."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from labkit import paths
from labkit.experiments._parameters import Parameters
from labkit.measuring.loop import Case


@dataclass(frozen=True)
class Metric:
    """One measured quantity: its name with the unit in it, the unit as printed, and a title.

    A metric is time per operation in ns, or the rate in M/s of what `count` counts:
    ``operations``, or a name among the counts of `labkit.measuring.loop.Call`.
    """

    name: str
    unit: str
    title: str
    count: str = ""


@dataclass(frozen=True)
class Experiment:
    """One module of `labkit.experiments` describes one of these, called ``EXPERIMENT``.

    Attributes
    ----------
    name
        As on the command line; ``-`` becomes ``_`` in the names of its three files.
    question
        What it answers, in a sentence.
    parameters
        The dataclass of its parameters.
    quick
        What ``--quick`` changes in them.
    repeat
        Processes of a run that does not say how many.
    labels
        Names of the columns that tell its cases apart, in the order of a row's label. Values are
        texts, or whole numbers counted in the label's name ("16 maps").
    metrics
        What is measured, the first one timed directly.
    requirements
        Given parameters, for each variant why it is not available here, or the empty text.
    cases
        Given parameters and the variants that can run, a context in which the cases can be
        measured: programs loaded, maps filled, the work checked.
    findings
        Given a summary (see `labkit.report.summary`), what it comes to.
    """

    name: str
    question: str
    parameters: type[Parameters]
    labels: Sequence[str]
    metrics: Sequence[Metric]
    requirements: Callable[[Any], Mapping[str, str]]
    cases: Callable[[Any, Sequence[str]], AbstractContextManager[list[Case]]]
    quick: Mapping[str, Any] = field(default_factory=dict)
    repeat: int = 1

    @property
    def stem(self) -> str:
        """Return the name of its files, without endings."""
        return self.name.replace("-", "_")

    @property
    def source(self) -> Path:
        """Return its BPF C file."""
        return paths.BPF / f"{self.stem}.c"

    @property
    def notebook(self) -> Path:
        """Return its notebook."""
        return paths.NOTEBOOKS / f"{self.stem}.ipynb"
