"""Making a case's picture from what was judged: a pure function of the subject."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from harness.checks.subject import Subject
from harness.observation import LeafFact, LedgerEntry, Observation, Span
from harness.picture import CasePicture, Moment, StorageMap, Strip, Timeline, Track

_Treated = tuple[int, str, tuple[int, ...], tuple[int, ...]]
_Ledger = tuple[Moment, tuple[LedgerEntry, ...], tuple[Span, ...], dict[tuple[int, str], int]]


def portray(subject: Subject) -> CasePicture:
    """Return the picture of a judged case."""
    observation = subject.observation
    return CasePicture(storage_maps(observation, observation.case.backends), timeline(subject))


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
    in_graph = observation.case.path.in_graph

    def declared(bucket: int, live: int | None = None) -> dict[tuple[int, str], int]:
        padded = live is not None and live < bucket
        writes = observation.expected_of(bucket).ledger(padded=padded)
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
            wanted = {} if in_graph else declared(round_.bucket, len(round_.lengths))
            yield moment, refresh.ledger, refresh.spans, wanted
