"""The kill matrix: which check spoke of which fault, and what each check is needed for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from harness.checks.registry import CHECKS
from harness.faults.trial import Fate, Tried


@dataclass(frozen=True)
class Kills:
    """What became of all entries that were tried."""

    tried: tuple[Tried, ...]

    @classmethod
    def of(cls, tried: Iterable[Tried], order: Iterable[str]) -> Kills:
        """Put trials into the catalogue's order, given as ids."""
        place = {identity: position for position, identity in enumerate(order)}
        return cls(tuple(sorted(tried, key=lambda one: (place[one.id], one.case))))

    @property
    def faults(self) -> tuple[Tried, ...]:
        """Trials of faults."""
        return tuple(one for one in self.tried if one.expected)

    @property
    def harmless(self) -> tuple[Tried, ...]:
        """Trials of harmless changes."""
        return tuple(one for one in self.tried if not one.expected)

    @property
    def bad(self) -> tuple[Tried, ...]:
        """Trials that did not end as they should."""
        return tuple(one for one in self.tried if not one.fate.good)

    def count(self, fate: Fate) -> int:
        """Return how many trials ended in one way."""
        return sum(one.fate is fate for one in self.tried)

    def only(self) -> Mapping[str, tuple[str, ...]]:
        """Return, for every check, the faults of which no other check spoke."""
        found: dict[str, tuple[str, ...]] = {check.name: () for check in CHECKS}
        for one in self.faults:
            if len(one.spoke) == 1 and one.fate is Fate.KILLED:
                (name,) = one.spoke
                found[name] += (one.id,)
        return found


def superfluous(kills: Kills, reasons: Mapping[str, str]) -> list[str]:
    """Return what the reverse gate objects to: checks that no fault needs, reasons that are none."""
    problems = []
    for name, faults in kills.only().items():
        if not faults and name not in reasons:
            problems.append(f"{name}: switched off, every fault is still noticed by another check")
        if faults and name in reasons:
            problems.append(
                f"{name}: has a reason to exist without a fault, but {', '.join(faults)} needs it"
            )
    return problems
