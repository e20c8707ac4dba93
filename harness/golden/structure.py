"""Structure of a run as plain data: who wrote what how often, which spans ran, who shares bytes with whom."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from harness.golden.model import Structure
from harness.observation import Capture, LeafFact, LedgerEntry, Refresh, Span, Walk

OWN = "own"
_STATE = "state."
"""Prefix of leaves that belong to the backend, not to a bucket."""


def structure(
    refresh: Refresh, sharing: Sharing, capture: Capture | None, bucket: int, steps: int
) -> Structure:
    """Return the structure of one refresh of a bucket; `capture` is the bucket's capture in force."""
    return Structure(
        ledger=ledger_map(refresh.ledger, steps),
        spans=span_map(refresh.spans, steps),
        capture_ledger=ledger_map(capture.refresh_writes if capture else (), steps),
        capture_spans=span_map(capture.refresh_spans if capture else (), steps),
        alias=sharing.alias,
        across=sharing.across,
    )


@dataclass(frozen=True)
class Sharing:
    """Which leaves of one bucket share bytes."""

    leaves: tuple[LeafFact, ...]
    """All leaves of the walk."""
    alias: dict[str, list[str]]
    across: list[str] | None

    @classmethod
    def of(cls, walk: Walk, bucket: int, steps: int, known: Sharing | None) -> Sharing:
        """Return the sharing at a walk; `known` is that of an earlier one, which usually still holds."""
        if known is not None and known.leaves == walk.leaves:
            return known
        return cls(walk.leaves, alias_map(walk.leaves, bucket, steps), across_buckets(walk.leaves, bucket))


def ledger_map(ledger: Iterable[LedgerEntry], steps: int) -> dict[str, list[int]]:
    """Return leaf -> writes by step."""
    writes: dict[str, list[int]] = {}
    for entry in sorted(ledger, key=lambda entry: entry.name):
        _by_step(writes, entry.name, steps, entry.step)[entry.step] += entry.writes
    return writes


def span_map(spans: Iterable[Span], steps: int) -> dict[str, list[int]]:
    """Return span -> how often it ran: for all steps, then by step. One that wrote nothing is kept apart."""
    counts: dict[str, list[int]] = {}
    for span in spans:
        name = span.name if span.writes else f"{span.name} (wrote nothing)"
        _by_step(counts, name, steps + 1, span.step + 1)[span.step + 1] += 1
    return dict(sorted(counts.items()))


def _by_step(table: dict[str, list[int]], name: str, length: int, index: int) -> list[int]:
    row = table.setdefault(name, [0] * length)
    row.extend([0] * (index + 1 - len(row)))  # a step beyond the case's shows as a longer row
    return row


def alias_map(leaves: Sequence[LeafFact], bucket: int, steps: int) -> dict[str, list[str]]:
    """Return leaf -> by step, the first leaf whose bytes it shares, among the bucket's and the backends' own.

    `own` where it is the first itself, `@0` for the same leaf of step 0, `leaf@0` for another one, `-`
    where the step lacks the leaf. Sharing is transitive, so that a buffer ties its slices together.
    Empty leaves share nothing.
    """
    chosen = [leaf for leaf in leaves if leaf.bucket in (0, bucket)]
    first: dict[tuple[int, str], tuple[int, str]] = {}
    for group in overlapping(chosen):
        names = sorted((leaf.step, _name(leaf)) for leaf in group)
        first.update(dict.fromkeys(names, names[0]))
    table: dict[str, list[str]] = {}
    for step, name in sorted((leaf.step, _name(leaf)) for leaf in chosen):
        row = table.setdefault(name, ["-"] * steps)
        row.extend(["-"] * (step + 1 - len(row)))
        owner, leaf = first[step, name]
        place = f"@{owner}" if leaf == name else f"{leaf}@{owner}"
        row[step] = OWN if (owner, leaf) == (step, name) else place
    return dict(sorted(table.items()))


def across_buckets(leaves: Sequence[LeafFact], bucket: int) -> list[str] | None:
    """Return the bucket's leaves that overlap leaves of another bucket; None where there is no other."""
    captured = [leaf for leaf in leaves if leaf.bucket]
    if {leaf.bucket for leaf in captured} <= {bucket}:
        return None
    shared: set[str] = set()
    for group in overlapping(captured):
        if len({leaf.bucket for leaf in group}) > 1:
            shared.update(leaf.name for leaf in group if leaf.bucket == bucket)
    return sorted(shared)


def overlapping(leaves: Iterable[LeafFact]) -> list[list[LeafFact]]:
    """Group leaves whose byte intervals overlap, directly or through others; every leaf is in one group."""
    groups: list[list[LeafFact]] = []
    region, stop = -1, 0
    for leaf in sorted(leaves, key=lambda leaf: (leaf.region, leaf.start, leaf.stop)):
        empty = leaf.start == leaf.stop
        if groups and not empty and leaf.region == region and leaf.start < stop:
            groups[-1].append(leaf)
            stop = max(stop, leaf.stop)
        elif empty:
            groups.insert(0, [leaf])
        else:
            groups.append([leaf])
            region, stop = leaf.region, leaf.stop
    return groups


def _name(leaf: LeafFact) -> str:
    return leaf.name if leaf.bucket else _STATE + leaf.name


def words(expected: Structure, got: Structure) -> dict[str, list[str]]:
    """Return part -> its differences in words, for the parts that differ.

    A part that only one of them knows is not compared (`Structure.parts`).
    """
    theirs = got.parts()
    return {
        part: _lines(part, value, theirs[part])
        for part, value in expected.parts().items()
        if part in theirs and value != theirs[part]
    }


def _lines(part: str, expected: object, got: object) -> list[str]:
    from deepdiff import DeepDiff  # slow to import, and needed only where something differs

    lines = []
    for kind, levels in DeepDiff(expected, got, view="tree").items():
        for level in levels:
            where = _where(part, level.path(output_format="list"))
            if kind.endswith("_added"):
                lines.append(f"{where}{level.t2} is new")
            elif kind.endswith("_removed"):
                lines.append(f"{where}{level.t1} is gone")
            else:
                lines.append(f"{where}{level.t1} -> {level.t2}")
    return sorted(lines)


def _where(part: str, path: list[str | int]) -> str:
    """Return a place in words: the leaf or span, and the step where the path names one."""
    if not path or isinstance(path[0], int):
        return ""
    if len(path) == 1:
        return f"{path[0]}: "
    step = int(path[1]) - ("spans" in part)
    return f"{path[0]}, {f'step {step}' if step >= 0 else 'all steps'}: "


def facts(structure: Structure) -> int:
    """Return how many facts a comparison of this structure compares."""
    return sum(_count(part) for part in structure.parts().values())


def _count(part: object) -> int:
    if isinstance(part, Mapping):
        return sum(len(row) for row in part.values())
    return len(part) if isinstance(part, list) else 0
