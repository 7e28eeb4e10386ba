# SPDX-License-Identifier: MIT
"""A run: a folder with its journal, and what is made from it."""

import errno
import json
import math
import os
import shutil
import tempfile
from array import array
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from labkit.errors import LabkitError, UsageError
from labkit.store import journal

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

    Floats = np.ndarray[Any, np.dtype[np.float64]]

JOURNAL, SUMMARY, SAMPLES = "journal.jsonl", "run.json", "samples.parquet"


def new_id(experiment: str, release: str) -> str:
    """Return an id for a run that starts now: UTC time, experiment, kernel release."""
    return f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{experiment}-{release}"


def create(home: Path, identity: str) -> Path:
    """Make the folder of a new run and return it; a taken id gets a number.

    Raises
    ------
    LabkitError
        Where the folder cannot be made.
    """
    for number in range(1, 1000):
        folder = home / (identity if number == 1 else f"{identity}-{number}")
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError as error:
            raise _cannot_make(folder, error) from None
        return folder
    raise LabkitError(f"{home} already holds a thousand runs called {identity}")


def make(folder: Path) -> Path:
    """Make a folder where there is none and return it.

    Raises
    ------
    LabkitError
        Where it cannot be made or written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        raise _cannot_make(folder, error) from None
    return folder


def _cannot_make(folder: Path, error: OSError) -> LabkitError:
    return LabkitError(
        f"cannot make {folder}: {error.strerror}; set LABKIT_HOME to a folder that can be written"
    )


def write_whole(path: Path, content: bytes) -> None:
    """Write a file that appears whole or not at all.

    Raises
    ------
    LabkitError
        Where it cannot be written; what was at `path` is untouched then.
    """
    try:
        descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        aside = Path(name)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
                os.fchmod(file.fileno(), 0o644)
            aside.replace(path)
        except BaseException:
            aside.unlink()
            raise
    except OSError as error:
        raise LabkitError(f"cannot write {path}: {error.strerror}") from None


class Samples:
    """The samples of a journal, of which there may be a million: a column for each field.

    Attributes
    ----------
    columns
        ``boot``, ``process``, ``case``, ``control``, ``round``, ``operations``, ``elapsed_ns``
        and ``steal_ns``, all of one length.
    counts
        What was counted, by name; nan where a sample has no such count.
    """

    _FIELDS = ("case", "control", "round", "operations", "elapsed_ns", "steal_ns")

    def __init__(self) -> None:
        self.columns = {name: array("q") for name in ("boot", "process", *self._FIELDS)}
        self.counts: dict[str, array[float]] = {}

    def __len__(self) -> int:
        return len(self.columns["case"])

    def add(self, start: journal.Line, lines: list[journal.Line]) -> int:
        """Append samples of the process that began with the line `start`.

        Returns
        -------
        int
            How many were left out, because a field is missing or no number.
        """
        try:
            fields = {name: array("q", [line[name] for line in lines]) for name in self._FIELDS}
            counts = {
                name: array("d", [line["counts"].get(name, math.nan) for line in lines])
                for name in dict.fromkeys(name for line in lines for name in line["counts"])
            }
        except (KeyError, TypeError, AttributeError, OverflowError):
            return 1 if len(lines) == 1 else sum(self.add(start, [line]) for line in lines)
        for name in counts.keys() - self.counts.keys():
            self.counts[name] = array("d", [math.nan]) * len(self)
        for name, held in self.counts.items():
            held.extend(counts.get(name) or array("d", [math.nan]) * len(lines))
        for name, column in fields.items():
            self.columns[name].extend(column)
        for name in ("boot", "process"):
            self.columns[name].extend(array("q", [start.get(name, 0)]) * len(lines))
        return 0


@dataclass(frozen=True, eq=False)
class Run:
    """What one run measured, read from its folder.

    Attributes
    ----------
    path
        The folder.
    lines
        The journal's lines, in order, without the samples.
    unreadable_lines
        How many lines of the journal could not be read and were left out.
    samples
        The journal's samples.
    """

    path: Path
    lines: list[journal.Line] = field(repr=False)
    unreadable_lines: int
    samples: "Samples" = field(default_factory=lambda: Samples(), repr=False)

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a run's folder, or the journal itself.

        Raises
        ------
        UsageError
            Where there is no journal, or one of a newer schema.
        """
        folder = path if path.is_dir() else path.parent
        file = folder / JOURNAL
        if not file.is_file():
            raise UsageError(f"{path} is no run: it has no {JOURNAL}")
        lines: list[journal.Line] = []
        start: journal.Line = {}
        samples, unreadable = Samples(), 0
        with file.open("rb") as source:
            for part in journal.read_in_parts(source):
                if isinstance(part, list):
                    unreadable += samples.add(start, part)
                elif part is None:
                    unreadable += 1
                else:
                    lines.append(part)
                    start = part if part["kind"] == "start" else start
        run = cls(folder, lines, unreadable, samples)
        schema = run.header.get("schema")
        if not isinstance(schema, int):
            raise UsageError(f"{file} does not begin as a journal of labkit")
        if schema > journal.SCHEMA:
            raise UsageError(
                f"{file} has schema {schema}; this labkit reads up to {journal.SCHEMA}: update it"
            )
        return run

    def of_kind(self, kind: str) -> list[journal.Line]:
        """Return the journal's lines of one kind; samples are in `samples`."""
        return [line for line in self.lines if line["kind"] == kind]

    @property
    def header(self) -> journal.Line:
        """Return the first line, of kind ``run``."""
        return self.lines[0] if self.lines and self.lines[0]["kind"] == "run" else {}

    @property
    def id(self) -> str:
        """Return the name of the folder."""
        return self.path.name

    @property
    def experiment(self) -> str:
        """Return the name of the experiment."""
        return str(self.header["experiment"])

    @cached_property
    def start(self) -> journal.Line:
        """Return the start of the first process, empty where none started."""
        return next(iter(self.of_kind("start")), {})

    @property
    def parameters(self) -> Mapping[str, Any]:
        """Return the parameters of the experiment."""
        parameters: Mapping[str, Any] = self.header["parameters"]
        return parameters

    @property
    def environment(self) -> Mapping[str, Any]:
        """Return the fingerprint of kernel and machine (see `labkit.kernel.host.environment`)."""
        environment: Mapping[str, Any] = self.start.get("environment", {})
        return environment

    @property
    def status(self) -> str:
        """Return ``complete``, ``partial`` or ``failed``."""
        ends = [line["status"] for line in self.of_kind("end")]
        if "failed" in ends:
            return "failed"
        return "complete" if ends.count("complete") == self.header["repeat"] else "partial"

    @property
    def why(self) -> str:
        """Return why the run ended as it did."""
        ends = self.of_kind("end")
        for line in ends:
            if line["status"] != "complete":
                return str(line["why"])
        if self.status == "partial":
            reached = max(len(self.of_kind("start")), 1)
            return f"ended in process {reached} of {self.header['repeat']}"
        return "; ".join(dict.fromkeys(str(line["why"]) for line in ends))

    @cached_property
    def unavailable(self) -> dict[str, str]:
        """Return why each variant that could not run was not available."""
        return {
            line["variant"]: line["unavailable"]
            for line in self.of_kind("requirement")
            if line["unavailable"]
        }

    @cached_property
    def warnings(self) -> list[str]:
        """Return what was noticed while measuring, each once, with the cases it speaks of."""
        names = {line["case"]: case_name(line["labels"]) for line in self.of_kind("case")}
        found: dict[str, list[str]] = {}
        for line in self.of_kind("warning"):
            found.setdefault(line["message"], []).append(names.get(line.get("case"), ""))
        for line in self.of_kind("end"):
            for name in line.get("leaked", ()):
                found[f"left behind in the kernel: {name}"] = []
        if self.unreadable_lines:
            found[f"{self.unreadable_lines} unreadable lines of the journal left out"] = []
        return [_with_cases(message, cases) for message, cases in found.items()]

    @cached_property
    def frame(self) -> "pd.DataFrame":
        """Return the samples, one row for each window and metric.

        Columns: the experiment's labels (whole numbers missing where a label does not apply),
        ``metric``, ``unit``, ``boot``, ``process``, ``round``, ``value`` (in the metric's unit),
        ``operations``, ``elapsed_ns``, ``steal_ns``, ``control`` (true for the harness alone).
        """
        import pandas as pd

        frame = self._sampled() if self.samples and self.metrics else self._printed()
        labels = {line["case"]: line["labels"] for line in self.of_kind("case")}
        known = frame["case"].isin(labels.keys())
        if not known.all():  # of a case whose line could not be read
            frame = frame[known].reset_index(drop=True)
        case, metric = frame.pop("case"), frame.pop("metric")
        last = max(labels, default=-1)
        for name in self.labels:
            held = pd.Series(
                [labels.get(one, {}).get(name) for one in range(last + 1)], dtype=object
            )
            if pd.api.types.is_numeric_dtype(held.dropna().infer_objects()):
                whole = held.astype("Int64")
                frame[name] = whole.array.take(case.to_numpy())
            else:
                frame[name] = _chosen(held, case)
        for key, name in (("metric", "name"), ("unit", "unit")):
            frame[key] = _chosen(pd.Series([one[name] for one in self.metrics]), metric)
        return frame.reindex(columns=[*self.labels, *_COLUMNS])

    def _sampled(self) -> "pd.DataFrame":
        """Return a row for each sample and each metric that it has, in the journal's order."""
        import numpy as np
        import pandas as pd

        columns = {name: np.asarray(held) for name, held in self.samples.columns.items()}
        counts = {name: np.asarray(held) for name, held in self.samples.counts.items()}
        values = np.stack([_values(metric, columns, counts) for metric in self.metrics], axis=1)
        sample, metric = np.nonzero(~np.isnan(values))
        columns["control"] = columns["control"].astype(bool)
        rows = {name: held[sample] for name, held in columns.items()}
        rows |= {"metric": metric, "value": values[sample, metric]}
        return pd.DataFrame(rows, copy=False)

    def _printed(self) -> "pd.DataFrame":
        """Return a row for each imported figure."""
        import pandas as pd

        index = {metric["name"]: place for place, metric in enumerate(self.metrics)}
        rows = []
        repetition = (0, 0)
        for line in self.lines:
            if line["kind"] == "start":
                repetition = (line["boot"], line["process"])
            elif line["kind"] == "figure":
                place = index[line["metric"]]
                rows.append((*repetition, line["case"], line["control"], place, line["value"]))
        columns = ["boot", "process", "case", "control", "metric", "value"]
        return pd.DataFrame(rows, columns=columns).assign(round=0)

    @property
    def has_values(self) -> bool:
        """Return whether anything was measured, or imported."""
        return bool(self.samples) or any(line["kind"] == "figure" for line in self.lines)

    def sizes(self, label: str) -> set[int]:
        """Return the values of a counted label among the cases."""
        return {line["labels"][label] for line in self.of_kind("case") if label in line["labels"]}

    @property
    def labels(self) -> list[str]:
        """Return the names of the columns that tell cases apart."""
        return list(self.start.get("labels", []))

    @property
    def metrics(self) -> list[Mapping[str, str]]:
        """Return name, unit, title and count of each metric; the first one is timed directly."""
        return list(self.start.get("metrics", []))

    def finish(self) -> None:
        """Write ``run.json`` and ``samples.parquet``, which are made from the journal."""
        summary = {
            "schema": journal.SCHEMA,
            "id": self.id,
            "experiment": self.experiment,
            "parameters": self.parameters,
            "status": self.status,
            "why": self.why,
            "harness": self.start.get("harness"),
            "code_sha256": self.start.get("code_sha256"),
            "environment": self.environment,
            "unavailable": self.unavailable,
            "warnings": self.warnings,
        }
        write_whole(self.path / SAMPLES, self.frame.to_parquet(index=False))
        write_whole(self.path / SUMMARY, (json.dumps(summary, indent=2) + "\n").encode())


_COLUMNS = (
    *("metric", "unit", "boot", "process", "round", "value"),
    *("operations", "elapsed_ns", "steal_ns", "control"),
)


def case_name(labels: Mapping[str, Any]) -> str:
    """Return a case's labels in a line: texts as they are, numbers with what they count."""
    return " ".join(
        value if isinstance(value, str) else f"{value} {name.removesuffix('s' * (value == 1))}"
        for name, value in labels.items()
    )


def _with_cases(message: str, cases: list[str], most: int = 5) -> str:
    """Name the cases that a message speaks of, those it speaks of most often first."""
    counted = Counter(case for case in cases if case).most_common()
    named = [f"{case} ({times} times)" if times > 1 else case for case, times in counted[:most]]
    if len(counted) > most:
        named.append(f"and {len(counted) - most} more cases")
    return f"{message}: {', '.join(named)}" if named else message


#: What a count comes to in each unit, of operations that took so many ns.
_UNITS: Mapping[str, "Callable[[Floats, Floats, Floats], Floats]"] = {
    "ns/op": lambda count, operations, elapsed_ns: count / operations,
    "%": lambda count, operations, elapsed_ns: 100 * count / operations,
    "Mops/s": lambda count, operations, elapsed_ns: 1e3 * count / elapsed_ns,
    "k/s": lambda count, operations, elapsed_ns: 1e6 * count / elapsed_ns,
    "MiB": lambda count, operations, elapsed_ns: count / 2**20,
}


def _values(
    metric: Mapping[str, str],
    columns: Mapping[str, "Floats"],
    counts: Mapping[str, "Floats"],
) -> "Floats":
    """Return a metric's value in every sample, nan where a sample has no such count."""
    import numpy as np

    operations, elapsed_ns = columns["operations"], columns["elapsed_ns"]
    known = {"": elapsed_ns, "operations": operations, **counts}
    count = known.get(metric["count"], np.full(len(columns["case"]), np.nan))
    return _UNITS[metric["unit"]](count, operations, elapsed_ns)


def _chosen(values: "pd.Series[Any]", places: "pd.Series[int]") -> Any:
    """Return a column of texts, each the one of `values` at its place; few of them are many."""
    import pandas as pd

    few = pd.Categorical(values, categories=pd.Index(values.dropna().unique(), dtype=str))
    return few.take(places.to_numpy())


def locate(name: str, homes: list[Path]) -> Path:
    """Return the folder of a run by its path, its id, the beginning of its id, or ``last``.

    Raises
    ------
    UsageError
        Where there is none, or more than one begins so.
    """
    path = Path(name)
    if path.exists():
        return path
    by_home = [[folder.name for folder in folders(home)] for home in homes]
    known = [identity for identities in by_home for identity in identities]
    if name == "last":
        name = next((identities[-1] for identities in by_home if identities), name)
    wanted = [one for one in known if one == name] or [one for one in known if one.startswith(name)]
    if len(wanted) != 1:
        which = f"{len(wanted)} runs begin with" if wanted else "no run is called"
        newest = ", ".join(by_home[0][-3:]) or "none yet"
        raise UsageError(f"{which} {name!r}; the newest: {newest}")
    return next(home / wanted[0] for home in homes if (home / wanted[0]).is_dir())


def folders(home: Path) -> list[Path]:
    """Return the folders of runs in `home`, oldest first."""
    if not home.is_dir():
        return []
    return sorted(folder for folder in home.iterdir() if (folder / JOURNAL).is_file())


def remove(folder: Path) -> None:
    """Remove a run's folder, nothing measured in it."""
    shutil.rmtree(folder, ignore_errors=True)
