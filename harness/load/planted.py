"""Faults that only traffic shows: they need a history that no program of the matrix has."""

from __future__ import annotations

from dataclasses import dataclass

from harness.errors import UsageError
from harness.faults.catalogue import Fault, entries, opener
from harness.faults.geometry import P1, at
from harness.faults.mechanisms import rules
from harness.faults.mechanisms.values import Rewritten
from harness.faults.scene import Scene, Trace
from harness.faults.wrapped import faulty
from harness.sut.protocol import SutFactory

SCHEDULE = "paged_mqa_schedule_metadata"


@dataclass(frozen=True)
class AfterBuckets:
    """Refreshes that come after a certain sequence of buckets, their own the last of it. See `when.When`."""

    buckets: tuple[int, ...]

    def __call__(self, scene: Scene, bucket: int) -> bool:
        """Return whether the last refreshes were in these buckets; asked once per refresh."""
        before: tuple[int, ...] = scene.memory.get(self, ())
        scene.memory[self] = now = (*before, bucket)[-len(self.buckets) :]
        return now == self.buckets


TRAFFIC_FAULTS = (
    Fault(
        id="T1",
        text="A schedule is not made anew where the largest bucket comes back after one replay of bucket 2.",
        case=at(model=P1, steps=4, bucket=8),
        injection=Rewritten((SCHEDULE,), rules.unwritten, "stale field", when=AfterBuckets((8, 2, 8))),
        expected="freshness",
        also=("equivalence",),
    ),
)


def traffic_faults(sut: str) -> tuple[Fault, ...]:
    """Return the faults of this module that a system can have."""
    return tuple(fault for fault in TRAFFIC_FAULTS if fault.case.sut == sut)


def planted_factory(sut: str, identity: str) -> SutFactory:
    """Return a factory of a system with a fault, the catalogue's or one of this module, in any setting.

    Raises UsageError where there is none of that id.
    """
    known = (*traffic_faults(sut), *entries(sut))
    found = next((entry for entry in known if entry.id == identity), None)
    if found is None:
        raise UsageError(f"--plant {identity}: no such fault of {sut}; `replay-harness faults --list`")
    return faulty(opener(sut), found.injection, Trace())
