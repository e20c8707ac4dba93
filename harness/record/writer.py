"""The writer, a process of its own: `python -m harness.record.writer`, its standard input a socket of
commands.

It shares a ring of memory with the server's process and nothing else: the server never waits for it, its
work costs the server's threads nothing, and it outlives a server that is killed, so that all that was in the
ring is written.
"""

from __future__ import annotations

import os
import select
import socket
import sys
import time
from collections import deque
from pathlib import Path
from typing import TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from harness.record.format import DIGEST, IDS, CaptureRecord, End, Gap, Header, Line, Pages, RefreshRecord
from harness.record.known import KnownPages, page_digest
from harness.record.output import BATCH, Limits, Output, columns_of
from harness.record.ring import MIRROR, Head, Ring, Shape, Slot

IDLE_S = 0.005
"""Between two looks at a ring that has nothing new."""
PATIENCE_S = 5.0
"""After the server has ended: how long a copy that was queued may take to come."""


class Begin(msgspec.Struct, tag_field="do", tag="begin"):
    """The first command."""

    path: str
    header: Header
    limits: Limits


class Grow(msgspec.Struct, tag_field="do", tag="ring"):
    """A ring, whose memory's descriptor is sent with it; slots of an older one come before its own."""

    shape: Shape


class Name(msgspec.Struct, tag_field="do", tag="mode"):
    """The name of a forward mode's number."""

    number: int
    name: str


class Stop(msgspec.Struct, tag_field="do", tag="stop"):
    """The recorder is closed."""

    lost: int


Command: TypeAlias = Begin | Grow | Name | Stop


class Said(msgspec.Struct):
    """What the writer answers once, when it has begun, and once when it ends."""

    written: int = 0
    cpu_s: float = 0.0
    problem: str = ""


class Commands:
    """The server's commands, read without waiting."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._pending = b""
        self.descriptors: deque[int] = deque()
        """Of memory that was sent, in the order of the rings; on its way it lives even if the server dies."""
        self._decoder: msgspec.json.Decoder[Command] = msgspec.json.Decoder(Command)
        self.ended = False
        """Whether the server has closed the socket, or ended."""

    def read(self, wait_s: float) -> list[Command]:
        """Return the commands that have come; wait a while for the first."""
        if self.ended or not select.select([self._channel], [], [], wait_s)[0]:
            return []
        chunk, descriptors, _, _ = socket.recv_fds(self._channel, 1 << 16, 8)
        self.descriptors += descriptors
        self.ended = not chunk
        *lines, self._pending = (self._pending + chunk).split(b"\n")
        return [self._decoder.decode(line) for line in lines]


class Writer:
    """Turns slots into lines."""

    def __init__(self, begin: Begin) -> None:
        """Create the file. Raises OSError."""
        self.written = 0
        self.modes: dict[int, str] = {}
        self.rings: deque[Ring] = deque()
        self._header = begin.header
        self._output = Output(Path(begin.path), begin.header, begin.limits)
        self._known = KnownPages()
        self._captures: dict[tuple[str, int], CaptureRecord] = {}
        self._at = 0
        self._number = -1
        """Of the last call that was written."""

    def drain(self) -> bool:
        """Write what is whole, in order; return whether there was anything."""
        slots: list[Slot] = []
        while len(slots) < BATCH:
            slot = self._next()
            if slot is None:
                break
            slots.append(slot)
        if not slots:
            return False
        if self._output.half_full:
            self._output.turn()
            self._known = KnownPages()
            self._output.write([self._again(one) for one in self._captures.values()], len(self._captures))
        lines: list[Line] = []
        for slot in slots:
            record = self._record(slot.read_head(), slot)
            if missed := record.n - self._number - 1:
                lines.append(Gap(lost=missed))
            self._number = record.n
            lines.append(record)
            slot.free()
        self._output.write(lines, len(slots))
        self.written += len(slots)
        return True

    @property
    def waiting(self) -> bool:
        """Whether a slot is filled whose copies have not come."""
        return bool(self.rings) and self.rings[0].slots[self._at].filled

    def end(self, stop: Stop) -> None:
        """Write the last line and close the file."""
        self._output.write([End(records=self.written, lost=stop.lost)], 0)
        self._output.close()

    def _next(self) -> Slot | None:
        """Return the next whole slot and go on to the one after it; leave a ring that has a successor."""
        while self.rings:
            ring = self.rings[0]
            slot = ring.slots[self._at]
            if slot.filled:
                if not slot.whole:
                    return None
                self._at = (self._at + 1) % ring.shape.slots
                return slot
            if len(self.rings) == 1:
                return None
            self.rings.popleft()
            self._at = 0
        return None

    def _record(self, head: Head, slot: Slot) -> CaptureRecord | RefreshRecord:
        bucket, mode = head.bucket, self.modes.get(head.mode, "unknown")
        lengths: list[int] = slot.numbers[:bucket].tolist()
        requests: list[int] = slot.numbers[bucket : 2 * bucket].tolist()
        live = live_rows(head.live, requests)
        del lengths[live:], requests[live:]
        rows = self._rows(slot, mode, bucket, lengths)
        pages: tuple[Pages, ...] = ()
        digests: tuple[str, ...] = ()
        if rows and self._header.pages == DIGEST:
            digests = tuple(page_digest(row) for row in rows)
        elif rows:
            found = tuple(self._known.difference(*pair) for pair in zip(requests, rows, strict=True))
            pages = found if any(one is not None for one in found) else ()
        kind = CaptureRecord if head.capture else RefreshRecord
        record = kind(
            n=head.n, t=head.t, mode=mode, bucket=bucket, steps=head.steps, lengths=tuple(lengths),
            requests=tuple(requests), pages=pages, digests=digests,
            accepted=tuple(slot.accepted[:live].tolist()) if head.accepted else (),
            flags=("mirror",) if head.flags & MIRROR else (),
        )  # fmt: skip
        if isinstance(record, CaptureRecord):
            whole: tuple[Pages, ...] = ()
            if self._header.pages == IDS:
                whole = tuple((0, tuple(row.tolist())) for row in rows)
            self._captures[mode, bucket] = msgspec.structs.replace(record, pages=whole)
        return record

    def _rows(self, slot: Slot, mode: str, bucket: int, lengths: list[int]) -> list[NDArray[np.int32]]:
        """Return the live page ids of each request; nothing where no pages are kept."""
        if not slot.table.size:
            return []
        columns = self.rings[0].shape.columns
        table = slot.table[: bucket * columns].reshape(bucket, columns)
        unit = np.int32(self._header.page_tokens)
        return [
            table[row, : columns_of(mode, length, self._header)] // unit for row, length in enumerate(lengths)
        ]

    def _again(self, record: CaptureRecord) -> CaptureRecord:
        """Return a capture for a new file, its pages known there from now on."""
        pages = tuple(
            self._known.difference(request, np.array(one[1], np.int32)) if one is not None else None
            for request, one in zip(record.requests, record.pages, strict=False)
        )
        return msgspec.structs.replace(record, pages=pages)


def live_rows(said: int, requests: list[int]) -> int:
    """Return how many leading rows are live: as the server said, else up to the last request but 0."""
    if 0 <= said <= len(requests):
        return said
    return max((row + 1 for row, request in enumerate(requests) if request), default=0)


def serve(commands: Commands) -> Said:
    """Write until told to stop, or until the server is gone and all that it left is written."""
    writer: Writer | None = None
    begun = time.process_time()
    stop: Stop | None = None
    gone_at = 0.0
    while True:
        for command in commands.read(IDLE_S if writer is not None else 1.0):
            match command:
                case Begin():
                    writer = Writer(command)
                case Grow() if writer is not None:
                    descriptor = commands.descriptors.popleft()
                    writer.rings.append(Ring(descriptor, command.shape))
                    os.close(descriptor)
                case Name() if writer is not None:
                    writer.modes[command.number] = command.name
                case Stop():
                    stop = command
        if writer is None:
            if commands.ended:
                return Said()
            continue
        if writer.drain():
            continue
        if stop is None and not commands.ended:
            continue
        gone_at = gone_at or time.monotonic()
        if writer.waiting and time.monotonic() - gone_at < PATIENCE_S:
            time.sleep(IDLE_S)
            continue
        if stop is not None:
            writer.end(stop)
        return Said(writer.written, time.process_time() - begun)


def main() -> int:
    """Serve one recorder; the last line on standard output says how it ended."""
    try:
        with socket.socket(fileno=os.dup(sys.stdin.fileno())) as channel:
            said = serve(Commands(channel))
    except (OSError, msgspec.MsgspecError) as error:
        said = Said(problem=f"{type(error).__name__}: {error}")
    sys.stdout.buffer.write(msgspec.json.encode(said) + b"\n")
    return 1 if said.problem else 0


if __name__ == "__main__":
    sys.exit(main())
