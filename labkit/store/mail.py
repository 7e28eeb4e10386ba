# SPDX-License-Identifier: MIT
"""The lines of a text as people pass it on: a plain log, or a saved mail, as they were printed.

Undone are transfer encodings, character sets, quoting marks, soft line breaks, tabs, Windows line
ends, terminal colours and hard spaces. Plain text of any size passes through line by line.
"""

import email
import email.policy
import itertools
import re
from collections.abc import Iterable, Iterator
from email.message import EmailMessage
from typing import BinaryIO

from labkit.errors import UsageError

#: What is cut off a longer line is never a figure.
LINE_BYTES = 4096
MESSAGE_BYTES = 32 * 2**20
_HEAD_LINES = 200

Lines = Iterator[tuple[int, str]]

_HEADER = re.compile(rb"(?:>?From |[A-Za-z][A-Za-z0-9-]*:(?:\s|$)|[ \t])")
_OF_A_MAIL = re.compile(
    rb"^(?:From|Subject|Date|Message-ID|MIME-Version|Content-Type|Received):\s", re.I | re.M
)
_QUOTES = re.compile(r"^(?:\s*>)+ ?")
_ESCAPES = re.compile("\x1b\\[[0-9;?]*[A-Za-z]")
_SPACES = str.maketrans(dict.fromkeys("\t\xa0\u2007\u2009\u202f", " "))
_UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")
_PLUS_MINUS = re.compile(r"(?<=[\dMB]) ?(?:\+/-|\+-|\u00c2\u00b1) ?(?=\d)")


def lines(source: BinaryIO, name: str) -> Lines:
    """Yield number and text of each line of a log or of a saved mail's readable parts.

    Parameters
    ----------
    source
        The file, at its beginning.
    name
        What to call it in a message.

    Raises
    ------
    UsageError
        For an empty file, one that is no text, or a mail that is larger than `MESSAGE_BYTES`.
    """
    head = list(itertools.islice(_raw(source), _HEAD_LINES))
    if not any(raw.strip() for _, raw in head):
        raise UsageError(f"{name} is empty: it takes the text that the kernel's tool printed")
    begin = b"\n".join(raw for _, raw in head)
    if b"\0" in begin or begin.startswith(b"\x1f\x8b"):
        raise UsageError(f"{name} is no text: it takes a log or a saved mail, not compressed")
    everything = itertools.chain(head, _raw(source))
    if not _is_mail(head):
        for number, raw in everything:
            yield number, _printed(_decoded(raw))
        return
    for message in _messages(raw for _, raw in everything):
        if sum(map(len, message)) > MESSAGE_BYTES:
            raise UsageError(f"{name}: a mail of more than {MESSAGE_BYTES >> 20} MiB is not read")
        for number, text in enumerate(_body(message), 1):
            yield number, _printed(text)


def _raw(source: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """Yield numbered lines without their ends, none longer than LINE_BYTES."""
    number = 0
    while piece := source.readline(LINE_BYTES):
        number += 1
        whole = piece.endswith(b"\n")
        yield number, piece.rstrip(b"\r\n")
        while not whole and (rest := source.readline(LINE_BYTES)):
            whole = rest.endswith(b"\n")


def _is_mail(head: list[tuple[int, bytes]]) -> bool:
    """Return whether the text begins with a mail's header, which ends with an empty line."""
    header = list(itertools.takewhile(bool, (raw for _, raw in head)))
    return (
        all(_HEADER.match(raw) for raw in header)
        and len(_OF_A_MAIL.findall(b"\n".join(header))) >= 2
    )


def _messages(raws: Iterable[bytes]) -> Iterator[list[bytes]]:
    """Yield the messages of a mailbox, or the only one."""
    message: list[bytes] = []
    size = 0
    for raw in raws:
        if raw.startswith(b"From ") and (not message or not message[-1]):
            if message:
                yield message
            message, size = [], 0
            continue
        if size <= MESSAGE_BYTES:  # one too large is cut, and refused by its size
            message.append(raw)
            size += len(raw)
    yield message


def _body(message: list[bytes]) -> Iterator[str]:
    parsed = email.message_from_bytes(b"\n".join(message), policy=email.policy.default)
    for part in parsed.walk():
        if part.get_content_type() == "text/plain" and isinstance(part, EmailMessage):
            payload = part.get_payload(decode=True)
            if not isinstance(payload, bytes):
                continue
            charset = part.get_content_charset("utf-8")
            texts = (_decoded(raw.rstrip(b"\r"), charset) for raw in payload.split(b"\n"))
            flowed = str(part.get_param("format", "")).lower() == "flowed"
            yield from _unflowed(texts) if flowed else texts


def _unflowed(texts: Iterable[str]) -> Iterator[str]:
    """Undo soft line breaks: a line that ends in a space goes on in the next (RFC 3676)."""
    paragraph = ""
    for text in texts:
        stuffed = text.removeprefix(" ")
        paragraph += _QUOTES.sub("", stuffed) if paragraph else stuffed
        if not text.endswith(" ") or text == "-- ":
            yield paragraph
            paragraph = ""
    if paragraph:
        yield paragraph


def _decoded(raw: bytes, charset: str = "utf-8") -> str:
    for name in (charset, "utf-8"):
        try:
            return raw.decode(name)
        except (UnicodeDecodeError, LookupError):
            continue
    return raw.decode("latin-1")


def _printed(text: str) -> str:
    """Return a line as the tool printed it, safe to print again."""
    if "\x1b" in text:
        text = _ESCAPES.sub("", text)
    if ">" in text:
        text = _QUOTES.sub("", text)
    text = _UNPRINTABLE.sub("?", text.translate(_SPACES)).rstrip()
    return _PLUS_MINUS.sub(" \u00b1 ", text)
