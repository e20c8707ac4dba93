"""The recorder's thread: takes filled slots, writes lines, never calls into the server.

A file is bounded: past half of the limit it becomes `NAME.before.jsonl.zst`, in place of an older one, and a
new one begins that stands alone: header, the captures in force, page tables in full.
"""

from __future__ import annotations

import logging
import os
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np

from harness.record.format import (
    DIGEST,
    IDS,
    SUFFIX,
    CaptureRecord,
    End,
    Frames,
    Gap,
    Header,
    Line,
    Pages,
    RefreshRecord,
)
from harness.record.known import KnownPages, page_digest
from harness.record.slots import Meta, Slot

BEFORE = ".before"
POLL_S = 0.0005
"""Between two looks at an event that has not come yet."""
BATCH = 64
"""Records of one frame at most."""
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Limits:
    """How much of a recording is kept, both parts of a file together."""

    records: int = 1_000_000
    bytes: int = 512 << 20


class Stop:
    """In the queue: no slot comes after it."""


class Output:
    """One trace file that grows by whole frames."""

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


class Writer(threading.Thread):
    """Writes what the server's thread hands over."""

    def __init__(
        self,
        output: Output,
        header: Header,
        take: Callable[[], int],
        give_back: Callable[[Slot], None],
        may_ask: Callable[[], bool],
    ) -> None:
        """Write to `output`.

        take: returns how many calls were lost since it was last asked. give_back: gets slots that are free
        again. may_ask: whether events may be asked now; while a graph is captured no thread may.
        """
        super().__init__(name="replay-harness-recorder", daemon=True)
        self.queue: queue.SimpleQueue[Slot | Stop] = queue.SimpleQueue()
        self.written = self.lost = 0
        self.cpu_s = 0.0
        """CPU time of this thread."""
        self.problem = ""
        """Why nothing more is written; empty while all is well."""
        self._output, self._header = output, header
        self._take, self._give_back, self._may_ask = take, give_back, may_ask
        self._known = KnownPages()
        self._captures: dict[tuple[str, int], CaptureRecord] = {}

    def run(self) -> None:
        """Write until told to stop. What goes wrong here ends the recording, never the server."""
        ended = False
        while not ended:
            slots, ended = self._batch()
            try:
                self._write(slots, ended)
            except OSError as error:
                self.problem = f"{self._output.path}: {error.strerror}"
                _LOG.warning("recording ends: %s", self.problem)
                return
            finally:
                for slot in slots:
                    self._give_back(slot)
                self.cpu_s = time.thread_time()
        self._output.close()

    def _batch(self) -> tuple[list[Slot], bool]:
        """Wait for a slot; return it and those that are ready behind it, and whether the end has come."""
        first = self.queue.get()
        if isinstance(first, Stop):
            return [], True
        self._await(first)
        slots = [first]
        while len(slots) < BATCH:
            try:
                item = self.queue.get_nowait()
            except queue.Empty:
                return slots, False
            if isinstance(item, Stop):
                return slots, True
            self._await(item)
            slots.append(item)
        return slots, False

    def _await(self, slot: Slot) -> None:
        if slot.event is None:
            return
        while not (self._may_ask() and slot.arrived()):
            time.sleep(POLL_S)

    def _write(self, slots: list[Slot], ended: bool) -> None:
        if self._output.half_full and slots:
            self._output.turn()
            self._known = KnownPages()
            self._output.write([self._again(one) for one in self._captures.values()], len(self._captures))
        lines: list[Line] = [self._record(slot) for slot in slots]
        written = self.written + len(lines)
        if lost := self._take():
            self.lost += lost
            lines.append(Gap(lost=lost))
        if ended:
            lines.append(End(records=written, lost=self.lost))
        if lines:
            self._output.write(lines, len(slots))
        self.written = written

    def _record(self, slot: Slot) -> CaptureRecord | RefreshRecord:
        meta = slot.meta
        assert meta is not None
        kind = CaptureRecord if meta.capture else RefreshRecord
        lengths = slot.lengths[: meta.bucket].tolist()
        requests = slot.requests[: meta.bucket].tolist()
        live = live_rows(meta, requests)
        del lengths[live:], requests[live:]
        accepted = tuple(slot.accepted[:live].tolist()) if slot.extended else ()
        columns = [columns_of(meta.mode, length, self._header) for length in lengths]
        pages, digests = self._pages(slot, requests, columns)
        record = kind(
            n=meta.n, t=meta.t, mode=meta.mode, bucket=meta.bucket, steps=meta.steps,
            lengths=tuple(lengths), requests=tuple(requests), pages=pages, digests=digests,
            accepted=accepted, flags=meta.flags,
        )  # fmt: skip
        if isinstance(record, CaptureRecord):
            self._captures[record.mode, record.bucket] = self._in_full(record, slot, requests, columns)
        return record

    def _pages(
        self, slot: Slot, requests: list[int], columns: list[int]
    ) -> tuple[tuple[Pages, ...], tuple[str, ...]]:
        """Return what a record says of page tables: page ids that are new, or digests."""
        if not slot.pages or not requests:
            return (), ()
        table = slot.table.numpy() // np.int32(self._header.page_tokens)
        rows = [table[row, :count] for row, count in enumerate(columns)]
        if self._header.pages == DIGEST:
            return (), tuple(page_digest(row) for row in rows)
        found = tuple(
            self._known.difference(request, row) for request, row in zip(requests, rows, strict=True)
        )
        return (found if any(one is not None for one in found) else ()), ()

    def _in_full(
        self, record: CaptureRecord, slot: Slot, requests: list[int], columns: list[int]
    ) -> CaptureRecord:
        """Return a capture with whole page tables: what a new file repeats."""
        if self._header.pages != IDS or not slot.pages:
            return record
        table = slot.table.numpy() // np.int32(self._header.page_tokens)
        pages = tuple((0, tuple(table[row, :count].tolist())) for row, count in enumerate(columns))
        return msgspec.structs.replace(record, pages=pages)

    def _again(self, record: CaptureRecord) -> CaptureRecord:
        """Return a capture for a new file, its pages known there from now on."""
        pages = tuple(
            self._known.difference(request, np.array(one[1], np.int32)) if one is not None else None
            for request, one in zip(record.requests, record.pages, strict=False)
        )
        return msgspec.structs.replace(record, pages=pages)


def live_rows(meta: Meta, requests: list[int]) -> int:
    """Return how many leading rows are live: as the server said, else up to the last request but 0."""
    if 0 <= meta.live <= len(requests):
        return meta.live
    return max((row + 1 for row, request in enumerate(requests) if request), default=0)


def columns_of(mode: str, length: int, header: Header) -> int:
    """Return how many page columns a request's tokens reach, those that a verification adds included."""
    tokens = length + (header.draft_tokens if mode == "target_verify" else 0)
    return min(-(-tokens // header.page_tokens), -(-header.width // header.page_tokens))
