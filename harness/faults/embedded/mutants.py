"""Mutants written for shared draft metadata (X), with the letter of the class that each belongs to."""

from __future__ import annotations

from typing import Any

import torch

from harness.faults.catalogue import Fault
from harness.faults.embedded.derived import PLAN, POOLED_PLAN, POOLED_SCHEDULE, SCHEDULE
from harness.faults.embedded.padding import kept_padding
from harness.faults.geometry import P1, at
from harness.faults.mechanisms import keys
from harness.faults.mechanisms.binding import NotRepointed, OwnObject, StateRebound
from harness.faults.mechanisms.combined import Unchanged
from harness.faults.mechanisms.formulas import lengths
from harness.faults.mechanisms.forward import ForwardWrites
from harness.faults.mechanisms.life import Around
from harness.faults.mechanisms.rounds import captured_batch_only
from harness.faults.mechanisms.timing import LeftOut, Repeated, Skipped
from harness.faults.mechanisms.values import Rewritten, Spot
from harness.faults.mechanisms.when import Every, Same
from harness.faults.scene import Scene
from harness.fields import COUNTER
from harness.types import Drill, Kernel, Path


def next_to_it(scene: Scene, step: int, old: torch.Tensor) -> torch.Tensor:
    """A counter that begins on the last element of the one before."""
    block = scene.recall("counters", lambda: old.new_zeros((old.shape[0] - 1) * len(scene.steps) + 1))
    start = step * (old.shape[0] - 1)
    return block[start : start + old.shape[0]]


def longer(scene: Scene, bucket: int, metadata: Any) -> None:
    """Count a token more."""
    metadata.cache_seqlens_int32.add_(1)


def the_same(scene: Scene, bucket: int, metadata: Any) -> None:
    """Write the schedule's own values into it."""
    metadata.paged_mqa_schedule_metadata.copy_(metadata.paged_mqa_schedule_metadata.clone())


def schedule_again(scene: Scene, bucket: int) -> None:
    """Write the schedule's own values into it once more."""
    leaf = scene.leaf(0, bucket, SCHEDULE)
    leaf.copy_(leaf.clone())


def rounded_up(spot: Spot, given: Any) -> Any:
    """Pools counted with the incomplete one."""
    return -(-given // spot.dims.pool)


FAULTS = (
    Fault(
        id="X1",
        letter="H",
        text="A step aliases step 0 in the larger bucket and keeps an object of its own in the smaller.",
        case=at(model=P1),
        injection=OwnObject(buckets=(0,), again=True),
        expected="aliasing",
    ),
    Fault(
        id="X1b",
        letter="H",
        text="In a round after a bucket switch a step still reads the other bucket's object.",
        case=at(drill=Drill.BUCKET_SWITCH),
        injection=NotRepointed(),
        expected="aliasing",
    ),
    Fault(
        id="X2",
        letter="H",
        text="The object is shared and the write plan nested in it is not.",
        case=at(),
        injection=OwnObject(nested="kpool_write_plan", again=True),
        expected="aliasing",
    ),
    Fault(
        id="X2b",
        letter="H",
        text="In-graph: the optional tile plan nested in the shared object is the step's own.",
        case=at(Path.SHARED_IN_GRAPH, P1, kernel=Kernel.FLASHMLA_KV),
        injection=OwnObject(nested="flashmla_metadata"),
        expected="aliasing",
    ),
    Fault(
        id="X4",
        letter="A",
        text="Step 0 refreshes lengths and tables for all, neither schedule nor plan.",
        case=at(model=P1),
        injection=LeftOut((SCHEDULE, PLAN)),
        expected="freshness",
        also=("refresh",),
    ),
    Fault(
        id="X4b",
        letter="A",
        text="The same of the pooled schedule and plan.",
        case=at(fusion=True),
        injection=LeftOut((POOLED_SCHEDULE, POOLED_PLAN)),
        expected="freshness",
        also=("refresh",),
    ),
    Fault(
        id="X5",
        letter="H",
        text="Every step refreshes the object that it shares: the values are right, the feature is dead.",
        case=at(model=P1),
        injection=Repeated(2),
        expected="refresh",
    ),
    Fault(
        id="X5b",
        letter="H",
        text="One leaf is written twice.",
        case=at(Path.INDEPENDENT, P1),
        injection=Around(schedule_again, "duplicated refresh"),
        expected="refresh",
    ),
    Fault(
        id="X6",
        letter="A",
        text="The refresh is left out where the same bucket comes again.",
        case=at(model=P1),
        injection=Skipped(Same(keys.bucket)),
        expected="freshness",
        also=("refresh",),
    ),
    Fault(
        id="X6b",
        letter="A",
        text="Every second refresh is left out.",
        case=at(model=P1, drill=Drill.REPEAT),
        injection=Skipped(Every(2)),
        expected="freshness",
        also=("refresh",),
    ),
    Fault(
        id="X7",
        letter="G",
        text="A step counts a token more in the lengths that the steps after it read.",
        case=at(model=P1),
        injection=ForwardWrites(longer),
        expected="readonly",
    ),
    Fault(
        id="X7b",
        letter="G",
        text="A step writes into the shared schedule the values that are there.",
        case=at(model=P1),
        injection=ForwardWrites(the_same, step=1),
        expected="readonly",
    ),
    Fault(
        id="X9",
        letter="F",
        text="Three requests after four: the fourth row keeps its pages.",
        case=at(drill=Drill.PADDED),
        injection=Rewritten(("page_table_1", "real_page_table"), kept_padding, "padded rows not refreshed"),
        expected="equivalence",
        also=("freshness",),
    ),
    Fault(
        id="X10",
        letter="K",
        text="Pools are counted up to the incomplete one.",
        case=at(),
        injection=Rewritten(("pooled_cache_seqlens_int32",), lengths(rounded_up), "wrong rounding"),
        expected="equivalence",
    ),
    Fault(
        id="X11",
        letter="K",
        text="With fusion the pooled table comes from the kernel of the base table.",
        case=at(fusion=True),
        injection=Rewritten(
            ("pooled_real_page_table",),
            lambda spot: spot.sibling("real_page_table")[:, :: spot.dims.pool],
            "wrong formula",
        ),
        expected="equivalence",
    ),
    Fault(
        id="X14",
        letter="J",
        text="The steps' KV counters lie in one block, each on the last element of the one before.",
        case=at(model=P1, kernel=Kernel.TRTLLM),
        injection=StateRebound(COUNTER, next_to_it, "init", "overlapping allocation"),
        expected="aliasing",
    ),
    Fault(
        id="X18",
        letter="C",
        text="All rounds of a run replay the batch that was captured.",
        case=at(model=P1),
        injection=Unchanged("weak rounds"),
        expected="evidence",
        rounds=captured_batch_only,
    ),
)
