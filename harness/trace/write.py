"""Writing a trace from moments: slices of others, and traffic of a load model."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from harness.errors import UsageError
from harness.record.format import IDS, CaptureRecord, End, Header, Line, RefreshRecord
from harness.record.known import KnownPages
from harness.record.output import BATCH, Limits, Output
from harness.trace.frames import TraceError
from harness.trace.reader import Moment, Trace

UNBOUNDED = Limits(records=1 << 62, bytes=1 << 62)


def write_trace(file: Path, header: Header, moments: Iterable[Moment]) -> int:
    """Write a closed trace; return its number of records. Raises UsageError where no file can be made."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        output = Output(file, header, UNBOUNDED)
    except OSError as error:
        raise UsageError(f"{file}: cannot be written ({error.strerror}); choose another name") from error
    known, count = KnownPages(), 0
    batch: list[Line] = []
    for moment in moments:
        batch.append(_record(moment, header, known))
        count += 1
        if len(batch) == BATCH:
            output.write(batch, BATCH)
            batch = []
    batch.append(End(records=count))
    output.write(batch, 0)
    output.close()
    return count


def cut(trace: Trace, first: int, last: int, file: Path) -> int:
    """Write the refreshes `first` to `last`, counted from 0 in the order of the trace, and every capture
    before.

    Captures in force come first, so that the slice can be replayed. Of a damaged trace, what comes before
    that; its `note` says so. Returns the number of records. Raises UsageError where no refresh lies in the
    range.
    """
    found = list(_slice(trace, first, last))
    if not any(not moment.capture for moment in found):
        raise UsageError(f"{trace.file}: holds no refresh from {first} to {last}")
    return write_trace(file, trace.header, found)


def _slice(trace: Trace, first: int, last: int) -> Iterable[Moment]:
    captures: dict[tuple[str, int], Moment] = {}
    number = 0
    for moment in _readable(trace):
        if number > last:
            return
        if not moment.capture:
            if first <= number <= last:
                yield from captures.values()
                captures = {}
                yield moment
            number += 1
        elif number > first:
            yield moment
        else:
            captures[moment.mode, moment.bucket] = moment


def _readable(trace: Trace) -> Iterable[Moment]:
    try:
        yield from trace.moments()
    except TraceError as error:
        trace.note = str(error)


def _record(moment: Moment, header: Header, known: KnownPages) -> CaptureRecord | RefreshRecord:
    kind = CaptureRecord if moment.capture else RefreshRecord
    pages = tuple(
        known.difference(request, np.array(ids, np.int32))
        for request, ids in zip(moment.requests, moment.pages, strict=False)
    )
    return kind(
        n=moment.n, t=moment.t, mode=moment.mode, bucket=moment.bucket, steps=moment.steps,
        lengths=moment.lengths, requests=moment.requests,
        pages=pages if header.pages == IDS else (), accepted=moment.accepted,
    )  # fmt: skip
