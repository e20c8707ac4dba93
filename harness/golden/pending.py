"""Pending goldens: what a run produced, kept beside the accepted ones until a person accepts it by name.

`<root>/pending/` is a store of its own. A pending golden is what one run produced, not yet merged:
its difference is always taken against what is accepted now. Proposing accepts nothing, so CI may do it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from os import environ as process_environ

from harness.errors import GoldenError
from harness.golden.merge import Change, Merge, UpdateMode
from harness.golden.model import Golden, Stored
from harness.golden.numbers import apart
from harness.golden.review import describe
from harness.golden.store import PENDING, GoldenStore
from harness.golden.structure import words
from harness.golden.update import refuse_here
from harness.types import Precision

UNREAD = "pending: nobody has accepted this yet"
"""Reason that a pending golden carries."""


@dataclass(frozen=True)
class Pending:
    """One pending golden and how it differs from what is accepted."""

    name: str
    accepted: Golden | None
    """None where the golden would be the first of its name."""
    proposed: Golden
    changes: tuple[Change, ...]

    @property
    def status(self) -> str:
        """Say in one line what accepting it would do."""
        if not self.changes:
            return f"{self.name}: as accepted"
        if self.accepted is None:
            return f"{self.name}: new, {len(self.proposed.entries)} rounds"
        counts: dict[str, int] = {}
        for change in self.changes:
            words_ = f"{change.what} {change.kind}"
            counts[words_] = counts.get(words_, 0) + 1
        listed = ", ".join(f"{number} x {what}" for what, number in sorted(counts.items()))
        return f"{self.name}: {listed}"

    def diff(self) -> tuple[str, ...]:
        """Return the differences, a line per field and kind, with numbers and structure in words."""
        groups: dict[tuple[str, str, str], list[Change]] = {}
        for change in self.changes:
            groups.setdefault((change.what, change.field, change.kind), []).append(change)
        lines: list[str] = []
        for key in sorted(groups):
            lines.append(describe(groups[key]))
            lines += [f"  {line}" for line in self._details(groups[key])]
        return tuple(lines) or (f"{self.name}: as accepted",)

    def _details(self, changes: Sequence[Change]) -> list[str]:
        change = min(changes, key=lambda one: (one.where, one.key))
        old, new = self.accepted, self.proposed
        if old is None or change.kind != "changed":
            return []
        if change.what == "structure":
            found = words(old.structures[change.key], new.structures[change.key])
            return [f"{change.key}: {line}" for line in found.get(change.field, [])]
        pairs = list(_pairs(old, new, change))
        return [f"{where}: {apart(ours, theirs, raw)}" for where, ours, theirs, raw in pairs]


class Review:
    """The pending goldens of a folder."""

    def __init__(self, store: GoldenStore) -> None:
        """Review what is pending beside a store's accepted goldens."""
        self._store = store
        self.store = GoldenStore(store.root / PENDING)

    def propose(self, candidates: Mapping[tuple[str, str], Golden]) -> tuple[Pending, ...]:
        """Keep what a run produced where it differs from what is accepted; forget it where it does not."""
        found = []
        for pair, golden in sorted(candidates.items()):
            one = self._pending(pair, replace(golden, reason=UNREAD))
            if one.changes:
                with self.store.lock():
                    self.store.save(one.proposed)
                found.append(one)
            else:
                self.store.remove(one.name)
        return tuple(found)

    def pending(self) -> tuple[Pending, ...]:
        """Return all pending goldens, by name. Raises GoldenError for a damaged one."""
        return tuple(self.of(name) for name in self.store.stems())

    def of(self, name: str) -> Pending:
        """Return one pending golden. Raises GoldenError, naming those there are, where there is none."""
        if name not in self.store.stems():
            there = ", ".join(self.store.stems()) or "none; `replay-harness golden propose` makes some"
            raise GoldenError(f"no golden {name!r} is pending; pending are: {there}")
        model, _, engine = name.rpartition(".")
        return self._pending((model, engine), self.store.load(model, engine))

    def accept(
        self, name: str, reason: str, *, environ: Mapping[str, str] = process_environ
    ) -> tuple[str, ...]:
        """Merge a pending golden into the accepted one and return what changed, line by line.

        reason: kept in the manifest. Raises GoldenError in CI, in a parallel worker, without a reason.
        """
        refuse_here(environ)
        if not reason.strip():
            raise GoldenError("accepting a golden needs a reason: say in a few words why values change")
        with self._store.lock():
            one = self.of(name)
            proposed = replace(one.proposed, reason=" ".join(reason.split()))
            if one.changes:
                self._store.save(Merge(one.accepted, proposed, UpdateMode.ALL).result())
            self.store.remove(name)
        return (*one.diff(), f"accepted: {name}; why: {proposed.reason}")

    def drop(self, name: str) -> None:
        """Forget a pending golden. Raises GoldenError where there is none."""
        self.of(name)
        self.store.remove(name)

    def _pending(self, pair: tuple[str, str], proposed: Golden) -> Pending:
        accepted = self._store.find(*pair)
        merge = Merge(accepted, proposed, UpdateMode.ALL)
        merge.result()
        return Pending(proposed.name, accepted, proposed, tuple(merge.changes))


def _pairs(old: Golden, new: Golden, change: Change) -> list[tuple[str, Stored, Stored, str]]:
    """Return (where, accepted, proposed, raw dtype) of a changed value: one, of an output one per step."""
    if change.what == "value":
        ours = old.entries.get(change.key)
        if ours is None or change.field not in ours.values:
            return []
        return [(change.where, ours.values[change.field], new.entries[change.key].values[change.field], "")]
    if change.what != "output" or change.key not in old.outputs:
        return []
    before, after = old.outputs[change.key], new.outputs[change.key]
    raw = "bfloat16" if after.precision == Precision.BF16 else ""
    pairs = []
    for step, (ours_of, theirs_of) in enumerate(zip(before.steps, after.steps, strict=False)):
        one, other = ours_of.get(change.field), theirs_of.get(change.field)
        if one is not None and other is not None and one.digest != other.digest:
            pairs.append((f"step {step}", one, other, raw if one.dtype == "uint16" else ""))
    return pairs
