"""A trace as a stream of moments: page tables put together again, parts of a ring in their order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from harness.record.format import IDS, CaptureRecord, End, Gap, Header, Pages, RefreshRecord
from harness.record.output import before_of, columns_of
from harness.trace.frames import TraceError, Truncated, lines


@dataclass(frozen=True)
class Moment:
    """One recorded call, its page tables in full."""

    n: int
    """Number of the call."""
    t: int
    """Microseconds since recording began."""
    capture: bool
    mode: str
    bucket: int
    steps: int
    lengths: tuple[int, ...]
    """Tokens, one per live request."""
    requests: tuple[int, ...]
    pages: tuple[tuple[int, ...], ...]
    """Live model pages of each live request; empty where the trace has no page ids."""
    accepted: tuple[int, ...] = ()


class Trace:
    """A trace file, opened: the header is read, the rest is streamed as often as asked for."""

    def __init__(self, file: Path, *, older: bool = True) -> None:
        """Read the header. older: begin with the older part of a ring, if it is there. Raises TraceError."""
        self.file = file
        self.header = _header(file)
        before = before_of(file)
        self.files = (before, file) if older and self.header.continues and before.exists() else (file,)
        self.note = ""
        """After reading to the end: why the trace ends where it does; empty if its recorder closed it."""
        self.lost = 0
        """After reading to the end: calls that the recorder says it lost."""

    @property
    def has_pages(self) -> bool:
        """Whether moments carry page ids."""
        return self.header.pages == IDS

    def moments(self) -> Iterator[Moment]:
        """Yield what was recorded, in order; constant memory.

        A last frame that is not whole ends the stream and is told in `note`: that is what a killed process
        leaves. Raises TraceError for anything else that is wrong.
        """
        self.lost, self.note, ended, last = 0, "", False, -1
        for file in self.files:
            known: dict[int, tuple[int, ...]] = {}
            try:
                for line in lines(file):
                    if isinstance(line, Gap):
                        self.lost += line.lost
                    elif isinstance(line, End):
                        ended = True
                    elif isinstance(line, CaptureRecord | RefreshRecord):
                        moment = self._moment(file, line, known)
                        if moment.n > last:  # a new part of a ring repeats the captures in force
                            yield moment
                        last = max(last, moment.n)
            except Truncated as error:
                self.note = str(error)
        if not self.note and not ended:
            self.note = f"{self.file}: its recorder was not closed (killed?); all that it wrote is whole"

    def _moment(
        self, file: Path, line: CaptureRecord | RefreshRecord, known: dict[int, tuple[int, ...]]
    ) -> Moment:
        live = len(line.lengths)
        if len(line.requests) != live or len(line.pages) not in (0, live):
            raise TraceError(f"{file}: record {line.n} has {live} lengths and other numbers of its parts")
        pages: tuple[tuple[int, ...], ...] = ()
        if self.has_pages:
            changes: tuple[Pages, ...] = line.pages or (None,) * live
            found = []
            for length, request, change in zip(line.lengths, line.requests, changes, strict=True):
                if change is not None:
                    first, ids = change
                    known[request] = known.get(request, ())[:first] + ids
                count = columns_of(line.mode, length, self.header)
                row = known.get(request, ())
                if len(row) < count:
                    raise TraceError(
                        f"{file}: record {line.n} tells {len(row)} of {count} pages of request {request}"
                    )
                found.append(row[:count])
            pages = tuple(found)
        return Moment(
            line.n, line.t, isinstance(line, CaptureRecord), line.mode, line.bucket, line.steps,
            line.lengths, line.requests, pages, line.accepted,
        )  # fmt: skip


def _header(file: Path) -> Header:
    for line in lines(file):
        assert isinstance(line, Header)
        return line
    raise TraceError(f"{file}: is no trace: it holds no line")
