# SPDX-License-Identifier: MIT
"""A journal: one JSON object a line, in the order in which things happened.

===========  =====================================================================================
kind         fields
===========  =====================================================================================
run          schema, id, experiment, parameters, command, repeat (processes); once, by the caller;
             series (its title in the text) where it was imported; turns (an id shared by runs whose
             processes took turns)
start        boot, process (indices); experiment, parameters, labels, metrics, seed, harness,
             code_sha256, environment, noise; once for each process
requirement  variant, unavailable (why, or the empty text)
case         case (index), labels, timed and control: operations_per_call, calls_per_window and
             proportionality (time of 2 N operations by time of N)
warning      message, and case where it speaks of one
sample       case, control, round, operations, elapsed_ns, steal_ns, counts
series       case, control, round, columns: what was read again and again during that window, lists
             of equal length by name, the first one the clock
figure       case, control, metric, value, deviation (sample standard deviation) and n (samples
             behind both), each null where not known, line; in place of samples in an imported run
unread       line, text: what an import did not understand
round        round, elapsed_s, widest_half_width_percent
stop         why, rounds
end          status (complete, partial, failed), why, exit_status, noise, leaked; once a process
===========  =====================================================================================

A journal that ends early, even in the middle of a line, is a journal: what it says stands.
"""

import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from labkit.errors import LabkitError

SCHEMA = 1

Line = dict[str, Any]


def encode(line: Line) -> bytes:
    """Return one line of a journal, its end included."""
    return json.dumps(line, separators=(",", ":"), allow_nan=False).encode() + b"\n"


class Journal:
    """A journal file that is being written; every line is there as soon as it is added."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def add(self, line: Line) -> None:
        """Append a line.

        Raises
        ------
        LabkitError
            Where it cannot be written: the lines before it stay readable.
        """
        data = encode(line)
        try:
            while data:
                data = data[os.write(self._descriptor, data) :]
        except OSError as error:
            raise LabkitError(
                f"cannot write {self.path}: {error.strerror}; what was measured before is kept"
            ) from None

    def close(self) -> None:
        """Make what was written lasting and close the file."""
        try:
            os.fsync(self._descriptor)
        finally:
            os.close(self._descriptor)


_SAMPLE = b'{"kind":"sample",'
_BLOCK = 10_000


def read_in_parts(source: Iterable[bytes]) -> Iterator[Line | list[Line] | None]:
    """Yield what `read` yields, but for samples that follow each other: these as lists."""
    block: list[bytes] = []
    for raw in source:
        if raw.startswith(_SAMPLE):
            block.append(raw)
            if len(block) < _BLOCK:
                continue
        yield from _samples(block)
        block = []
        if not raw.startswith(_SAMPLE):
            (line,) = read([raw])
            yield [line] if line is not None and line["kind"] == "sample" else line
    yield from _samples(block)


def _samples(block: list[bytes]) -> Iterator[list[Line] | None]:
    """Decode lines at once, which takes half as long as one by one."""
    if not block:
        return
    try:
        yield json.loads(b"[" + b",".join(block) + b"]")
    except ValueError:
        for line in read(block):
            yield None if line is None else [line]


def read(source: Iterable[bytes]) -> Iterator[Line | None]:
    """Yield each line of a journal, None for one that cannot be read."""
    for raw in source:
        try:
            line = json.loads(raw)
        except ValueError:
            yield None
            continue
        yield line if isinstance(line, dict) and "kind" in line else None
