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
class Published:
    """Figures from a patch mail, a file in ``data/published``, that a plot draws beside ours.

    The rows in which columns have the values `where`; `x` and `y` name the columns drawn, `y`
    as a part of `share_of` where that names one.
    """

    file: str
    caption: str
    x: str
    y: str
    where: Mapping[str, str]
    share_of: str = ""


@dataclass(frozen=True)
class Curve:
    """A plot of a metric against a counted label, both on logarithmic axes.

    Attributes
    ----------
    name, title
        Of the plot; the name becomes the name of its files.
    metric, kind
        What is drawn: the metric's raw, control or net value, with its interval.
    x, x_title
        The label on the horizontal axis.
    variants
        Of which a curve is drawn each.
    levels
        Variants without that label, drawn as horizontal lines, with the label that tells the
        lines of one variant apart.
    published
        Figures drawn beside ours.
    share_of
        Another metric, of which the drawn one is a part: then the share is drawn, without unit.
    alternative
        What a person who cannot see it should know that it shows.
    """

    name: str
    title: str
    metric: str
    kind: str
    x: str
    x_title: str
    variants: Sequence[str]
    alternative: str
    levels: Mapping[str, str] = field(default_factory=dict)
    published: Sequence[Published] = ()
    share_of: str = ""


@dataclass(frozen=True)
class Cliff:
    """A cache whose slots are to be found in how the cost of `variant` grows with `x`.

    `operation` is what has that cost, as a sentence begins with it. `against` names the variants,
    with the label of their sizes, whose cost the curve crosses.
    """

    metric: str
    variant: str
    x: str
    operation: str
    against: Mapping[str, str]


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
    plots
        What its plots show.
    cliff
        The cache to look for, where it is about one.
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
    plots: Sequence[Curve] = ()
    cliff: Cliff | None = None

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
