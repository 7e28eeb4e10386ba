# SPDX-License-Identifier: MIT
"""What the kernel's tool printed, read back: every form, through every kind of mail.

The texts in ``tests/texts`` are written after the tool's formats and the layouts of patch mails.
"""

import io
import json
import time
import tracemalloc
from email.message import EmailMessage
from email.policy import SMTP
from pathlib import Path

import pytest
from conftest import lab

from labkit.errors import UsageError
from labkit.store import imported, mail
from labkit.store.imported import Figure, Text

TEXTS = Path(__file__).parent / "texts"


def read(content: bytes | str) -> Text:
    data = content.encode() if isinstance(content, str) else content
    return imported.read(mail.lines(io.BytesIO(data), "text"))


def of(name: str) -> Text:
    return read((TEXTS / f"{name}.txt").read_bytes())


def only(content: bytes | str) -> list[tuple[str, float, float | None]]:
    found = read(content)
    assert not found.not_understood
    return [(one.metric, one.value, one.deviation) for one in found.figures]


def values(figures: list[Figure], **labels: object) -> dict[str, tuple[float, float | None]]:
    return {
        one.metric: (one.value, one.deviation)
        for one in figures
        if labels.items() <= (dict(one.labels) | {"series": one.series}).items()
    }


def test_every_line_of_the_scripts_and_the_tool_is_understood():
    found = of("script_output")
    assert found.not_understood == []
    assert found.progress_lines == 2
    assert {one.experiment for one in found.figures} == {
        *("local-storage", "htab-mem", "rcu-tasks-trace", "kernel-bench"),
    }
    local = values(found.figures, variant="interleaved", maps=1)
    assert local == {
        "get_ns": (152.938, None),
        "hits_mops": (6.539, 0.209),
        "important_mops": (6.539, 0.209),
    }
    memory = values(found.figures, variant="bpf_mem_alloc", use_case="add_del_on_diff_cpu")
    assert memory["batches_kps"] == (21.25, 0.24)
    assert memory["memory_absolute_mib"] == (17.5, 3.32)
    assert memory["peak_mib"] == (28.87, None)


@pytest.mark.parametrize(
    ("line", "figures"),
    [
        (
            "Summary: hits    1.877 ± 0.047M/s (  1.877M/prod), drops    0.000 ± 0.000M/s, "
            "total operations    1.877 ± 0.047M/s",
            [("hits_mops", 1.877, 0.047), ("drops_mops", 0, 0), ("total_mops", 1.877, 0.047)],
        ),
        (  # before total operations were printed
            "Summary: hits   20.500 ± 0.100M/s (  5.125M/prod), drops    0.001 ± 0.002M/s",
            [("hits_mops", 20.5, 0.1), ("drops_mops", 0.001, 0.002)],
        ),
        (
            "Summary: throughput   74.617 ± 0.008 M ops/s ( 74.617M ops/prod), "
            "latency   13.402 ns/op",
            [("throughput_mops", 74.617, 0.008), ("latency_ns", 13.402, None)],
        ),
        (  # K is a thousandth of M, and a ms a million ns
            "Summary: throughput    1.500 ± 0.250 K ops/s (  1.500K ops/prod), "
            "latency    0.667 ms/op",
            [("throughput_mops", 0.0015, 0.00025), ("latency_ns", 667_000.0, None)],
        ),
        (  # here, and only here, two standard deviations are printed
            "cpu01: lookup 50.739M ± 0.018M events/sec (approximated from 32 samples of ~19ms)",
            [("lookups_mops", 50.739, 0.009)],
        ),
        (
            "Summary: per-prod-op   40.07 ±   14.28k/s, memory usage    0.50 ±    0.25MiB, "
            "peak memory usage    1.00MiB",
            [
                ("batches_kps", 40.07, 14.28),
                ("memory_absolute_mib", 0.5, 0.25),
                ("peak_mib", 1, None),
            ],
        ),
        (
            "overwrite  per-prod-op 115.90 ± 0.04k/s, avg mem  2.14 ± 0.12MiB",
            [("batches_kps", 115.9, 0.04), ("memory_absolute_mib", 2.14, 0.12)],
        ),
        (  # what stands after the sign is a rate
            "Summary: total trans   1234 MB ± 246 MB/s",
            [("total_mb", 1234, None), ("rate_mb_per_s", 246, None)],
        ),
        ("1:hash_map_full_perf 15687 events per sec", [("events_per_s", 15687, None)]),
        ("0:hash_map_perf pre-alloc 1043397 events per sec", [("events_per_s", 1043397, None)]),
        ("0:hash_lookup 12345678 lookups per sec", [("events_per_s", 12345678, None)]),
        (
            "RESULT scenario=tcp samples=200 median=84.2 stddev=0.11 cv=0.1 min=84 p99=84.9 max=85",
            [("median_ns", 84.2, 0.11), ("p99_ns", 84.9, None)],
        ),
        (
            "bpf-nop: median 0.71 ns/op, stddev 0.11, p99 1.08 (180 samples)",
            [("median_ns", 0.71, 0.11), ("p99_ns", 1.08, None)],
        ),
        (
            "no bpf_ma: Summary: creates   31.962 ± 0.486k/s ( 31.962k/prod), 6.13 kmallocs/create",
            [("creates_kops", 31.962, 0.486)],
        ),
        (
            "SUMMARY tasks_trace grace period latency\tavg 22298.551 us\tstddev 1302.165 us",
            [("latency_us", 22298.551, 1302.165)],
        ),
        (
            "SUMMARY ticks per tasks_trace grace period\tavg 2.291\tstddev 0.324",
            [("ticks_per_gp", 2.291, 0.324)],
        ),
        ("kprobe-multi-all:    6.283 ± 0.005M/s << look this", [("hits_mops", 6.283, 0.005)]),
        ("base      : 2.743 ± 0.012M/s", [("hits_mops", 2.743, 0.012)]),
    ],
)
def test_each_form_is_read_with_its_units(line, figures):
    assert only(line + "\n") == [(name, pytest.approx(v), s) for name, v, s in figures]


@pytest.mark.parametrize(
    "line",
    [
        "Summary: hits    1.877 ± 0.047G/s (  1.877G/prod), drops    0.000 ± 0.000G/s",
        "Summary: hits    1.877 ± 0.047M/s (  1.877M/prod), drops    nan ± 0.000M/s",
        "Summary: throughput   74.617 ± 0.008 ops/s ( 74.617M ops/prod), latency   13.402 ns/op",
        "SUMMARY tasks_trace grace period latency\tavg -nan us\tstddev -nan us",
        "hashmap (control) sequential get: hits throughput: 20.900 ± 0.334 M ops/s",
        # How many maps is not said: nothing before it named them.
        "local_storage cache sequential  get:  hits throughput: 3.793 ± 0.101 M ops/s, hits "
        "latency: 263.623 ns/op, important_hits throughput: 3.793 ± 0.101 M ops/s",
        "some new cache sequential  get:  hits throughput: 3.793 ± 0.101 M ops/s, hits "
        "latency: 263.623 ns/op, important_hits throughput: 3.793 ± 0.101 M ops/s",
        "about 3.5 M/s, I think",
        "cpu01 50.739",
        "RESULT scenario=tcp samples=many median=84.2 stddev=0.11 p99=84.9",
        "RESULT " + "a=b" * 200 + "  x",
    ],
)
def test_what_is_not_understood_is_listed_and_never_guessed(line):
    found = read(f"\n{line}\n")
    assert found.figures == []
    assert [number for number, _ in found.not_understood] == [2]


def test_a_table_of_two_columns_is_two_runs():
    found = of("m1")
    assert found.not_understood == []
    assert values(found.figures, series="before", keys=100_000)["get_ns"] == (198.483, None)
    assert values(found.figures, series="after", keys=100_000)["get_ns"] == (194.27, None)
    assert values(found.figures, series="after", maps=1000)["hits_mops"] == (0.354, None)
    assert len(found.figures) == 12


def test_baseline_and_after_are_two_runs():
    found = of("m3")
    assert found.not_understood == []
    assert [(one.series, one.value) for one in found.figures] == [
        *(("BASELINE", 9.937), ("BASELINE", 10.44), ("AFTER", 10.106), ("AFTER", 10.515)),
    ]


def test_numbered_variants_are_runs_of_their_own():
    found = of("m5")
    assert found.not_understood == [(1, "Here is the comparison of the three maps:")]
    titles = dict.fromkeys(one.series for one in found.figures)
    assert list(titles) == [
        "(1) non-preallocated + no bpf memory allocator (v6.0.19)",
        "(2) preallocated",
    ]
    kmalloc = values(found.figures, use_case="overwrite", series=next(iter(titles)))
    assert kmalloc["memory_absolute_mib"] == (82.64, 26.32)


def test_a_markdown_table_of_rates_with_memory():
    found = of("m6")
    assert found.not_understood == []
    assert len(found.figures) == 16
    long = values(found.figures, case="4096", column="dynptr hash-map")
    assert long == {"throughput_mops": (0.6, None), "memory_mb": (23.0, None)}
    names = values(found.figures, bench="string in file", column="normal hash-map")
    assert names["throughput_mops"] == (6.8, None)


def test_threads_by_variant():
    found = of("m7")
    assert found.not_understood == []
    assert values(found.figures, bench="qp-trie lookup (1 thread)") == {
        "hits_mops": (10.161, 0.008),
        "drops_mops": (0.006, 0.0),
        "memory_mib": (4.847, None),
    }


def test_the_command_line_says_name_options_and_samples():
    found = read(
        "$ sudo ./bench -w1 -d10 -p4 bloom-lookup --nr_entries 1000\n"
        "Summary: hits   20.500 ± 0.100M/s (  5.125M/prod), drops    0.000 ± 0.000M/s\n"
        "$ ./bench --nr_maps=17 local-storage-cache-seq-get\n"
        "Summary: hits throughput   37.517 ± 4.846 M ops/s, hits latency   26.655 ns/op, "
        "important_hits throughput    3.752 ± 0.485 M ops/s\n"
    )
    bloom, _, get, *_ = found.figures
    assert dict(bloom.labels) == {
        "bench": "bloom-lookup",
        "options": "nr_entries 1000 producers 4",
    }
    assert bloom.n == 11  # the tool takes one sample more than seconds
    assert dict(get.labels) == {"variant": "sequential", "maps": 17}
    assert get.n == 6


def test_a_repeated_script_is_repeated_processes(tmp_path):
    text = "origin:\n" + 4 * "# benchs/run_bench_trigger.sh\nkprobe : 1.5 ± 0.1M/s\n"
    text += "patched:\n" + 2 * "# benchs/run_bench_trigger.sh\nkprobe : 1.6 ± 0.1M/s\n"
    (_, before), (_, after) = imported.runs(read(text), "./lab import -")
    assert [line["process"] for line in before("r") if line["kind"] == "start"] == [0, 1, 2, 3]
    assert after("r")[0]["series"] == "patched"
    assert after("r")[0]["repeat"] == 2


# -- mails ----------------------------------------------------------------------------------------

SCRIPT = (TEXTS / "script_output.txt").read_text()


def wrapped(text: str, width: int = 74) -> str:
    """Wrap as mail programs do: at spaces."""
    lines = []
    for line in text.splitlines():
        while len(line) > width and " " in line[:width].strip():
            cut = line[:width].rstrip().rfind(" ")
            lines.append(line[:cut])
            line = line[cut + 1 :]
        lines.append(line)
    return "\n".join(lines) + "\n"


def message(text: str, **more: str) -> bytes:
    made = EmailMessage()
    made["From"], made["Subject"] = "someone@example.org", "Re: [PATCH bpf-next] numbers"
    made.set_content(text, **more)
    return made.as_bytes(policy=SMTP)


def key(found: Text) -> list[tuple[object, ...]]:
    return [(one.labels, one.metric, one.value, one.deviation, one.n) for one in found.figures]


@pytest.mark.parametrize(
    "changed",
    [
        lambda text: text.replace("\n", "\r\n").encode(),
        lambda text: text.encode("latin-1"),
        lambda text: text.replace("±", "+-").encode(),
        lambda text: text.replace("±", "+/-").encode(),
        lambda text: text.replace(" ± ", "\u00a0±\u00a0").encode(),
        lambda text: "".join(f"> > {line}\n" for line in text.splitlines()).encode(),
        lambda text: "".join(f">> {line}\n" for line in text.splitlines()).encode(),
        lambda text: text.replace("Summary", "\x1b[1mSummary\x1b[0m").encode(),
        lambda text: wrapped(text).encode(),
        lambda text: "".join(f"> {line}\n" for line in wrapped(text).splitlines()).encode(),
        lambda text: message(text, cte="base64"),
        lambda text: message(text, cte="quoted-printable"),
        lambda text: message(text, cte="8bit"),
        lambda text: message(text, cte="quoted-printable", charset="latin-1"),
        lambda text: b"From someone Mon Jan  5\n" + message(text).replace(b"\r\n", b"\n"),
    ],
    ids=(
        *("windows", "latin-1", "plus-minus", "slashed", "hard-spaces", "quoted", "quoted-twice"),
        *("coloured", "wrapped", "wrapped-and-quoted", "base64", "quoted-printable", "8bit"),
        *("latin-1-mail", "mbox"),
    ),
)
def test_however_it_was_passed_on_the_figures_are_the_same(changed):
    assert key(read(changed(SCRIPT))) == key(read(SCRIPT))


def test_soft_line_breaks_are_undone():
    lines = [line.rstrip() for line in SCRIPT.splitlines()]
    flowed = "\r\n".join(line.replace(", ", ", \r\n") for line in lines)
    head = (
        "From: a@example.org\r\nSubject: x\r\nMIME-Version: 1.0\r\n"
        "Content-Type: text/plain; charset=utf-8; format=flowed\r\n"
        "Content-Transfer-Encoding: 8bit\r\n\r\n"
    )
    assert key(read((head + flowed).encode())) == key(read(SCRIPT))


def test_a_mailbox_of_several_mails_and_their_other_parts():
    made = EmailMessage()
    made["From"], made["Subject"] = "a@example.org", "x"
    made.set_content("kprobe : 1.5 ± 0.1M/s\n")
    made.add_alternative("<p>kprobe : 9.9 ± 0.1M/s</p>", subtype="html")
    made.add_attachment(b"\0\1\2", maintype="application", subtype="octet-stream")
    made.add_attachment("fentry : 2.5 ± 0.1M/s\n", filename="log.txt")
    box = b"".join(b"From a Mon Jan 5\n" + made.as_bytes() + b"\n\n" for _ in range(2))
    assert [one.value for one in read(box).figures] == [1.5, 2.5, 1.5, 2.5]


def test_an_unknown_charset_or_broken_encoding_loses_no_figure():
    raw = message("kprobe : 1.5 ± 0.1M/s\n", cte="8bit")
    assert len(read(raw.replace(b"utf-8", b"x-none")).figures) == 1
    assert len(read(raw.replace(b"\xc2\xb1", b"\xb1")).figures) == 1


# -- bad input ------------------------------------------------------------------------------------


@pytest.mark.parametrize("content", [b"", b"\n \n", b"\n" * 100])
def test_an_empty_file_is_refused(content):
    with pytest.raises(UsageError, match="is empty"):
        read(content)


@pytest.mark.parametrize(
    "content", [b"\x7fELF\2\1\1\0\0", b"\x1f\x8b\x08x", "kprobe : 1 ± 1M/s".encode("utf-16")]
)
def test_what_is_no_text_is_refused(content):
    with pytest.raises(UsageError, match="is no text"):
        read(content)


class _Repeated(io.RawIOBase):
    """Two hundred megabytes that take no room."""

    def __init__(self, line: bytes, size: int) -> None:
        self._block, self._left, self._at = line * (65536 // len(line) + 1), size, 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:
        count = min(len(buffer), self._left, len(self._block) - self._at)
        buffer[:count] = self._block[self._at : self._at + count]
        self._left -= count
        self._at = (self._at + count) % len(self._block)
        return count


@pytest.mark.slow
@pytest.mark.parametrize(
    "line",
    [
        b"Iter   3 ( -8.255us): hits    1.877M/s (  1.877M/prod), drops    0.000M/s, total "
        b"operations    1.877M/s\n",
        b"prose with 12.5 numbers in it and a number of words, 34 of them, as mails have them.\n",
        b"x" * 65536,
    ],
    ids=("progress", "prose", "one-line"),
)
def test_a_file_of_200_mb_is_read_in_little_memory_and_time(line):
    source = io.BufferedReader(_Repeated(line, 200_000_000))
    begin = time.monotonic()
    found = imported.read(mail.lines(source, "large"))
    assert time.monotonic() - begin < 300
    assert found.figures == []
    assert len(found.not_understood) <= imported.KEPT_LINES


def test_memory_does_not_grow_with_the_file():
    def peak(size: int) -> int:
        tracemalloc.start()
        imported.read(mail.lines(io.BufferedReader(_Repeated(b"no figure 1.5\n", size)), "x"))
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return most

    assert peak(2_000_000) < 1.5 * peak(500_000)


def test_too_many_figures_are_refused():
    line = "kprobe : 1.5 ± 0.1M/s\n".encode()
    with pytest.raises(UsageError, match="more than 200,000 figures"):
        read(line * (imported.MAXIMUM_FIGURES + 1))


def test_a_mail_that_is_too_large_is_refused(monkeypatch):
    monkeypatch.setattr(mail, "MESSAGE_BYTES", 1000)
    with pytest.raises(UsageError, match="is not read"):
        read(message("kprobe : 1.5 ± 0.1M/s\n" * 100))


def test_lines_that_would_take_for_ever_do_not():
    begin = time.monotonic()
    for evil in ("RESULT " + "a=" * 1900, "+" + "a " * 1900 + "!", "| " * 1900, "a " * 1900 + "±"):
        read(f"{evil}\n" * 50)
    assert time.monotonic() - begin < 20


# -- the command ----------------------------------------------------------------------------------


def test_import_prints_runs_that_can_be_shown_and_compared(homes):
    ended = lab("import", str(TEXTS / "m3.txt"))
    assert ended.returncode == 0, ended.stderr
    before, after = ended.stdout.split()
    assert "9.94 ± 0.17" in lab("show", before).stdout
    compared = lab("compare", before, after)
    assert compared.returncode == 0, compared.stderr
    assert "n too small (need 6)" in compared.stdout
    header = json.loads((Path(before) / "journal.jsonl").read_text().splitlines()[0])
    assert header["series"] == "BASELINE"


def test_import_lists_what_it_did_not_understand(homes):
    ended = lab("import", str(TEXTS / "m5.txt"))
    assert "line 1 not understood: Here is the comparison of the three maps:" in ended.stderr


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nothing.txt", "cannot read nothing.txt: No such file"),
        ("/", "cannot read /: Is a directory"),
        ("/dev/null", "/dev/null is empty"),
    ],
)
def test_a_file_that_cannot_be_read_is_refused(homes, name, message):
    ended = lab("import", name)
    assert ended.returncode == 2
    assert message in ended.stderr
    assert len(ended.stderr.splitlines()) == 1


def test_a_text_without_figures_is_an_error_that_lists_its_lines(homes, tmp_path):
    (tmp_path / "prose.txt").write_text("Hi all,\nit is faster now.\n")
    ended = lab("import", str(tmp_path / "prose.txt"))
    assert ended.returncode == 1
    assert "no figures of the kernel's tool" in ended.stderr
    assert "line 2 not understood: it is faster now." in ended.stderr


def test_nothing_in_a_log_reaches_a_terminal_or_a_page_as_more_than_text(homes, tmp_path):
    evil = "<script>alert(1)</script> \x1b]0;x\x07 : 1.5 ± 0.1M/s\n(1) <b>$(touch x)</b>\n"
    evil += "a<img src=x> : 1.5 ± 0.1M/s\nkprobe (`id`) : 1.5 ± 0.1M/s\nok : 1.5 ± 0.1M/s\n"
    (tmp_path / "$(touch y).txt").write_text(evil)
    ended = lab("import", str(tmp_path / "$(touch y).txt"))
    assert ended.returncode == 0, ended.stderr
    shown = lab("show", ended.stdout.split("\n")[0]).stdout
    assert "\x1b" not in ended.stderr + shown
    assert "'" in shown.partition("figures")[0]  # the file's name is quoted in the command
    assert not (tmp_path / "x").exists()
    assert not (tmp_path / "y").exists()
