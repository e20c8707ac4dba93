"""Merging an accepted golden with what a run produced: what is new, what changed, what stays. Pure.

Nothing is ever dropped here: what the run did not produce stays as it was. `pruned` is for that.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from harness.compare import Mismatch
from harness.errors import GoldenError
from harness.golden.model import Entry, Golden, Outputs, Stored, Structure, difference, output_difference
from harness.golden.structure import words


class UpdateMode(StrEnum):
    """What an update may touch."""

    NEW = "new"
    """Adds what the golden lacks."""
    CHANGED = "changed"
    """Replaces what differs."""
    ALL = "all"
    """Both."""


@dataclass(frozen=True)
class Change:
    """One difference between a golden and a run."""

    golden: str
    """File stem."""
    what: str
    """`value`, `output`, `structure`, `label` (a round of known inputs) or `inputs` (a round got others)."""
    field: str
    """Field, output or part of the structure; empty for the others."""
    key: str
    """Entry, output or structure key."""
    kind: str
    """`new`, `changed` or `removed`."""
    accepted: bool
    """Whether the mode of the update takes it."""
    where: str = ""
    """Label of a round, or the structure's difference in words."""
    mismatch: Mismatch | None = None
    """Of a changed value: how many elements, the first index, old and new."""


class Merge:
    """Merges one run's golden into the stored one; `changes` tells what differed."""

    def __init__(self, old: Golden | None, new: Golden, mode: UpdateMode) -> None:
        """Prepare to merge. Raises GoldenError where the two are of different configurations."""
        if old is not None and old.config != new.config:
            raise GoldenError(
                f"{old.name}: was made for another geometry or model than this run's;"
                " remove the golden's files, then update with mode new"
            )
        self.changes: list[Change] = []
        self._mode = mode
        self._new = new
        self._base = old or replace(new, entries={}, outputs={}, structures={})

    def result(self) -> Golden:
        """Return the merged golden; it equals the stored one where nothing was accepted."""
        entries = self._entries()
        outputs = dict(self._base.outputs)
        for key, one in self._new.outputs.items():
            outputs[key] = self._outputs(key, outputs.get(key), one)
        structures = dict(self._base.structures)
        for key, found in self._new.structures.items():
            merged = self._structure(key, structures.get(key), found)
            if merged is not None:
                structures[key] = merged
        base = self._base
        source = self._new if any(change.accepted for change in self.changes) else base
        return replace(
            base,
            entries=dict(sorted(entries.items())),
            outputs=dict(sorted((key, one) for key, one in outputs.items() if any(one.steps))),
            structures=dict(sorted(structures.items())),
            reason=source.reason, tools=source.tools, device=source.device, interrupted=False,
        )  # fmt: skip

    def _take(
        self, what: str, field: str, key: str, kind: str, where: str = "", mismatch: Mismatch | None = None
    ) -> bool:
        """Note a difference and return whether the mode accepts it."""
        accepted = self._mode in (UpdateMode.ALL, kind)
        name = self._base.name
        self.changes.append(Change(name, what, field, key, kind, accepted, where, mismatch))
        return accepted

    def _entries(self) -> dict[str, Entry]:
        entries = dict(self._base.entries)
        by_label = dict(self._base.by_label)
        for key, entry in self._new.entries.items():
            old = entries.get(key, Entry((), entry.by, {}))
            labels = set(old.labels)
            moved = [label for label in entry.labels if by_label.get(label, key) != key]
            if moved and not self._take("inputs", "", key, "changed", moved[0]):
                continue
            for label in moved:
                left = entries[by_label[label]]
                entries[by_label[label]] = replace(left, labels=tuple(x for x in left.labels if x != label))
                by_label[label] = key
                labels.add(label)
            # a round that got other inputs brings all its values, which is part of the change
            lacking = "changed" if moved else "new"
            values = self._values(key, entry.labels[0], old.values, entry.values, lacking)
            if not values:
                continue
            fresh = [label for label in entry.labels if label not in labels]
            if fresh and (not old.values or self._take("label", "", key, "new", fresh[0])):
                labels.update(fresh)
            by = old.by if values == old.values else entry.by
            entries[key] = Entry(tuple(sorted(labels)), by, values)
        return entries

    def _values(
        self, key: str, where: str, old: Mapping[str, Stored], new: Mapping[str, Stored], lacking: str
    ) -> dict[str, Stored]:
        values = dict(old)
        for name, stored in new.items():
            if name not in old:
                if self._take("value", name, key, lacking, where):
                    values[name] = stored
                continue
            mismatch = difference(old[name], stored)
            if mismatch is not None and self._take("value", name, key, "changed", where, mismatch):
                values[name] = stored
        return values

    def _outputs(self, key: str, old: Outputs | None, new: Outputs) -> Outputs:
        """Merge outputs. Floats within their tolerance stay as stored, so that a golden does not churn."""
        if old is None or old.inputs != new.inputs:
            kind = "new" if old is None else "changed"
            taken = [
                self._take("output", n, key, kind, key) for n in sorted({n for s in new.steps for n in s})
            ]
            return new if all(taken) else (old or replace(new, steps=()))
        steps = [dict(step) for step in old.steps]
        steps += [{} for _ in range(len(new.steps) - len(steps))]
        for step, found in zip(steps, new.steps, strict=False):
            for name, stored in found.items():
                mismatch = output_difference(step[name], stored, new.precision) if name in step else None
                kind = "changed" if name in step else "new"
                if (name not in step or mismatch) and self._take("output", name, key, kind, key, mismatch):
                    step[name] = stored
        return replace(old, steps=tuple(steps))

    def _structure(self, key: str, old: Structure | None, new: Structure) -> Structure | None:
        if old is None:
            return new if self._take("structure", "", key, "new") else None
        merged = old
        changed = words(old, new)
        if changed:
            taken = [
                self._take("structure", part, key, "changed", lines[0]) for part, lines in changed.items()
            ]
            if all(taken):
                across = new.across if new.across is not None else old.across
                merged = replace(new, across=across)
        if merged.across is None and new.across is not None:
            part = "leaves shared across buckets"
            if self._take("structure", part, key, "new"):
                merged = replace(merged, across=new.across)
        return merged


def pruned(old: Golden, seen: Golden, reason: str) -> tuple[Golden, tuple[Change, ...]]:
    """Return a golden without what a run did not produce, and what was removed."""
    removed: list[Change] = []

    def remove(what: str, field: str, key: str, where: str = "") -> None:
        removed.append(Change(old.name, what, field, key, "removed", True, where))

    entries: dict[str, Entry] = {}
    for key, entry in old.entries.items():
        found = seen.entries.get(key)
        if found is None:
            remove("value", "", key, entry.labels[0] if entry.labels else "no round has these inputs")
            continue
        for label in sorted({*entry.labels} - {*found.labels}):
            remove("label", "", key, label)
        for name in sorted(entry.values.keys() - found.values.keys()):
            remove("value", name, key)
        labels = tuple(label for label in entry.labels if label in found.labels)
        values = {name: stored for name, stored in entry.values.items() if name in found.values}
        entries[key] = replace(entry, labels=labels, values=values)
    for key in sorted(old.outputs.keys() - seen.outputs.keys()):
        remove("output", "", key)
    for key in sorted(old.structures.keys() - seen.structures.keys()):
        remove("structure", "", key)
    outputs = {key: one for key, one in old.outputs.items() if key in seen.outputs}
    structures = {key: one for key, one in old.structures.items() if key in seen.structures}
    if not removed:
        return old, ()
    golden = replace(
        old, entries=entries, outputs=outputs, structures=structures, reason=reason, tools=seen.tools
    )
    return golden, tuple(removed)
