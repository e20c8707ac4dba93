"""A trace file that grows by whole frames and stays within its limits.

Past half of the limit it becomes `NAME.before.jsonl.zst`, in place of an older one, and a new file begins
that stands alone: header, the captures in force, page tables in full.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from harness.record.format import SUFFIX, Frames, Header, Line

BEFORE = ".before"
BATCH = 64
"""Records of one frame at most."""


class Limits(msgspec.Struct, frozen=True):
    """How much of a recording is kept, both parts of a file together."""

    records: int = 1_000_000
    bytes: int = 512 << 20


class Output:
    """One trace file."""

    def __init__(self, path: Path, header: Header, limits: Limits) -> None:
        """Create the file with its header. Raises OSError."""
        self.path = path
        self._header, self._limits = header, limits
        self._frames = Frames()
        self._file = -1
        self._records = self._bytes = 0
        self._begin()

    def write(self, lines: list[Line], records: int) -> None:
        """Append lines as one frame. Raises OSError; on a full disk part of it may have arrived."""
        frame = self._frames.frame(lines)
        left = memoryview(frame)
        while left:
            left = left[os.write(self._file, left) :]
        self._records += records
        self._bytes += len(frame)

    @property
    def half_full(self) -> bool:
        """Whether it holds half of what may be kept."""
        return 2 * self._records >= self._limits.records or 2 * self._bytes >= self._limits.bytes

    def turn(self) -> None:
        """Make what is written the older part and begin a new file."""
        self.close()
        os.replace(self.path, before_of(self.path))
        self._header = msgspec.structs.replace(self._header, continues=True)
        self._begin()

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)

    def _begin(self) -> None:
        self._file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o644)
        self._records = self._bytes = 0
        self.write([self._header], 0)


def before_of(path: Path) -> Path:
    """Return the name of a trace's older part."""
    return path.with_name(path.name.removesuffix(SUFFIX) + BEFORE + SUFFIX)


def columns_of(mode: str, length: int, header: Header) -> int:
    """Return how many page columns a request's tokens reach, those that a verification adds included."""
    tokens = length + (header.draft_tokens if mode == "target_verify" else 0)
    return min(-(-tokens // header.page_tokens), -(-header.width // header.page_tokens))
