# SPDX-License-Identifier: MIT
"""What an experiment says of itself: what it measures, and what its table and plots show."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from labkit import paths
from labkit.experiments._parameters import Parameters
from labkit.measuring.loop import Case, WindowCase


@dataclass(frozen=True)
class Metric:
    """One measured quantity: its name with the unit in it, the unit as printed, and a title.

    The value is made from what `count` names: ``operations``, a name among the counts of
    `labkit.measuring.loop.Window`, or the elapsed time where it is empty. The unit says how:

    - ``ns/op``, ``%``: for each operation, in a hundred operations
    - ``Mops/s``, ``k/s``: by elapsed time
    - ``MiB``: bytes, as they are
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
    where
        Other labels' values of the cases that are drawn.
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
    where: Mapping[str, str | int] = field(default_factory=dict)
    levels: Mapping[str, str] = field(default_factory=dict)
    published: Sequence[Published] = ()
    share_of: str = ""


@dataclass(frozen=True)
class Bars:
    """A plot of a metric in groups by another label, a bar for each variant, on a logarithmic axis.

    Attributes
    ----------
    name, title, metric, kind, variants, alternative
        As of a `Curve`.
    groups
        The label whose values make groups.
    where
        As of a `Curve`.
    published
        Figures drawn beside ours, by variant; their `x` names the column of groups.
    """

    name: str
    title: str
    metric: str
    kind: str
    groups: str
    variants: Sequence[str]
    alternative: str
    where: Mapping[str, str | int] = field(default_factory=dict)
    published: Mapping[str, Sequence[Published]] = field(default_factory=dict)


@dataclass(frozen=True)
class Timeline:
    """A plot of what was read again and again in windows, a panel a group and a line a variant.

    `column` is that of the journal's ``series`` lines, in bytes; `y_title` says what it is.
    """

    name: str
    title: str
    column: str
    y_title: str
    groups: str
    variants: Sequence[str]
    alternative: str


@dataclass(frozen=True)
class Tradeoff:
    """A plot of one raw metric against another, a point for each group and variant.

    `x` and `metric` name the metrics; `published` as in `Bars`, with `x` the column of that metric
    and `groups_column` that of groups.
    """

    name: str
    title: str
    x: str
    metric: str
    groups: str
    variants: Sequence[str]
    alternative: str
    published: Mapping[str, Published] = field(default_factory=dict)
    groups_column: str = ""


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
class Growth:
    """A cost that grows in a straight line with a counted label, for each value of another one.

    Attributes
    ----------
    metric
        The cost, of which the net is fitted.
    x, each, from_x
        The label, what one more of it is, and from which of its sizes on the line is fitted.
    variants
        Which are fitted, and said where one overtakes the other.
    along
        The label whose values are fitted each for itself.
    published
        Costs of one variant as a part of another's, in figures published; said where they cross.
    """

    metric: str
    x: str
    each: str
    from_x: int
    variants: Sequence[str]
    along: str
    published: Sequence[Published] = ()


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
    growth
        What to fit a line to, where it is about that.
    """

    name: str
    question: str
    parameters: type[Parameters]
    labels: Sequence[str]
    metrics: Sequence[Metric]
    requirements: Callable[[Any], Mapping[str, str]]
    cases: Callable[[Any, Sequence[str]], AbstractContextManager[Sequence[Case | WindowCase]]]
    quick: Mapping[str, Any] = field(default_factory=dict)
    repeat: int = 1
    plots: Sequence[Curve | Bars | Timeline | Tradeoff] = ()
    cliff: Cliff | None = None
    growth: Growth | None = None

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
