# SPDX-License-Identifier: MIT
"""What the kernel's own BPF benchmark tool printed, read as runs.

A line is taken only where it has, from end to end, a form that the tool, its scripts or the
tables in patch mails have, and where it is known what its numbers are; every other line is kept
as not understood. Forms and units: ``tools/testing/selftests/bpf/bench.c``, ``benchs/*.c``,
``benchs/run_*.sh`` and ``samples/bpf/map_perf_test_user.c`` of Linux 5.x to 7.x.

A heading such as BEFORE and AFTER, or a column of a table so named, makes a run of its own. What
is printed again under the same heading is another process.
"""

import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from labkit.errors import UsageError
from labkit.store import journal

GENERIC = "kernel-bench"
MAXIMUM_FIGURES = 200_000
#: Lines that were not understood and are kept word by word; more are only counted.
KEPT_LINES = 1000
_LABEL_LENGTH = 80
#: Nothing that is understood is longer.
_LINE_LENGTH = 400

#: Metric, unit and title by name: everything that is read has one of these units.
METRICS = {
    name: {"name": name, "unit": unit, "title": title, "count": ""}
    for name, unit, title in (
        ("get_ns", "ns/op", "time per get"),
        ("latency_ns", "ns/op", "latency"),
        ("median_ns", "ns/op", "median"),
        ("p99_ns", "ns/op", "99th percentile"),
        ("hits_mops", "Mops/s", "hits"),
        ("important_mops", "Mops/s", "gets of map 0"),
        ("throughput_mops", "Mops/s", "throughput"),
        ("drops_mops", "Mops/s", "drops"),
        ("total_mops", "Mops/s", "total operations"),
        ("lookups_mops", "Mops/s", "lookups"),
        ("batches_kps", "k/s", "batches of 64 elements per producer"),
        ("creates_kops", "k/s", "creates"),
        ("events_per_s", "/s", "events"),
        ("false_hits_percent", "%", "false hits"),
        ("memory_mib", "MiB", "memory"),
        ("memory_absolute_mib", "MiB", "average memory"),
        ("memory_mb", "MB", "memory"),
        ("peak_mib", "MiB", "peak memory"),
        ("total_mb", "MB", "transferred"),
        ("rate_mb_per_s", "MB/s", "mean rate"),
        ("latency_us", "us", "grace period latency"),
        ("ticks_per_gp", "ticks", "ticks per grace period"),
    )
}


@dataclass(frozen=True)
class Figure:
    """One number of a text: of what it is, what was printed beside it, and where it stood."""

    experiment: str
    harness: str
    series: str
    labels: tuple[tuple[str, str | int], ...]
    metric: str
    value: float
    deviation: float | None
    n: int | None
    line: int


@dataclass
class Text:
    """What a text holds.

    Attributes
    ----------
    figures
        In the order in which they stand.
    progress_lines
        How many lines told the progress of a measurement, and are no results.
    not_understood
        Number and words of lines that were not understood, up to `KEPT_LINES`.
    not_understood_count
        How many there were.
    """

    figures: list[Figure] = field(default_factory=list)
    progress_lines: int = 0
    not_understood: list[tuple[int, str]] = field(default_factory=list)
    not_understood_count: int = 0


_N = r"(\d+(?:\.\d+)?)"
_PM = rf"{_N} ?\u00b1 ?{_N} ?"
_RATE = rf"{_PM}M/s"
_MOPS = rf"{_PM}([KM]) ops/s"
_CHANGE = r"(?: ?\( ?(?:~|[-+]?\d+(?:\.\d+)? ?%) ?\))?"
_DROPS = rf"drops:? {_RATE}"

_SERIES_WORDS = re.compile(
    r"^(?:\(\d+\) \S.*|<?(?:before|after|baseline|patched|unpatched|orig(?:in)?(?:al)?|vanilla)\b"
    r".{0,50}|<?(?:base|old|new)(?: (?:kernel|code|version|results?))?>?"
    r"|(?:with|without|this) (?:this|the|patch)\b.{0,50})$",
    re.I,
)
_COMMAND = re.compile(
    r"(?:^|[#$] ?|sudo )(?:\S*/)?(bench|run_bench_(\w+)\.sh|run_htab_mem\.sh|map_perf_test)"
    r"((?: +\S+)*)$"
)
#: How the names of the tool's benchmarks begin.
_NAME = re.compile(
    r"(?:count|rename|trig|rb|pb|bloom|hashmap|bpf|strncmp|local-storage|r?htab|crypto|lpm-trie|xdp"
    r"|norm|dynkey)-|sockmap$"
)
_SETUP = re.compile(r"Setting up benchmark '([\w-]+)'\.\.\.")
_RULE = re.compile(r"[-=~_*+|` .]+")
_IGNORED = re.compile(
    r"Benchmark '[\w-]+' started\.|Spun up \d+ procs .*|generate \d+ random keys .*"
    r"|[\s|]*Geomean:|[\s|]*(?:hits|important_hits) (?:throughput|latency): \d+\.\d+%"
)
_PROGRESS = re.compile(r"Iter +\d+[ (]")

_LOCAL = {
    "local-storage-cache-seq-get": ("sequential", "maps"),
    "local-storage-cache-int-get": ("interleaved", "maps"),
    "local-storage-cache-hashmap-control": ("hashmap", "keys"),
    "local_storage cache sequential get": ("sequential", "maps"),
    "local_storage cache interleaved get": ("interleaved", "maps"),
    "hashmap (control) sequential get": ("hashmap", "keys"),
}
_SIZE_OPTION = {"maps": "--nr_maps", "keys": "--hashmap_nr_keys_used"}
_FLAVOURS = {"preallocated": "preallocated", "normal bpf ma": "bpf_mem_alloc"}
_NOT_OF_THE_CASE = ("--duration", "--warmup", "--quiet", "--scenario", "--machine-readable")
_ROWS = {  # rows of the boxed table in a patch mail
    "hits throughput": ("hits_mops", "M ops/s"),
    "hits latency": ("get_ns", "ns/op"),
    "important_hits throughput": ("important_mops", "M ops/s"),
}


def read(lines: Iterable[tuple[int, str]]) -> Text:
    """Read numbered lines (see `labkit.store.mail`).

    Raises
    ------
    UsageError
        For more than `MAXIMUM_FIGURES` figures.
    """
    reader = _Reader()
    ahead: deque[tuple[int, str]] = deque()
    source = iter(lines)
    while True:
        while len(ahead) < 5 and (following := next(source, None)) is not None:
            ahead.append(following)
        if not ahead:
            break
        for _ in range(reader.take([(number, text) for number, text in ahead])):
            ahead.popleft()
    return reader.text


class _Reader:
    """Goes through a text and remembers what the lines before said of those that follow."""

    def __init__(self) -> None:
        self.text = Text()
        self._series = ""
        self._section = ""
        self._bench = ""
        self._prefix = ""
        self._options: dict[str, str] | None = None
        self._sizes: dict[str, int] = {}
        self._flavour = ""
        self._columns: list[str] = []
        self._box = ""
        self._harness = "kernel bench"

    def take(self, ahead: list[tuple[int, str]]) -> int:
        """Take the first line, with those that it goes on in; return how many were taken."""
        number, text = ahead[0]
        squeezed = " ".join(text.split())
        if not squeezed:
            self._columns = []
            return 1
        if len(squeezed) > _LINE_LENGTH:
            pass
        elif squeezed[0] in "|:" or squeezed.startswith("+-"):
            if self._table(number, squeezed):
                return 1
        elif _BEGUN.search(squeezed):
            # A line that was wrapped on its way goes on in the next ones.
            parts = [" ".join(part.split()) for _, part in ahead]
            for count in range(_together(parts), 0, -1):
                if self._figures(number, " ".join(parts[:count]), text):
                    return count
        if len(squeezed) <= _LINE_LENGTH and self._context(squeezed, text, ahead):
            return 1
        self.text.not_understood_count += 1
        if len(self.text.not_understood) < KEPT_LINES:
            self.text.not_understood.append((number, squeezed[:200]))
        return 1

    # -- what is not a figure ---------------------------------------------------------------------

    def _context(self, squeezed: str, text: str, ahead: list[tuple[int, str]]) -> bool:
        if _PROGRESS.match(squeezed):
            self.text.progress_lines += 1
            return True
        if found := _SETUP.fullmatch(squeezed):
            if self._bench != found[1]:
                self._bench, self._options = found[1], None
            self._harness = "kernel bench"
            return True
        if found := _COMMAND.search(squeezed):
            self._command(found)
            return True
        if _RULE.fullmatch(squeezed) or _IGNORED.fullmatch(squeezed):
            return True
        if found := re.fullmatch(r"num[_ ](keys|maps): (\d+)", squeezed):
            self._sizes = {found[1]: int(found[2])}
            return True
        title = squeezed.strip(" :*#")
        underline = ahead[1][1].strip() if len(ahead) > 1 else ""
        underlined = len(underline) >= 3 and len(set(underline)) == 1 and underline[0] in "=-~"
        if title.lower() in _FLAVOURS:
            self._flavour = _FLAVOURS[title.lower()]
            return True
        named = underlined or squeezed.endswith(":") or title.isupper() or squeezed[0] in "(#*<"
        if (
            len(title) <= _LABEL_LENGTH
            and _SERIES_WORDS.match(title)
            and (named or len(title.split()) == 1)
        ):
            self._series = title.strip("<>")
            self._section, self._sizes, self._flavour = "", {}, ""
            return True
        if len(title) <= _LABEL_LENGTH and (
            underlined
            or (
                text[:1] == " "
                and self._section
                and len(title) <= 40
                and re.fullmatch(r"[\w ,.:/()-]+", title)
                and squeezed[-1] not in ".,"
            )
        ):
            # The scripts' subtitles are indented under an underlined title.
            if underlined:
                self._section = title
            else:
                self._section = f"{self._section.partition(', ')[0]}, {title}"
            return True
        return False

    def _command(self, found: re.Match[str]) -> None:
        self._harness = "map_perf_test" if found[1] == "map_perf_test" else "kernel bench"
        self._bench, self._options, self._prefix = "", None, ""
        self._section, self._flavour, self._sizes = "", "", {}
        self._prefix = {"trigger": "trig-", "rename": "rename-"}.get(found[2], "")
        if found[1] == "bench":
            words = re.sub(r" (-[dwpc])(\d)", r" \1 \2", found[3]).replace("=", " ").split()
            self._bench = next((word for word in words if _NAME.match(word)), "")
            self._options = {
                word: "" if value.startswith("-") or value == self._bench else value
                for word, value in zip(words, [*words[1:], ""], strict=True)
                if word.startswith("-")
            }

    # -- figures ----------------------------------------------------------------------------------

    def _figures(self, number: int, squeezed: str, text: str) -> bool:
        for pattern, method in _FORMS:
            if found := pattern.fullmatch(squeezed):
                return bool(getattr(self, method)(number, found, text))
        return False

    def _add(
        self,
        number: int,
        metric: str,
        value: float,
        deviation: float | None = None,
        *,
        labels: Mapping[str, str | int] | None = None,
        experiment: str = GENERIC,
        series: str | None = None,
        n: int | None = None,
    ) -> None:
        if len(self.text.figures) >= MAXIMUM_FIGURES:
            raise UsageError(f"more than {MAXIMUM_FIGURES:,} figures: split the file")
        named = labels if labels is not None else self._generic(self._bench)
        if n is None and self._options is not None:
            duration = self._options.get("-d") or self._options.get("--duration") or "5"
            n = int(duration) + 1 if duration.isdecimal() else None
        self.text.figures.append(
            Figure(
                experiment=experiment,
                harness=self._harness,
                series=self._series if series is None else series,
                labels=tuple(
                    (k, v[:_LABEL_LENGTH] if isinstance(v, str) else v) for k, v in named.items()
                ),
                metric=metric,
                value=value,
                deviation=deviation,
                n=n,
                line=number,
            )
        )

    def _generic(self, bench: str) -> dict[str, str | int]:
        """Return labels of what is no experiment of ours: section, name, options that matter."""
        labels: dict[str, str | int] = {}
        if self._section:
            labels["section"] = self._section
        labels["bench"] = bench or "not named"
        options = self._options if bench == self._bench and self._options else {}
        kept = {
            key.lstrip("-"): value
            for key, value in options.items()
            if key.startswith("--") and key not in _NOT_OF_THE_CASE
        }
        if "-p" in options:
            kept["producers"] = options["-p"]
        if kept:
            labels["options"] = " ".join(f"{k} {v}".strip() for k, v in sorted(kept.items()))
        return labels

    def _hits(self, number: int, found: re.Match[str], text: str) -> bool:
        values = [float(one) if one else None for one in found.groups()[1:]]
        named = (found[1] or "").strip(" :")
        labels = self._generic(self._bench or named)
        for metric, (value, deviation) in zip(
            ("hits_mops", "drops_mops", "total_mops"),
            zip(values[::2], values[1::2], strict=True),
            strict=True,
        ):
            if value is not None:
                self._add(number, metric, value, deviation, labels=labels)
        return True

    def _operations(self, number: int, found: re.Match[str], text: str) -> bool:
        label, value, deviation, prefix, latency, unit = found.groups()
        factor = {"K": 1e-3, "M": 1}[prefix]
        to_ns = {"ns": 1, "us": 1e3, "ms": 1e6}[unit]
        name = self._bench if label.startswith("Summary") else self._prefix + label.strip(" :")
        labels = self._generic(name)
        self._add(
            number,
            "throughput_mops",
            float(value) * factor,
            float(deviation) * factor,
            labels=labels,
        )
        self._add(number, "latency_ns", float(latency) * to_ns, labels=labels)
        return True

    def _local_storage(self, number: int, found: re.Match[str], text: str) -> bool:
        label, hits, hits_sd, latency, important, important_sd = found.groups()
        label = " ".join(label.rstrip(" :").split())
        known = _LOCAL.get(self._bench if label == "Summary" else label)
        if known is None:
            return False
        variant, size = known
        sizes = dict(self._sizes)
        if label == "Summary":
            if self._options is None:
                return False
            asked = self._options.get(_SIZE_OPTION[size], "1000")
            sizes = {size: int(asked)} if asked.isdecimal() else {}
        if size not in sizes:
            return False
        labels = {"variant": variant, size: sizes[size]}
        more: dict[str, Any] = {"labels": labels, "experiment": "local-storage"}
        self._add(number, "get_ns", float(latency), **more)
        self._add(number, "hits_mops", float(hits), float(hits_sd), **more)
        self._add(number, "important_mops", float(important), float(important_sd), **more)
        return True

    def _false_hits(self, number: int, found: re.Match[str], text: str) -> bool:
        self._add(number, "false_hits_percent", float(found[1]))
        return True

    def _htab_mem(self, number: int, found: re.Match[str], text: str) -> bool:
        label, rate, rate_sd, memory, memory_sd, peak = found.groups()
        label = label.strip(" :")
        options = self._options or {}
        use_case = label if label != "Summary" else options.get("--use-case", "overwrite")
        if label == "Summary" and self._options is None:
            use_case = "not named"
        flavour = self._flavour or ("preallocated" if "--preallocated" in options else "")
        labels: dict[str, str | int] = {"variant": flavour} if flavour else {}
        labels |= {"use_case": use_case}
        more: dict[str, Any] = {"labels": labels, "experiment": "htab-mem"}
        self._add(number, "batches_kps", float(rate), float(rate_sd), **more)
        self._add(number, "memory_absolute_mib", float(memory), float(memory_sd), **more)
        if peak:
            self._add(number, "peak_mib", float(peak), **more)
        return True

    def _grace_period(self, number: int, found: re.Match[str], text: str) -> bool:
        metric = "latency_us" if found[1].endswith("latency") else "ticks_per_gp"
        self._add(
            number,
            metric,
            float(found[2]),
            float(found[3]),
            labels={"variant": "tasks_trace"},
            experiment="rcu-tasks-trace",
        )
        return True

    def _per_cpu_events(self, number: int, found: re.Match[str], text: str) -> bool:
        self._add(
            number,
            "events_per_s",
            float(found[3]),
            labels={"bench": found[2], "cpu": f"cpu {found[1]}"},
            n=1,
        )
        return True

    def _lookup(self, number: int, found: re.Match[str], text: str) -> bool:
        # Here, and nowhere else, the tool prints two standard deviations.
        label, cpu, value, twice, samples = found.groups()
        labels = self._generic(self._bench or "bpf-hashmap-lookup") | {"cpu": f"cpu {int(cpu)}"}
        if label.strip(" :"):
            labels["case"] = label.strip(" :")
        self._add(
            number,
            "lookups_mops",
            float(value),
            float(twice) / 2,
            labels=labels,
            n=int(samples),
        )
        return True

    def _listed(self, number: int, found: re.Match[str], text: str) -> bool:
        label, value, deviation = found[1], found[2], found[3]
        if not (":" in label or re.search(r"\S {2,}\d", text)):
            return False
        labels = self._generic(self._prefix + " ".join(label.strip(" :").split()))
        self._add(number, "hits_mops", float(value), float(deviation), labels=labels)
        drops, drops_sd, memory = found[4], found[5], found[6]
        if drops:
            self._add(number, "drops_mops", float(drops), float(drops_sd), labels=labels)
        if memory:
            self._add(number, "memory_mib", float(memory), labels=labels)
        return True

    def _creates(self, number: int, found: re.Match[str], text: str) -> bool:
        named = found[1].strip(" :")
        labels = self._generic(self._bench or named)
        if named and self._bench:
            labels["case"] = named
        self._add(number, "creates_kops", float(found[2]), float(found[3]), labels=labels)
        return True

    def _transfer(self, number: int, found: re.Match[str], text: str) -> bool:
        # What the tool prints after the sign is a rate, not a deviation.
        self._add(number, "total_mb", float(found[1]))
        self._add(number, "rate_mb_per_s", float(found[2]))
        return True

    def _result(self, number: int, found: re.Match[str], text: str) -> bool:
        pairs = dict(word.split("=", 1) for word in found[1].split())
        try:
            n = int(pairs["samples"])
            median, deviation, p99 = (float(pairs[key]) for key in ("median", "stddev", "p99"))
        except (KeyError, ValueError):
            return False
        labels = self._generic(self._bench or "xdp-lb") | {"case": pairs.get("scenario", "")}
        self._add(number, "median_ns", median, deviation, labels=labels, n=n)
        self._add(number, "p99_ns", p99, labels=labels, n=n)
        return True

    def _timed(self, number: int, found: re.Match[str], text: str) -> bool:
        name, median, deviation, p99, samples = found.groups()
        labels = self._generic(name)
        self._add(
            number, "median_ns", float(median), float(deviation), labels=labels, n=int(samples)
        )
        self._add(number, "p99_ns", float(p99), labels=labels, n=int(samples))
        return True

    # -- tables in mails --------------------------------------------------------------------------

    def _table(self, number: int, squeezed: str) -> bool:
        body = squeezed.strip("|").strip()
        if found := re.fullmatch(r"\+ num[_ ](keys|maps): (\d+)", body):
            self._sizes = {found[1]: int(found[2])}
            return True
        if re.fullmatch(r": *(?:<[^<>]+> *\| *)+<[^<>]+>", body):
            self._columns = re.findall(r"<([^<>]+)>", body)
            return True
        if found := re.fullmatch(r"\+-\+ (.+?)(?: \+[-+]*)?", body):
            self._box = " ".join(found[1].split())
            return True
        if found := re.fullmatch(r"\+- ([\w ]+?) \| (.+)", body):
            return self._box_row(number, found[1], found[2].split("|"))
        if squeezed.count("|") >= 3 and squeezed.startswith("|"):
            return self._markdown(number, [cell.strip() for cell in body.split("|")])
        return re.fullmatch(r"[+|: -]*(?:[A-Z][\w ]+)?[+|: -]*", squeezed) is not None

    def _box_row(self, number: int, title: str, cells: list[str]) -> bool:
        if title not in _ROWS or self._box not in _LOCAL:
            return False
        variant, size = _LOCAL[self._box]
        metric, unit = _ROWS[title]
        form = re.compile(rf"{_N}(?: \u00b1 {_N})? {re.escape(unit)}{_CHANGE}")
        found = [form.fullmatch(cell.strip()) for cell in cells]
        columns = self._columns or ["before", "after"][: len(cells)]
        if size not in self._sizes or not all(found) or len(columns) != len(cells):
            return False
        for column, one in zip(columns, found, strict=True):
            assert one is not None
            self._add(
                number,
                metric,
                float(one[1]),
                float(one[2]) if one[2] else None,
                labels={"variant": variant, size: self._sizes[size]},
                experiment="local-storage",
                series=column,
            )
        return True

    def _markdown(self, number: int, cells: list[str]) -> bool:
        if all(re.fullmatch(r":?-+:?", cell) for cell in cells):
            return True
        form = re.compile(rf"{_N}(?: \u00b1 {_N})? ?([KM])(?: ops)?/s(?: ?\({_N} ?(MB|MiB)\))?")
        found = [form.fullmatch(cell) for cell in cells[1:]]
        if not any(re.search(r"\d", cell) for cell in cells[1:]):
            self._columns = cells
            return True
        if not all(found) or len(self._columns) != len(cells):
            return False
        for column, one in zip(self._columns[1:], found, strict=True):
            assert one is not None
            factor = {"K": 1e-3, "M": 1}[one[3]]
            labels: dict[str, str | int] = {"bench": self._columns[0], "case": cells[0]}
            series = None
            if _SERIES_WORDS.match(column):
                series = column
            else:
                labels["column"] = column
            deviation = float(one[2]) * factor if one[2] else None
            more: dict[str, Any] = {"labels": labels, "series": series}
            self._add(number, "throughput_mops", float(one[1]) * factor, deviation, **more)
            if one[4]:
                memory = "memory_mb" if one[5] == "MB" else "memory_mib"
                self._add(number, memory, float(one[4]), **more)
        return True


_BEGUN = re.compile(
    r"Summary:|throughput|per-prod-op|\u00b1|^SUMMARY |^RESULT |\d:\w+.* per sec|: median "
    r"|per sec$|^\d+:\w"
)
_BEGINS = re.compile(
    r"(?:\w[^:\u00b1]*: *)?(?:Summary:|SUMMARY |RESULT |Iter |hits throughput|per-prod-op)"
    r"|\d+:\w+|cpu\d+:|num[_ ]|[#$] |[|+]|[\w-]+(?: \([\w ]+\))? *:? *\d+\.\d+ \u00b1"
)


def _together(parts: list[str]) -> int:
    """Return how many lines, the first included, can be one that was wrapped."""
    rest = (
        not part or len(part) > _LINE_LENGTH or _BEGINS.match(part) is not None
        for part in parts[1:4]
    )
    return 1 + next((count for count, begins in enumerate(rest) if begins), len(parts[1:4]))


_PROD = rf"\( ?{_N}M(?: ops)?/prod\)"

_FORMS: list[tuple[re.Pattern[str], str]] = [
    (
        re.compile(
            rf"((?:[^:]+: )?)Summary: hits {_PM}M/s {_PROD.replace(_N, '[0-9.]+')}, "
            rf"{_DROPS}(?:, total operations {_RATE})?"
        ),
        "_hits",
    ),
    (
        re.compile(
            rf"(Summary:) throughput {_MOPS} \( ?[0-9.]+[KM] ops/prod\), latency {_N} ([num]s)/op"
        ),
        "_operations",
    ),
    (
        re.compile(
            rf"([\w(). -]+?:?) hits throughput:? {_PM}M ops/s, hits latency:? {_N} ns/op, "
            rf"important_hits throughput:? {_PM}M ops/s"
        ),
        "_local_storage",
    ),
    (re.compile(rf"([\w(). -]+?:?) throughput: {_MOPS}, latency: {_N} ([num]s)/op"), "_operations"),
    (
        re.compile(rf"Summary: \d+ false hits of \d+ total operations\. Percentage = {_N} ?%"),
        "_false_hits",
    ),
    (
        re.compile(
            rf"([\w-]+:?) per-prod-op:? {_PM}k/s, (?:avg mem|memory usage):? {_PM}MiB"
            rf"(?:, peak mem(?:ory usage)?:? {_N}MiB)?"
        ),
        "_htab_mem",
    ),
    (
        re.compile(
            rf"SUMMARY (tasks_trace grace period latency|ticks per tasks_trace grace period) "
            rf"avg {_N}(?: us)? stddev {_N}(?: us)?"
        ),
        "_grace_period",
    ),
    (
        re.compile(
            rf"((?:[^:]+: )?)cpu(\d+): lookup {_N}M \u00b1 {_N}M events/sec "
            r"\(approximated from (\d+) samples of ~\d+ms\)"
        ),
        "_lookup",
    ),
    (re.compile(r"(\d+):([\w-]+(?: [\w-]+)*) (\d+) \w+ per sec"), "_per_cpu_events"),
    (
        re.compile(
            rf"((?:[^:]+: )?)Summary: creates {_PM}k/s \( ?[0-9.]+k/prod\)"
            r"(?:, [0-9.]+ (?:kmallocs/create|total))?"
        ),
        "_creates",
    ),
    (re.compile(rf"Summary: total trans {_N} MB \u00b1 {_N} MB/s"), "_transfer"),
    (re.compile(r"RESULT ([\w-]+=\S+(?: [\w-]+=\S+)*)"), "_result"),
    (
        re.compile(
            rf"([\w-]+(?: [\w-]+)*): median {_N} ns/op, stddev {_N}, p99 {_N} \((\d+) samples\)"
        ),
        "_timed",
    ),
    (
        re.compile(
            rf"([A-Za-z][\w() /.,-]*?\)? ?:?) ?{_RATE}"
            rf"(?: ?\({_DROPS}(?:,? mem {_N} MiB)?\))?{_CHANGE}(?: <<.*)?"
        ),
        "_listed",
    ),
]


def runs(text: Text, command: str) -> Iterator[tuple[str, Callable[[str], list[journal.Line]]]]:
    """Yield the experiment and the journal of each run that a text holds.

    The journal is a function of the run's id; see `labkit.store.journal` for its lines. `command`
    is the command line that reads the text again.
    """
    groups: dict[tuple[str, str], list[Figure]] = {}
    for figure in text.figures:
        groups.setdefault((figure.series, figure.experiment), []).append(figure)
    for (_, experiment), figures in groups.items():
        yield experiment, partial(_journal, figures=figures, text=text, command=command)


def _journal(
    identity: str, *, figures: list[Figure], text: Text, command: str
) -> list[journal.Line]:
    seen: dict[tuple[Any, str], int] = {}
    processes: dict[int, list[Figure]] = {}
    for figure in figures:
        key = (figure.labels, figure.metric)
        seen[key] = seen.get(key, -1) + 1
        processes.setdefault(seen[key], []).append(figure)
    cases = {labels: index for index, labels in enumerate(dict.fromkeys(f.labels for f in figures))}
    labels = list(dict.fromkeys(name for case in cases for name, _ in case))
    metrics = [METRICS[name] for name in METRICS if any(one.metric == name for one in figures)]
    first = figures[0]
    lines: list[journal.Line] = [
        {
            "kind": "run",
            "schema": journal.SCHEMA,
            "id": identity,
            "experiment": first.experiment,
            "parameters": {},
            "command": command,
            "repeat": len(processes),
            "series": first.series,
        }
    ]
    for process, printed in processes.items():
        lines.append(
            {
                "kind": "start",
                "boot": 0,
                "process": process,
                "experiment": first.experiment,
                "parameters": {},
                "labels": labels,
                "metrics": metrics,
                "harness": first.harness,
                "environment": {},
            }
        )
        lines += [
            {"kind": "case", "case": index, "labels": dict(case)} for case, index in cases.items()
        ]
        lines += [
            {
                "kind": "figure",
                "case": cases[one.labels],
                "control": False,
                "metric": one.metric,
                "value": one.value,
                "deviation": one.deviation,
                "n": one.n,
                "line": one.line,
            }
            for one in printed
        ]
        if process < len(processes) - 1:
            lines.append({"kind": "end", "status": "complete", "why": "as printed"})
    lines += [
        {"kind": "unread", "line": number, "text": words} for number, words in text.not_understood
    ]
    lines.append({"kind": "end", "status": "complete", "why": "as printed"})
    return lines
