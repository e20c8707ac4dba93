"""The trace format: JSON Lines, a batch of whole lines in each zstd frame, a header first.

Every frame has a checksum and stands alone, so whatever was written before a process was killed can be read.
Page tables are written as what changed: a request's pages are said in full once, then from the first column
that differs. Field names are the keys of the lines.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeAlias

import msgspec

from harness.errors import UsageError

FORMAT = "replay-harness-trace"
VERSION = 1
SUFFIX = ".jsonl.zst"
LEVEL = 3
"""zstd's own default."""
MAGIC = b"\x28\xb5\x2f\xfd"
"""The first bytes of every zstd frame."""

IDS, DIGEST, NONE = "ids", "digest", "none"
PAGES = (IDS, DIGEST, NONE)
"""How a page table is kept: page ids, a digest of each request's live ids, or not at all."""


class Header(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="header"):
    """The first line."""

    format: str
    version: int
    rank: int
    world: int
    """Ranks in all."""
    started: str
    """UTC, ISO 8601, when recording began."""
    system: str
    software: dict[str, str]
    pool: int
    """`P`, tokens that one pooled index key stands for."""
    page_tokens: int
    """Tokens of one model page, the unit of `pages`."""
    width: int
    """Columns of the request table, tokens."""
    requests: int
    """Rows of the request table; row 0 is padding's."""
    steps: int
    """`S`, speculative steps; 0 where none was seen."""
    draft_tokens: int
    """`N`; 0 where it is unknown."""
    pages: str
    """One of `PAGES`."""
    flags: dict[str, str] = {}
    """Settings of the backend that decide what a refresh does."""
    continues: bool = False
    """Whether an older part of this trace was written before it (and may be gone)."""


Pages: TypeAlias = tuple[int, tuple[int, ...]] | None
"""First column that differs from what was known of the request, and the live page ids from there on; None:
nothing differs."""


class Record(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one capture or refresh was given; live rows only."""

    n: int
    """Number of the call, from 0; numbers that are missing were not recorded."""
    t: int
    """Microseconds since `Header.started`, on a monotonic clock."""
    mode: str
    """`decode`, `target_verify` or `draft_extend`; another forward mode under its own name."""
    bucket: int
    steps: int = 1
    """Draft steps that are refreshed."""
    lengths: tuple[int, ...] = ()
    requests: tuple[int, ...] = ()
    pages: tuple[Pages, ...] = ()
    digests: tuple[str, ...] = ()
    """With `DIGEST`: SHA-256 of each request's live page ids, as int32, 16 hex digits."""
    accepted: tuple[int, ...] = ()
    """Draft-extend: accepted tokens per request."""
    flags: tuple[str, ...] = ()
    """`mirror`: the host was given lengths, too."""


class CaptureRecord(Record, frozen=True, kw_only=True, omit_defaults=True, tag_field="kind", tag="capture"):
    """A bucket is captured with these inputs in place."""


class RefreshRecord(Record, frozen=True, kw_only=True, omit_defaults=True, tag_field="kind", tag="refresh"):
    """A bucket's metadata is refreshed for a replay."""


class Gap(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="gap"):
    """Calls that were not recorded because the writer was behind."""

    lost: int


class End(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="end"):
    """The last line of a recorder that was closed."""

    records: int
    lost: int = 0


Line: TypeAlias = Header | CaptureRecord | RefreshRecord | Gap | End
_ENCODER = msgspec.json.Encoder()


def encode(lines: Iterable[Line]) -> bytes:
    """Return lines as JSON Lines."""
    return b"".join(_ENCODER.encode(line) + b"\n" for line in lines)


def zstandard() -> Any:
    """Return the module. Raises UsageError where it is not installed."""
    try:
        import zstandard as module
    except ModuleNotFoundError as error:
        raise UsageError("traces need the package zstandard: pip install zstandard") from error
    return module


class Frames:
    """Compresses batches of lines, each to a frame of its own."""

    def __init__(self) -> None:
        """Make one compressor for all frames; not for several threads."""
        self._compressor = zstandard().ZstdCompressor(level=LEVEL, write_checksum=True)

    def frame(self, lines: Iterable[Line]) -> bytes:
        """Return the lines as one frame."""
        compressed: bytes = self._compressor.compress(encode(lines))
        return compressed
