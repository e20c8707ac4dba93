"""Class A: what is derived from the lengths (schedule, plan, pooled fields) belongs to an earlier batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from harness.faults.catalogue import Fault
from harness.faults.mechanisms import keys, rules
from harness.faults.mechanisms.combined import Combined
from harness.faults.mechanisms.timing import LeftOut
from harness.faults.mechanisms.values import Rewritten
from harness.faults.mechanisms.when import AllBut, InBucket, Same, Switched
from harness.faults.scene import Scene
from harness.faults.sglang import seam
from harness.faults.sglang.geometry import P1, P4, at
from harness.faults.sglang.seam import AtSeam, StagedRefresh, left_out, remembered
from harness.types import Drill, Kernel, Mode, Path

SCHEDULE = "paged_mqa_schedule_metadata"
PLAN = "topk_v2_plan"
TILES = ("flashmla_metadata.flashmla_metadata", "flashmla_metadata.num_splits")
STALE = "stale field"
BY_KEY = "skipped while a key is unchanged"
SKIPPED = "skipped refresh"


def assigned(
    scene: Scene, plain: Callable[..., None], backend: Any, metadata: Any, lengths: torch.Tensor
) -> None:
    """Bind the new schedule instead of copying it to where the graph reads."""
    object.__setattr__(metadata, SCHEDULE, None)
    plain(backend, metadata, lengths)
    scene.hit()


def over_whole_requests(
    scene: Scene, plain: Callable[..., None], backend: Any, metadata: Any, lengths: torch.Tensor
) -> None:
    """Schedule as if each row of a verification saw all of its request's tokens."""
    last = lengths.view(-1, backend.speculative_num_draft_tokens)[:, -1:]
    whole = last.expand(-1, backend.speculative_num_draft_tokens).reshape(-1, 1).contiguous()
    scene.hit(not torch.equal(whole, lengths))
    plain(backend, metadata, whole)


def over_selected_tokens(
    scene: Scene, plain: Callable[..., None], backend: Any, metadata: Any, lengths: torch.Tensor
) -> None:
    """Schedule over the lengths that sparse attention sees, not those that the indexer sees."""
    scene.hit()
    plain(backend, metadata, metadata.dsa_cache_seqlens_int32.view(-1, 1))


def not_when_short(
    scene: Scene, plain: Callable[..., None], backend: Any, metadata: Any, lengths: torch.Tensor
) -> None:
    """Leave out the schedule where one segment a row is believed to be enough, asked at capture."""
    if int(scene.round.lengths.max()) <= 256:
        scene.hit()
    else:
        plain(backend, metadata, lengths)


def from_the_threshold_on(
    scene: Scene, plain: Callable[..., torch.Tensor], seq_lens: torch.Tensor, *rest: Any, **given: Any
) -> torch.Tensor:
    """Plan rows that are as long as the threshold, too."""
    plan = plain(seq_lens, *rest, **given)
    rule = scene.case.geometry.plan
    if not rule.min_rows <= seq_lens.shape[0] <= rule.max_rows:
        return plan
    rows = torch.nonzero(seq_lens >= plan[0, 0]).reshape(-1).to(torch.int32)
    scene.hit(len(rows) != int(plan[0, 1]))
    with scene.quiet():
        plan[0, 1] = len(rows)
        plan[1 : len(rows) + 1] = torch.stack((rows, seq_lens[rows.long()]), 1)
    return plan


def a_segment_more(
    scene: Scene, plain: Callable[..., None], backend: Any, metadata: Any, lengths: torch.Tensor
) -> None:
    """Give each row L // 256 + 1 segments, one too many where L is a multiple."""
    scene.hit(bool((lengths % 256 == 0).any()))
    plain(backend, metadata, lengths // 256 * 256 + 1)


FAULTS = (
    Fault(
        id="A1",
        text="The schedule is bound anew by every refresh; the one that the graph reads stays behind.",
        case=at(),
        injection=AtSeam(seam.SCHEDULE, assigned, "rebound leaf"),
        expected="address",
        also=("freshness", "refresh"),
    ),
    Fault(
        id="A1b",
        text="FlashMLA's tile plan is made for this round and never copied to where it is read.",
        case=at(kernel=Kernel.FLASHMLA_KV),
        injection=LeftOut(TILES),
        expected="freshness",
    ),
    Fault(
        id="A1c",
        text="FlashMLA's tile plan is kept while as many requests are live.",
        case=at(Path.RELEASED, kernel=Kernel.FLASHMLA_KV),
        injection=Rewritten(TILES, rules.kept(keys.live_batch), BY_KEY),
        expected="freshness",
    ),
    Fault(
        id="A3",
        text="Of the two plans of a step the pooled one is made for a bucket's first replay only.",
        case=at(Path.RELEASED, P4, fusion=True, steps=4),
        injection=AtSeam(seam.POOL_PLAN, left_out, STALE, when=Same(keys.bucket)),
        expected="freshness",
        also=("refresh",),
    ),
    Fault(
        id="A3b",
        text="A draft extension of the same requests keeps its whole pooled part.",
        case=at(model=P4, mode=Mode.DRAFT_EXTEND),
        injection=AtSeam(seam.KPOOL_DIRECT, left_out, SKIPPED, when=Same(keys.requests)),
        expected="freshness",
        also=("refresh",),
    ),
    Fault(
        id="A4",
        text="The planner answers from a cache while no request needs another page.",
        case=at(),
        injection=AtSeam(seam.PLANNER, remembered(keys.pages(64)), BY_KEY),
        expected="freshness",
        also=("equivalence",),
    ),
    Fault(
        id="A4b",
        text="Step 0's pooled plan is a refresh late; the steps that copied from it have a right one.",
        case=at(Path.RELEASED, P4, fusion=True, steps=3),
        injection=Rewritten(("pooled_topk_v2_plan",), rules.late, "late refresh", steps=(0,)),
        expected="freshness",
        also=("equivalence",),
    ),
    Fault(
        id="A6",
        text="Staged sharing keeps the schedule while the longest request stays as long.",
        case=at(),
        injection=Combined(
            (StagedRefresh(), Rewritten((SCHEDULE,), rules.kept(keys.longest), BY_KEY)), BY_KEY
        ),
        expected="freshness",
        also=("equivalence",),
    ),
    Fault(
        id="A6b",
        text="The schedule is made over the tokens that are selected, so it never changes beyond K.",
        case=at(fusion=True),
        injection=AtSeam(seam.SCHEDULE, over_selected_tokens, "wrong lengths"),
        expected="equivalence",
        also=("freshness",),
    ),
    Fault(
        id="A6c",
        text="The pooled schedule is kept as long as the schedule of single tokens would be.",
        case=at(model=P4, fusion=True),
        injection=AtSeam(seam.POOL_SCHEDULE, remembered(keys.pages(256)), BY_KEY),
        expected="freshness",
        also=("equivalence",),
    ),
    Fault(
        id="A6d",
        text="One step of two keeps its plan as long as the lengths have the same sum.",
        case=at(Path.RELEASED),
        injection=Rewritten((PLAN,), rules.kept(keys.total), BY_KEY, steps=(1,)),
        expected="freshness",
        also=("equivalence",),
    ),
    Fault(
        id="A6e",
        text="The schedule is kept while the batch is the same in another order.",
        case=at(model=P4, bucket=4),
        injection=Rewritten((SCHEDULE,), rules.kept(keys.lengths_in_any_order), BY_KEY),
        expected="freshness",
        also=("equivalence",),
    ),
    Fault(
        id="A6f",
        text="A pooled plan has rows that are exactly as long as its threshold.",
        case=at(model=P4),
        injection=AtSeam(seam.PLANNER, from_the_threshold_on, "off by one"),
        expected="equivalence",
        also=("freshness",),
    ),
    Fault(
        id="A6g",
        text="The schedule rounds up by adding one, so whole segments count twice.",
        case=at(),
        injection=AtSeam(seam.SCHEDULE, a_segment_more, "wrong rounding"),
        expected="equivalence",
        also=("freshness",),
    ),
    Fault(
        id="A7",
        text="A verification's schedule deals every row as if it saw its request's last token.",
        case=at(mode=Mode.TARGET_VERIFY, steps=2),
        injection=AtSeam(seam.SCHEDULE, over_whole_requests, "wrong mode"),
        expected="equivalence",
        also=("freshness",),
    ),
    Fault(
        id="A9",
        text="Only one refresh in three is done.",
        case=at(model=P4),
        injection=AtSeam(seam.APPLY, left_out, SKIPPED, when=AllBut(3)),
        expected="freshness",
        also=("refresh",),
    ),
    Fault(
        id="A9b",
        text="The step beyond the multi-destination copy forgets schedule and plan like the three before it.",
        case=at(Path.RELEASED, steps=5),
        injection=Combined(
            (
                AtSeam(seam.SCHEDULE, left_out, STALE, steps=(3,)),
                AtSeam(seam.PLAN, left_out, STALE, steps=(3,)),
            ),
            STALE,
        ),
        expected="refresh",
    ),
    Fault(
        id="A9c",
        text="The sibling copy into the last step forgets schedule and plan.",
        case=at(Path.RELEASED, P4, fusion=True, steps=4),
        injection=LeftOut((SCHEDULE, PLAN), steps=(2,)),
        expected="freshness",
        also=("refresh",),
    ),
    Fault(
        id="A9d",
        text="The refresh inside the graph was captured without the pooled plan.",
        case=at(Path.SHARED_IN_GRAPH, P4, fusion=True),
        injection=AtSeam(seam.POOL_PLAN, left_out, STALE),
        expected="freshness",
        also=("refresh",),
    ),
    Fault(
        id="A10",
        text="After the multi-destination copy the last of its steps is left without its pooled part.",
        case=at(Path.RELEASED, P4, steps=4),
        injection=AtSeam(seam.KPOOL_STAGED, left_out, STALE, steps=(2,)),
        expected="refresh",
        also=("freshness",),
    ),
    Fault(
        id="X4",
        letter="A",
        text="In the smaller bucket alone the plan is not refreshed.",
        case=at(),
        injection=AtSeam(seam.PLAN, left_out, STALE, when=InBucket(0)),
        expected="refresh",
        also=("freshness",),
    ),
    Fault(
        id="X4b",
        letter="A",
        text="After a bucket switch the pooled fields are taken for fresh.",
        case=at(model=P4, drill=Drill.BUCKET_SWITCH),
        injection=AtSeam(seam.POOLED, left_out, STALE, when=Switched()),
        expected="freshness",
        also=("refresh",),
    ),
    Fault(
        id="X6",
        letter="A",
        text="The whole refresh is left out where the same requests come again.",
        case=at(),
        injection=AtSeam(seam.OUT_GRAPH, left_out, SKIPPED, when=Same(keys.requests)),
        expected="freshness",
        also=("refresh",),
    ),
    Fault(
        id="X6b",
        letter="A",
        text="A step's base buffers are not copied while lengths and requests are the same: pages moved.",
        case=at(Path.RELEASED, P4, fusion=True),
        injection=AtSeam(seam.BASE_COPY, left_out, SKIPPED, steps=(1,), when=Same(keys.lengths_and_requests)),
        expected="freshness",
        also=("refresh",),
    ),
    Fault(
        id="C7",
        text="In-graph: whether a schedule is made at all was decided by the captured lengths.",
        case=at(Path.SHARED_IN_GRAPH, P1),
        injection=AtSeam(seam.SCHEDULE, not_when_short, "frozen branch"),
        expected="freshness",
        also=("refresh",),
    ),
)
