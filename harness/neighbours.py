"""The lines around the first difference of a finding: of a leaf, of what a step read, of an output."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from harness.checks.computed import by_row, counterpart, output_difference, text
from harness.checks.subject import Array, Subject, first_difference
from harness.fields import FieldSpec, Live, live_mask
from harness.findings import Difference, Finding
from harness.observation import Cell, RoundRecord
from harness.picture import Around, Neighbour
from harness.truth import RoundTruth

ROWS_AROUND = 2
COLUMNS_AROUND = 3


@dataclass(frozen=True, eq=False)
class _Pair:
    """Two values of one leaf or output, flat, with the row and column of each element."""

    step: int
    request: int
    expected: Array
    got: Array
    rows: NDArray[np.int64]
    columns: NDArray[np.int64]


def around(subject: Subject, findings: Sequence[Finding]) -> tuple[Around, ...]:
    """Return the neighbours of each finding's first difference; `findings`: the result's, in order.

    Findings without an element (an alias, a count) and those whose reference is not kept have none.
    """
    return tuple(
        found for index, one in enumerate(findings) if (found := _around(subject, index, one)) is not None
    )


def _around(subject: Subject, index: int, finding: Finding) -> Around | None:
    first = finding.first
    record = next((one for one in subject.observation.rounds if one.name in finding.rounds[:1]), None)
    if first is None or record is None:
        return None
    pair = _leaf(subject, record, finding, first) or _output(subject, record, finding, first)
    if pair is None:
        return None
    round_ = subject.round(record)
    return Around(
        finding=index,
        step=pair.step,
        request=pair.request,
        round_name=record.name,
        why=round_.why,
        lengths=round_.lengths,
        elements=tuple(_neighbours(subject, pair, first)),
    )


def _leaf(subject: Subject, record: RoundRecord, finding: Finding, first: Difference) -> _Pair | None:
    step = min(finding.steps, default=0)
    expected = subject.expected(record, finding.field, step)
    truth = subject.truths[record.index].at(step)
    spec = truth.fields.get(finding.field)
    if expected is None or spec is None:
        return None
    for cell in _seen(subject, record, finding):
        got = subject.observation.values[cell.value]
        if got.shape == expected[0].shape:
            _, difference = first_difference(truth, cell.name, expected[0], got)
            if _place(difference) == _place(first):
                where = positions(spec, truth, got.size)
                return _Pair(cell.step, _request(spec, truth, first.row), expected[0], got, *where)
    return None


def _seen(subject: Subject, record: RoundRecord, finding: Finding) -> Iterator[Cell]:
    """Yield the recorded leaves that a finding of this round may speak of."""
    cells = [cell for refresh in record.refreshes for cell in refresh.cells]
    cells += record.replay.read if record.replay is not None else ()
    if record.index:  # refreshed while the replay before was held back
        before = subject.observation.rounds[record.index - 1].replay
        cells += before.after if before is not None else ()
    return _of(cells, finding)


def _output(subject: Subject, record: RoundRecord, finding: Finding, first: Difference) -> _Pair | None:
    if record.replay is None or subject.ordinary is None:
        return None
    for cell in _of(record.replay.outputs, finding):
        other = counterpart(subject, record, cell)
        if other is None:
            continue
        expected, got = subject.ordinary.values[other.value], subject.observation.values[cell.value]
        _, difference = output_difference(subject, expected, got)
        if expected.shape == got.shape and _place(difference) == _place(first):
            rows, columns = np.divmod(np.arange(got.size, dtype=np.int64), by_row(got).shape[1])
            dims = subject.truths[record.index].dims
            request = first.row // (dims.rows // dims.bucket)
            return _Pair(cell.step, request, expected.reshape(-1), got.reshape(-1), rows, columns)
    return None


def _of(cells: Iterable[Cell], finding: Finding) -> Iterator[Cell]:
    for cell in cells:
        if cell.name == finding.field and (not finding.steps or cell.step in finding.steps):
            yield cell


def _place(first: Difference | None) -> tuple[int, int, str] | None:
    return None if first is None else (first.row, first.column, first.got)


def _request(spec: FieldSpec, truth: RoundTruth, row: int) -> int:
    """Return the request that a row belongs to, -1 where rows are no requests (schedules, plans, sums)."""
    dims, length = truth.dims, spec.shape(truth.dims)[0]
    if spec.live is Live.PLAN or spec.name.endswith("schedule_metadata"):
        return -1
    return row // (length // dims.bucket) if length in (dims.rows, dims.bucket) else -1


def _neighbours(subject: Subject, pair: _Pair, first: Difference) -> Iterator[Neighbour]:
    near = (np.abs(pair.rows - first.row) <= ROWS_AROUND) & (
        np.abs(pair.columns - first.column) <= COLUMNS_AROUND
    )
    for at in np.flatnonzero(near):
        texts = text(subject, pair.expected[at]), text(subject, pair.got[at])
        yield Neighbour(int(pair.rows[at]), int(pair.columns[at]), *texts)


def positions(spec: FieldSpec, truth: RoundTruth, size: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the rows and columns of a canonical vector's elements, int64 `[size]`, as `fields.position`."""
    flat = np.arange(size, dtype=np.int64)
    if spec.live is Live.PLAN:
        return flat // 2, flat % 2
    mask = live_mask(spec, truth.dims, truth.inputs)
    if mask is not None:
        flat = np.flatnonzero(mask.reshape(-1)).astype(np.int64)
    shape = spec.shape(truth.dims)
    return (flat // shape[1], flat % shape[1]) if len(shape) > 1 else (flat, np.zeros_like(flat))
