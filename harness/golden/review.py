"""What a person reads before accepting an update: one line per golden, field and kind of change."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from harness.golden.merge import Change

LEFT = " (left as it was: the mode does not take it)"


@dataclass(frozen=True)
class UpdateReport:
    """What an update did and left, and why."""

    changes: tuple[Change, ...]
    reason: str
    written: tuple[str, ...]
    """Stems of the goldens that were written, sorted."""

    def lines(self) -> tuple[str, ...]:
        """Return one line per golden, field and kind of change: how many, the first one, old and new."""
        if not self.changes:
            return ("goldens: nothing to update, all values and structures are as accepted",)
        groups: dict[tuple[str, str, str, str, bool], list[Change]] = {}
        for change in self.changes:
            group = (change.golden, change.what, change.field, change.kind, change.accepted)
            groups.setdefault(group, []).append(change)
        lines = [describe(groups[group]) for group in sorted(groups)]
        return (*lines, f"written: {', '.join(self.written) or 'nothing'}; why: {self.reason}")


def describe(changes: Sequence[Change]) -> str:
    """Return one line on changes of the same golden, subject and kind."""
    first = min(changes, key=lambda change: (change.where, change.key))
    subject = f"{first.what} {first.field}".rstrip()
    text = f"{first.golden}: {subject}: {len(changes)} {first.kind}{'' if first.accepted else LEFT}"
    text = f"{text}, first {first.where or first.key}"
    if first.mismatch is None:
        return text
    mismatch = first.mismatch
    at = f"element {mismatch.index}" if mismatch.index >= 0 else f"its {mismatch.kind}"
    return f"{text}: {mismatch.count} elements differ, {at}: {mismatch.expected} -> {mismatch.got}"
