"""Class B: what a graph has captured is rebound, reallocated or freed."""

from __future__ import annotations

import torch

from harness.faults.catalogue import Fault
from harness.faults.geometry import P1, at
from harness.faults.mechanisms.binding import MadeOtherwise, Rebound, StateRebound
from harness.faults.mechanisms.life import AtCapture
from harness.faults.mechanisms.timing import LeftOut
from harness.faults.mechanisms.when import ALWAYS, Nth, Switched
from harness.faults.scene import Scene
from harness.fields import COUNTER
from harness.types import Drill, Kernel, Path

GROWN = "grown on demand"
FREED = "freed by a cache"


def twice_as_large(scene: Scene, step: int, old: torch.Tensor) -> torch.Tensor:
    """Return a zeroed tensor of twice the rows."""
    return torch.zeros((2 * old.shape[0], *old.shape[1:]), dtype=old.dtype, device=old.device)


def elsewhere(scene: Scene, step: int, old: torch.Tensor) -> torch.Tensor:
    """Return a copy."""
    return old.clone()


def overlapping(scene: Scene, bucket: int, leaf: torch.Tensor) -> torch.Tensor:
    """Return the leaf as a part of another captured bucket's, where there is one that holds it."""
    for other in reversed(scene.buckets):
        theirs = scene.leaf(0, other, "real_page_table")
        if other > bucket and theirs.shape[0] > leaf.shape[0]:
            return theirs[1 : 1 + leaf.shape[0]]
    return leaf


def drop_the_others(scene: Scene, bucket: int) -> bool:
    """On a bucket's second capture, free what the other buckets' graphs have of the workspace."""
    if not scene.memory.setdefault(("captured", bucket), False):
        scene.memory["captured", bucket] = True
        return False
    for other in scene.buckets:
        if other != bucket:
            name = "paged_mqa_schedule_metadata"
            scene.bind(0, other, name, scene.leaf(0, other, name).clone())
    return True


FAULTS = (
    Fault(
        id="B1",
        text="An eager call with more query rows than the KV counter serves replaces the captured counter.",
        case=at(kernel=Kernel.TRTLLM, drill=Drill.OVERSIZE),
        injection=StateRebound(COUNTER, twice_as_large, "eager", GROWN),
        expected="address",
    ),
    Fault(
        id="B1b",
        text="The KV counter of the last step alone grows with an eager call.",
        case=at(Path.INDEPENDENT, P1, kernel=Kernel.TRTLLM, drill=Drill.OVERSIZE),
        injection=StateRebound(COUNTER, twice_as_large, "eager", GROWN, steps=(1,)),
        expected="address",
    ),
    Fault(
        id="B3",
        text="The table of a smaller bucket's graph lies inside a larger bucket's: their pools overlap.",
        case=at(),
        injection=MadeOtherwise("real_page_table", overlapping, "overlapping allocation"),
        expected="aliasing",
        also=("refresh", "equivalence"),
    ),
    Fault(
        id="B4",
        text="The top-k plan is scratch of one call: the next one lies elsewhere, the old one is freed.",
        case=at(model=P1),
        injection=Rebound("topk_v2_plan", Nth(5), free=True, before=True),
        expected="address",
    ),
    Fault(
        id="B6",
        text="A later, larger eager call replaces a workspace that a graph captured under the same name.",
        case=at(model=P1, drill=Drill.OVERSIZE),
        injection=StateRebound("page_table", twice_as_large, "eager", GROWN),
        expected="address",
    ),
    Fault(
        id="B7",
        text="A cache of planned tensors, keyed by the lengths, evicts the one that a graph captured.",
        case=at(model=P1, kernel=Kernel.FLASHMLA_KV),
        injection=Rebound("flashmla_metadata.num_splits", Nth(6), free=True, before=True, kind=FREED),
        expected="address",
    ),
    Fault(
        id="B9",
        text="Capturing one bucket again frees the workspace of the other buckets' graphs.",
        case=at(model=P1, drill=Drill.RECAPTURE),
        injection=AtCapture(drop_the_others, FREED),
        expected="address",
    ),
    Fault(
        id="B12",
        text="The replay rebuilds the prefix sums of the eager twin, not those that the graph is bound to.",
        case=at(model=P1),
        injection=LeftOut(("cu_seqlens_k",)),
        expected="freshness",
        also=("refresh",),
    ),
    Fault(
        id="B13",
        text="The copy into a sibling assigns the write locations instead of copying into them.",
        case=at(Path.SIBLING_COPY),
        injection=Rebound("kpool_write_plan.write_loc", ALWAYS, step=1),
        expected="address",
    ),
    Fault(
        id="B13b",
        text="A leaf is assigned anew only when the bucket changes.",
        case=at(drill=Drill.BUCKET_SWITCH),
        injection=Rebound("pooled_real_page_table", Switched()),
        expected="address",
    ),
    Fault(
        id="B15",
        text="Prefix sums are created by every refresh while the graph reads the first ones' address.",
        case=at(Path.INDEPENDENT, P1, drill=Drill.CHURN),
        injection=Rebound("dsa_cu_seqlens_k", ALWAYS, free=True, before=True),
        expected="address",
    ),
    Fault(
        id="B15b",
        text="The wide page table is made anew when its bucket is captured again.",
        case=at(Path.INDEPENDENT, P1, drill=Drill.RECAPTURE),
        injection=StateRebound("page_table", elsewhere, "capture", "rebound leaf"),
        expected="address",
    ),
)
