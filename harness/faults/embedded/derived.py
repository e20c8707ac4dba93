"""Class A: what is derived from the lengths (schedule, plan, pooled fields) belongs to an earlier batch."""

from __future__ import annotations

from harness import oracle
from harness.faults.catalogue import Fault
from harness.faults.geometry import P1, WIDE, at
from harness.faults.mechanisms import formulas, keys, rules
from harness.faults.mechanisms.binding import Rebound
from harness.faults.mechanisms.timing import LeftOut, Skipped
from harness.faults.mechanisms.values import Rewritten
from harness.faults.mechanisms.when import ALWAYS, AllBut, Same
from harness.types import Kernel, Mode, Path

SCHEDULE = "paged_mqa_schedule_metadata"
PLAN = "topk_v2_plan"
POOLED_SCHEDULE = "pooled_paged_mqa_schedule_metadata"
POOLED_PLAN = "pooled_topk_v2_plan"
TILES = ("flashmla_metadata.flashmla_metadata", "flashmla_metadata.num_splits")
STALE = "stale field"
BY_KEY = "skipped while a key is unchanged"

FAULTS = (
    Fault(
        id="A1",
        text="The planner returns fresh tensors at every call; the schedule in the graph stays behind.",
        case=at(model=P1),
        injection=Rebound(SCHEDULE, ALWAYS, before=True),
        expected="address",
        also=("freshness", "refresh"),
    ),
    Fault(
        id="A1b",
        text="FlashMLA's tile plan is made for this round and never copied to where it is read.",
        case=at(model=P1, kernel=Kernel.FLASHMLA_KV),
        injection=LeftOut(TILES),
        expected="freshness",
    ),
    Fault(
        id="A3",
        text="Of two plans per step only the first is made anew when the lengths change.",
        case=at(),
        injection=Rewritten((POOLED_PLAN,), rules.kept(keys.bucket), STALE),
        expected="freshness",
    ),
    Fault(
        id="A3b",
        text="The pooled schedule is made anew only where another request comes into the first row.",
        case=at(Path.SIBLING_COPY, WIDE),
        injection=Rewritten((POOLED_SCHEDULE,), rules.kept(keys.request_of_first_row), BY_KEY),
        expected="freshness",
    ),
    Fault(
        id="A4",
        text="The page tables are refreshed and the schedule that belongs to them is not.",
        case=at(model=P1),
        injection=LeftOut((SCHEDULE,)),
        expected="freshness",
        also=("refresh",),
    ),
    Fault(
        id="A4b",
        text="In target-verify the schedule keeps the chunks of the batch that was captured.",
        case=at(model=WIDE, mode=Mode.TARGET_VERIFY, bucket=2),
        injection=Rewritten(("kpool_write_plan.pool_schedule_metadata",), rules.captured, STALE),
        expected="freshness",
    ),
    Fault(
        id="A6",
        text="The schedule is kept as long as the batch has the same number of requests.",
        case=at(model=P1),
        injection=Rewritten((SCHEDULE,), rules.kept(keys.live_batch), BY_KEY),
        expected="freshness",
    ),
    Fault(
        id="A6b",
        text="The whole refresh is left out while lengths and requests are those of the round before.",
        case=at(),
        injection=Skipped(Same(keys.lengths_and_requests)),
        expected="freshness",
    ),
    Fault(
        id="A6c",
        text="The top-k plan is kept as long as the longest request has the same length.",
        case=at(Path.INDEPENDENT, P1),
        injection=Rewritten((PLAN,), rules.kept(keys.longest), BY_KEY),
        expected="freshness",
    ),
    Fault(
        id="A6d",
        text="The schedule is kept as long as the lengths have the same sum.",
        case=at(model=P1, fusion=True),
        injection=Rewritten((SCHEDULE,), rules.kept(keys.total), BY_KEY),
        expected="freshness",
        also=("equivalence",),
    ),
    Fault(
        id="A6e",
        text="The schedule is kept as long as the lengths are the same in any order.",
        case=at(fusion=True),
        injection=Rewritten((SCHEDULE,), rules.kept(keys.lengths_in_any_order), BY_KEY),
        expected="freshness",
        also=("equivalence",),
    ),
    Fault(
        id="A6f",
        text="The schedule is kept while no request needs another page, though a segment may begin.",
        case=at(model=P1, bucket=2),
        injection=Rewritten((SCHEDULE,), rules.kept(keys.pages(512)), BY_KEY),
        expected="freshness",
        also=("equivalence",),
    ),
    Fault(
        id="A7",
        text="The schedule is built over requests, while a verification deals N rows for each.",
        case=at(model=P1, mode=Mode.TARGET_VERIFY, bucket=2),
        injection=Rewritten(
            (SCHEDULE,),
            rules.computed(formulas.schedule(lambda spot: oracle.base_lengths(spot.dims, spot.round))),
            "wrong mode",
        ),
        expected="equivalence",
    ),
    Fault(
        id="A9",
        text="The fast path has lost the call that refreshes: every field is the captured one.",
        case=at(Path.INDEPENDENT, P1),
        injection=Skipped(ALWAYS),
        expected="freshness",
        also=("refresh",),
    ),
    Fault(
        id="A9b",
        text="Only one refresh in three is done.",
        case=at(model=P1),
        injection=Skipped(AllBut(3)),
        expected="freshness",
        also=("refresh",),
    ),
    Fault(
        id="A9c",
        text="The sibling copy into the last step forgets schedule and plan.",
        case=at(Path.SIBLING_COPY, steps=4),
        injection=LeftOut((SCHEDULE, PLAN), steps=(2,)),
        expected="freshness",
        also=("refresh",),
    ),
    Fault(
        id="A9d",
        text="The refresh inside the graph was captured without the pooled plan.",
        case=at(Path.SHARED_IN_GRAPH),
        injection=LeftOut((POOLED_PLAN,)),
        expected="freshness",
        also=("refresh",),
    ),
    Fault(
        id="A10",
        text="The replay is given live lengths and locations that are never staged into captured storage.",
        case=at(Path.INDEPENDENT),
        injection=LeftOut(("cu_seqlens_k", "page_table_1", "kpool_write_plan.write_loc")),
        expected="freshness",
        also=("refresh",),
    ),
    Fault(
        id="A10b",
        text="After the multi-destination copy one of the steps beyond the third keeps the captured tables.",
        case=at(Path.MULTI_DESTINATION_COPY, P1, steps=5),
        injection=LeftOut(("real_page_table", "page_table_1"), steps=(3,)),
        expected="freshness",
        also=("refresh",),
    ),
)
