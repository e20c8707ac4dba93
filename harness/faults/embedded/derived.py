"""Class A: what is derived from the lengths (schedule, plan, pooled fields) belongs to an earlier batch."""

from __future__ import annotations

from harness.faults.catalogue import Fault
from harness.faults.geometry import P1, P4, at
from harness.faults.mechanisms import keys, rules
from harness.faults.mechanisms.binding import Rebound
from harness.faults.mechanisms.timing import LeftOut, Skipped
from harness.faults.mechanisms.values import Rewritten
from harness.faults.mechanisms.when import AllBut, Always, Same
from harness.types import Path

SCHEDULE = "paged_mqa_schedule_metadata"
PLAN = "topk_v2_plan"
POOLED = ("pooled_paged_mqa_schedule_metadata", "pooled_topk_v2_plan")
STALE = "stale field"
UNCHANGED_KEY = "refresh skipped while a key is unchanged"

FAULTS = (
    Fault(
        id="A1",
        text="The planner returns fresh tensors at every call; the schedule in the graph stays behind.",
        case=at(),
        injection=Rebound(SCHEDULE, Always(), before=True),
        expected="address",
        also=("freshness", "refresh"),
    ),
    Fault(
        id="A3",
        text="Of two plans per step only the first is made anew when the lengths change.",
        case=at(),
        injection=Rewritten(("pooled_topk_v2_plan",), rules.kept(keys.bucket), STALE),
        expected="freshness",
    ),
    Fault(
        id="A4",
        text="The page tables are refreshed and the schedule that belongs to them is not.",
        case=at(model=P1),
        injection=LeftOut((SCHEDULE,)),
        expected="freshness",
    ),
    Fault(
        id="A6",
        text="The schedule is kept as long as the batch has the same number of requests.",
        case=at(model=P1),
        injection=Rewritten((SCHEDULE,), rules.kept(keys.live_batch), UNCHANGED_KEY),
        expected="freshness",
    ),
    Fault(
        id="A9",
        text="The fast path has lost the call that refreshes: every field is the captured one.",
        case=at(Path.INDEPENDENT),
        injection=Skipped(Always()),
        expected="freshness",
    ),
    Fault(
        id="A9b",
        text="Only one refresh in three is done.",
        case=at(),
        injection=Skipped(AllBut(3)),
        expected="freshness",
    ),
    Fault(
        id="A6b",
        text="The whole refresh is left out while lengths and requests are those of the round before.",
        case=at(model=P4),
        injection=Skipped(Same(keys.lengths_and_requests)),
        expected="freshness",
    ),
)
