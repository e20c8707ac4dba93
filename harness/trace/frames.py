"""From a file to lines: whole frames only, and one line that says what is wrong with the rest."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import msgspec

from harness.errors import UsageError
from harness.record.format import FORMAT, MAGIC, VERSION, Header, Line, zstandard

CHUNK = 1 << 20
LARGEST = 64 << 20
"""Decompressed bytes of one frame; a recorder's frames are far smaller."""
_DECODER: msgspec.json.Decoder[Line] = msgspec.json.Decoder(Line)


class TraceError(UsageError):
    """A trace that cannot be read, or not further; the text names the file, what is wrong and where."""


class Truncated(TraceError):
    """The file ends within a frame: everything before it was read."""


def frames(file: Path) -> Iterator[bytes]:
    """Yield the content of each frame. Raises TraceError where the file is no trace, or none any more."""
    try:
        with file.open("rb") as handle:
            yield from _frames(file, handle)
    except OSError as error:
        raise TraceError(f"{file}: cannot be read ({error.strerror}); check its name and rights") from error


def _frames(file: Path, handle: BinaryIO) -> Iterator[bytes]:
    module = zstandard()
    pending = handle.read(CHUNK)
    if not pending.startswith(MAGIC):
        what = "is empty" if not pending else "does not begin as zstd does"
        raise TraceError(f"{file}: is no trace: it {what}; a recorder writes NAME.rankN.jsonl.zst")
    number = 0
    while pending:
        number += 1
        decompressor = module.ZstdDecompressor().decompressobj()
        content = bytearray()
        while True:
            try:
                content += decompressor.decompress(pending)
            except module.ZstdError as error:
                text = f"{file}: is damaged in frame {number} ({error})"
                raise TraceError(f"{text}; `trace cut` keeps what comes before it") from error
            if len(content) > LARGEST:
                raise TraceError(f"{file}: frame {number} holds more than {LARGEST >> 20} MiB: is no trace")
            if decompressor.eof:
                break
            pending = handle.read(CHUNK)
            if not pending:
                raise Truncated(f"{file}: is truncated within frame {number}; what comes before it is whole")
        yield bytes(content)
        pending = decompressor.unused_data or handle.read(CHUNK)


def lines(file: Path) -> Iterator[Line]:
    """Yield all lines, the header first. Raises TraceError as `frames` does, and for another version."""
    header: Header | None = None
    number = 0
    for content in frames(file):
        for text in content.splitlines():
            number += 1
            line = _first(file, text) if header is None else _line(file, text, number)
            if header is None:
                assert isinstance(line, Header)
                header = line
            yield line


def _first(file: Path, text: bytes) -> Header:
    """Return the header; its format and version are looked at before its other keys."""
    try:
        head = msgspec.json.decode(text)
    except msgspec.DecodeError:
        head = None
    if not isinstance(head, dict) or head.get("format") != FORMAT:
        raise TraceError(f"{file}: is no trace of this package: its first line is no {FORMAT} header")
    if head.get("version") != VERSION:
        raise TraceError(
            f"{file}: is a trace of version {head.get('version')}; this package reads version {VERSION}"
        )
    line = _line(file, text, 1)
    if not isinstance(line, Header):
        raise TraceError(f"{file}: line 1 is no header")
    return line


def _line(file: Path, text: bytes, number: int) -> Line:
    try:
        return _DECODER.decode(text)
    except msgspec.MsgspecError as error:
        raise TraceError(f"{file}: line {number} is no line of a trace ({error})") from error
