"""Making a case's picture from what was judged: a pure function of the subject and its findings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from harness.checks.subject import Array, Subject, first_difference
from harness.fields import FieldSpec, Live, live_mask
from harness.findings import Difference, Finding
from harness.observation import Cell, LeafFact, LedgerEntry, Observation, RoundRecord, Span
from harness.picture import Around, CasePicture, Moment, Neighbour, StorageMap, Strip, Timeline, Track
from harness.truth import RoundTruth
from harness.types import Path

ROWS_AROUND = 2
COLUMNS_AROUND = 3
_Treated = tuple[int, str, tuple[int, ...], tuple[int, ...]]
_Ledger = tuple[Moment, tuple[LedgerEntry, ...], tuple[Span, ...], dict[tuple[int, str], int]]


def portray(subject: Subject, findings: Sequence[Finding]) -> CasePicture:
    """Return the picture of a judged case; `findings`: its result's, in order."""
    observation = subject.observation
    return CasePicture(
        maps=storage_maps(observation, observation.case.backends),
        timeline=timeline(subject),
        around=tuple(
            found for index, one in enumerate(findings) if (found := _around(subject, index, one)) is not None
        ),
    )


def storage_maps(observation: Observation, steps: int) -> tuple[StorageMap, ...]:
    """Return the storage of the first `steps` steps after the first captures, one map per bucket."""
    walks = [capture.walk for capture in observation.captures if capture.before_round == 0]
    if not walks or walks[-1] >= len(observation.walks):
        return ()
    leaves = [leaf for leaf in observation.walks[walks[-1]].leaves if leaf.step < steps]
    buckets = sorted({leaf.bucket for leaf in leaves if leaf.bucket}, reverse=True)
    return tuple(
        _storage(bucket, [leaf for leaf in leaves if leaf.bucket in (0, bucket)]) for bucket in buckets
    )


def _storage(bucket: int, leaves: Sequence[LeafFact]) -> StorageMap:
    regions: dict[int, int] = {}
    sizes: list[int] = []
    strips: list[Strip] = []
    occupied = sorted(
        (leaf for leaf in leaves if leaf.stop > leaf.start),
        key=lambda leaf: (leaf.step, leaf.region, leaf.start, leaf.stop),
    )
    for leaf in occupied:
        region = regions.setdefault(leaf.region, len(regions))
        if region == len(sizes):
            sizes.append(0)
        sizes[region] = max(sizes[region], leaf.stop)
        name = leaf.name if leaf.bucket else f"{leaf.name} (state)"
        last = strips[-1] if strips else None
        if last and (last.step, last.region) == (leaf.step, region) and leaf.start <= last.stop:
            stop = max(last.stop, leaf.stop)
            strips[-1] = Strip(leaf.step, region, last.start, stop, (*last.leaves, name))
        else:
            strips.append(Strip(leaf.step, region, leaf.start, leaf.stop, (name,)))
    return StorageMap(bucket, tuple(sizes), tuple(strips))


def timeline(subject: Subject) -> Timeline:
    """Return the ledger of every capture with an in-graph refresh, and of every refresh, in order."""
    columns = list(_moments(subject))
    leaves: dict[tuple[int, str], None] = {}
    spans: dict[tuple[int, str], None] = {}
    for _, ledger, ran, declared in columns:
        leaves.update(dict.fromkeys((entry.step, entry.name) for entry in ledger))
        leaves.update(dict.fromkeys(key for key, writes in declared.items() if writes))
        spans.update(dict.fromkeys((span.step, span.name) for span in ran))
    written = [{(one.step, one.name): one.writes for one in ledger} for _, ledger, _, _ in columns]
    rows: list[_Treated] = [
        (
            step,
            name,
            tuple(one.get((step, name), 0) for one in written),
            tuple(declared.get((step, name), 0) if declared else -1 for _, _, _, declared in columns),
        )
        for step, name in leaves
    ]
    times = [Counter((span.step, span.name) for span in ran) for _, _, ran, _ in columns]
    ran_rows: list[_Treated] = [
        (step, name, tuple(one[step, name] for one in times), ()) for step, name in spans
    ]
    return Timeline(tuple(column[0] for column in columns), _tracks(rows), _tracks(ran_rows))


def _tracks(rows: Iterable[_Treated]) -> tuple[Track, ...]:
    """Put steps that were treated alike into one track."""
    alike: dict[tuple[str, tuple[int, ...], tuple[int, ...]], list[int]] = {}
    for step, name, counts, declared in rows:
        alike.setdefault((name, counts, declared), []).append(step)
    return tuple(
        Track(name, tuple(sorted(step for step in steps if step >= 0)), counts, declared)
        for (name, counts, declared), steps in alike.items()
    )


def _moments(subject: Subject) -> Iterator[_Ledger]:
    observation = subject.observation
    in_graph = observation.case.path is Path.SHARED_IN_GRAPH

    def declared(bucket: int) -> dict[tuple[int, str], int]:
        writes = observation.expected_of(bucket).writes
        return {(entry.step, entry.name): entry.writes for entry in writes}

    def captures(before: int) -> Iterator[_Ledger]:
        for capture in observation.captures:
            if capture.before_round == before and (in_graph or capture.refresh_writes or before):
                note = "captured again" if before else "captured"
                moment = Moment("capture", f"bucket {capture.bucket}", capture.bucket, False, note)
                wanted = declared(capture.bucket) if in_graph else {}
                yield moment, capture.refresh_writes, capture.refresh_spans, wanted

    yield from captures(0)
    for record in observation.rounds:
        if record.index:
            yield from captures(record.index)
        round_ = subject.round(record)
        for number, refresh in enumerate(record.refreshes):
            last = number == len(record.refreshes) - 1
            replay = record.replay if last else None
            delayed = "reader delayed" if replay is not None and replay.delayed else ""
            again = "" if last else "refreshed once more with another sentinel"
            skipped = f"not replayed: {record.skipped}" if record.skipped else ""
            note = "; ".join(part for part in (round_.why, skipped, delayed, again) if part)
            moment = Moment("refresh", record.name, round_.bucket, replay is not None, note)
            yield moment, refresh.ledger, refresh.spans, {} if in_graph else declared(round_.bucket)


def _around(subject: Subject, index: int, finding: Finding) -> Around | None:
    """Return the lines around a finding's first difference; None where it is not one of a leaf's elements."""
    if finding.first is None or not finding.rounds:
        return None
    record = next((one for one in subject.observation.rounds if one.name == finding.rounds[0]), None)
    expected = subject.expected(record, finding.field) if record is not None else None
    if record is None or expected is None:
        return None
    truth = subject.truths[record.index]
    spec = truth.fields.get(finding.field)
    cell = _cell(subject, record, truth, expected[0], finding)
    if spec is None or cell is None:
        return None
    got = subject.observation.values[cell.value]
    round_ = subject.round(record)
    return Around(
        finding=index,
        step=cell.step,
        request=_request(spec, truth, finding.first.row),
        round_name=record.name,
        why=round_.why,
        lengths=round_.lengths,
        elements=tuple(_neighbours(spec, truth, expected[0], got, finding.first)),
    )


def _request(spec: FieldSpec, truth: RoundTruth, row: int) -> int:
    """Return the request that a row belongs to, -1 where rows are no requests (schedules, plans, sums)."""
    dims, length = truth.dims, spec.shape(truth.dims)[0]
    if spec.live is Live.PLAN or spec.name.endswith("schedule_metadata"):
        return -1
    return row // (length // dims.bucket) if length in (dims.rows, dims.bucket) else -1


def _cell(
    subject: Subject, record: RoundRecord, truth: RoundTruth, expected: Array, finding: Finding
) -> Cell | None:
    """Return the recorded leaf that differs from what is expected first where the finding says."""
    cells = [cell for refresh in record.refreshes for cell in refresh.cells]
    cells += record.replay.read if record.replay is not None else ()
    for cell in cells:
        got = subject.observation.values[cell.value]
        ours = cell.name == finding.field and (not finding.steps or cell.step in finding.steps)
        if ours and got.shape == expected.shape:
            _, first = first_difference(truth, cell.name, expected, got)
            if _place(first) == _place(finding.first):
                return cell
    return None


def _place(first: Difference | None) -> tuple[int, int, str] | None:
    return None if first is None else (first.row, first.column, first.got)


def _neighbours(
    spec: FieldSpec, truth: RoundTruth, expected: Array, got: Array, first: Difference
) -> Iterator[Neighbour]:
    rows, columns = positions(spec, truth, expected.size)
    near = (np.abs(rows - first.row) <= ROWS_AROUND) & (np.abs(columns - first.column) <= COLUMNS_AROUND)
    for at in np.flatnonzero(near):
        yield Neighbour(int(rows[at]), int(columns[at]), str(expected[at]), str(got[at]))


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
