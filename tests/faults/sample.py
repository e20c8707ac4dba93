"""A catalogue of a few entries, one of each fate; a system of the embedded one's kind."""

from __future__ import annotations

from harness.faults.catalogue import Entry, Fault, Harmless
from harness.faults.embedded.target import EmbeddedTarget
from harness.faults.geometry import P1, at
from harness.faults.mechanisms import keys, rules
from harness.faults.mechanisms.combined import Unchanged
from harness.faults.mechanisms.timing import Repeated, Skipped
from harness.faults.mechanisms.values import Rewritten
from harness.faults.mechanisms.when import Nth
from harness.faults.scene import Opener

SCHEDULE = ("paged_mqa_schedule_metadata",)
CASE = at(model=P1, bucket=2)

KILLED = Fault(
    "A1", "A schedule is kept.", CASE, Rewritten(SCHEDULE, rules.kept(keys.bucket), "stale"), "freshness"
)
TWICE = Fault("A2", "A refresh runs twice.", CASE, Repeated(2), "refresh")
ELSEWHERE = Fault("A3", "A refresh runs twice.", CASE, Repeated(2), "freshness")
SURVIVES = Fault("B1", "Nothing is wrong at all.", CASE, Unchanged(), "freshness")
UNREACHED = Fault("B2", "A refresh that never comes is skipped.", CASE, Skipped(Nth(1000)), "freshness")
CHANGES_NOTHING = Fault(
    "B3", "The lengths are shifted by nothing.", CASE, Rewritten(SCHEDULE, rules.plus(0), "none"), "freshness"
)
CLEAN = Harmless("Y1", "Nothing is changed.", (CASE,), Unchanged())
FLAGGED = Harmless("Y2", "A refresh runs twice.", (CASE,), Repeated(2))

OPENER: Opener = EmbeddedTarget
ENTRIES: tuple[Entry, ...] = (
    KILLED, TWICE, ELSEWHERE, SURVIVES, UNREACHED, CHANGES_NOTHING, CLEAN, FLAGGED,
)  # fmt: skip
