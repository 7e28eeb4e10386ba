# SPDX-License-Identifier: MIT
"""How far a measurement is: a bar on a terminal and in a notebook, plain lines in batch."""

import sys
from types import TracebackType
from typing import Any, Self

from labkit.store.journal import Line

PLAIN_EVERY_S = 10.0


class Progress:
    """Follows the lines of a journal.

    Parameters
    ----------
    processes
        How many are to be measured.
    budget_s
        Seconds of rounds in each.
    silent
        Show nothing: somebody else follows the journal.
    """

    def __init__(self, processes: int, budget_s: float, *, silent: bool = False) -> None:
        self._processes, self._budget_s = processes, budget_s
        self._process = 0
        self._said_s = -PLAIN_EVERY_S
        self._bar: Any = None
        self._plain = False
        if silent:
            return
        if "ipykernel" in sys.modules or sys.stderr.isatty():
            from tqdm.auto import tqdm

            self._bar = tqdm(
                total=100.0,
                bar_format="{percentage:3.0f} %|{bar}| {elapsed} < {remaining} {desc}",
                desc="setting up",
            )
        else:
            self._plain = True

    def add(self, line: Line) -> None:
        """Take note of one line."""
        if line["kind"] == "start":
            self._process, self._said_s = line["process"], -PLAIN_EVERY_S
            self._show(0.0, "setting up")
        elif line["kind"] == "round":
            widest = line["widest_half_width_percent"]
            reached = "" if widest is None else f", widest interval +-{widest:.2g} %"
            self._show(line["elapsed_s"], f"round {line['round'] + 1}{reached}")
        elif line["kind"] == "stop":
            self._show(self._budget_s, line["why"])

    def _show(self, elapsed_s: float, what: str) -> None:
        done = self._process + min(1.0, elapsed_s / self._budget_s)
        where = f"process {self._process + 1} of {self._processes}"
        if self._bar is not None:
            self._bar.update(100.0 * done / self._processes - self._bar.n)
            self._bar.set_description_str(f"{where}: {what}")
        elif self._plain and elapsed_s - self._said_s >= PLAIN_EVERY_S:
            self._said_s = elapsed_s
            print(f"{where}: {what}", file=sys.stderr, flush=True)

    def __enter__(self) -> Self:
        """Begin."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Take the bar away."""
        if self._bar is not None:
            self._bar.close()
