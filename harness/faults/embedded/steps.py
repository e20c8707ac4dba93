"""Class H: sharing, caching and aliasing across draft steps, and mutants of the shared path (X)."""

from __future__ import annotations

from typing import Any

import torch

from harness.faults.catalogue import Fault
from harness.faults.embedded.derived import PLAN, POOLED_PLAN, POOLED_SCHEDULE, SCHEDULE
from harness.faults.embedded.frozen import replaced
from harness.faults.embedded.padding import kept_padding
from harness.faults.geometry import P1, at
from harness.faults.mechanisms import keys, rules
from harness.faults.mechanisms.binding import NotRepointed, OwnObject, StateRebound
from harness.faults.mechanisms.combined import Combined, Unchanged
from harness.faults.mechanisms.formulas import lengths
from harness.faults.mechanisms.forward import Computed, ForwardWrites, Outputs, Reads, with_leaves
from harness.faults.mechanisms.life import Around, OtherRoute
from harness.faults.mechanisms.rounds import captured_batch_only
from harness.faults.mechanisms.timing import LeftOut, Reading, Repeated, Skipped
from harness.faults.mechanisms.values import Rewritten, Spot
from harness.faults.mechanisms.when import ALWAYS, Every, Same
from harness.faults.scene import Given, Scene
from harness.fields import COUNTER
from harness.sut.protocol import StepOutputs
from harness.types import Drill, Kernel, Path

SHARED = "shared though it belongs to a step"


def map_of_another_layout(spot: Spot) -> torch.Tensor:
    """Rows looked up as if every request had N tokens in the batch."""
    row = torch.arange(spot.fresh.shape[0], device=spot.fresh.device)
    return spot.fresh[row // spot.scene.case.variant.draft_tokens]


def fresh_copies(scene: Scene, bucket: int) -> None:
    """Bring the last step's own leaves up to step 0's."""
    mine = scene.leaves(len(scene.steps) - 1, bucket)
    for name, leaf in scene.leaves(0, bucket).items():
        mine[name].copy_(leaf)


def seeds_of_the_rows(scene: Scene, given: Given) -> Given:
    """Lengths stay in their rows when a request in front of them has gone."""
    place = "rows", scene.round.bucket
    before: list[int] = scene.memory.get(place, [])
    now = scene.round.requests.tolist()
    scene.memory[place] = now
    gone = [row for row, request in enumerate(before) if request not in now]
    if len(gone) != 1 or not gone[0]:
        return given
    order = [*range(1, len(now)), 0]
    return Given(given.lengths[order], given.requests, given.accepted, given.table)


def with_the_rejected_tail(scene: Scene, given: Given) -> Given:
    """Lengths as drafted, though fewer tokens were accepted."""
    drafted = given.lengths + scene.case.variant.draft_tokens
    capped = torch.minimum(drafted, torch.full_like(drafted, scene.case.geometry.width))
    lengths = torch.where(given.requests == 0, given.lengths, capped)
    return Given(lengths, given.requests, given.accepted, given.table)


def first_counter(scene: Scene, step: int, old: torch.Tensor) -> torch.Tensor:
    """Step 0's counter for every step."""
    counter = scene.target.roots()[0].state[COUNTER]
    assert isinstance(counter, torch.Tensor)
    return counter


def next_to_it(scene: Scene, step: int, old: torch.Tensor) -> torch.Tensor:
    """A counter that begins on the last element of the one before."""
    block = scene.recall("counters", lambda: old.new_zeros((old.shape[0] - 1) * len(scene.steps) + 1))
    start = step * (old.shape[0] - 1)
    return block[start : start + old.shape[0]]


def into_step_0(scene: Scene, bucket: int, outputs: Outputs) -> Outputs:
    """Step 1's attention is written where step 0's is."""
    target = outputs[0].computed["attention"]
    target.copy_(outputs[1].computed["attention"])
    return replaced(outputs, 1, attention=target)


def borrowed(scene: Scene, bucket: int, outputs: Outputs) -> Outputs:
    """What a step leaves behind is a view of a buffer that the last step writes, too."""
    shared = outputs[-1].computed["draft_token"]
    return tuple(StepOutputs(one.read, {**one.computed, "draft_token": shared}) for one in outputs)


def a_little_more(scene: Scene, bucket: int, outputs: Outputs) -> Outputs:
    """The last bits of one step's attention are others."""
    return replaced(outputs, 1, attention=outputs[1].computed["attention"] * 1.0000002)


def own_lengths(scene: Scene, bucket: int, metadata: Any) -> Any:
    """Read the lengths through a buffer that grows by a token per step, as positions do."""
    return with_leaves(metadata, cache_seqlens_int32=metadata.cache_seqlens_int32 + 1)


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
        id="H1",
        text="Later steps look rows up in the map that was built for N tokens per request.",
        case=at(Path.INDEPENDENT),
        injection=Rewritten(
            ("kpool_write_plan.req", "page_table_1", "real_page_table"),
            map_of_another_layout,
            "wrong step's object",
            steps=(1,),
        ),
        expected="equivalence",
    ),
    Fault(
        id="H3",
        text="A cache that all steps share holds the last step's result where step 0's is read.",
        case=at(model=P1),
        injection=Computed(into_step_0, SHARED),
        expected="output",
    ),
    Fault(
        id="H3b",
        text="A step reads lengths of its own that have moved on by a token.",
        case=at(model=P1),
        injection=Reads(own_lengths, "wrong step's object"),
        expected="output",
    ),
    Fault(
        id="H3c",
        text="One step's attention differs in its last bits.",
        case=at(model=P1),
        injection=Computed(a_little_more),
        expected="output",
    ),
    Fault(
        id="H4",
        text="Sharing never engages: the last step has copies of its own, and they are kept right.",
        case=at(model=P1, steps=4),
        injection=Combined(
            (
                Around(fresh_copies, "own object", hidden=True),
                OwnObject(step=2, again=True),
            ),
            "own object",
        ),
        expected="aliasing",
    ),
    Fault(
        id="H6",
        text="When a request goes, lengths stay in the rows that they had.",
        case=at(model=P1, bucket=8),
        injection=Reading(seeds_of_the_rows, "wrong row"),
        expected="equivalence",
    ),
    Fault(
        id="H7",
        text="What later steps need not read again is skipped with what they have to write.",
        case=at(Path.SIBLING_COPY),
        injection=LeftOut(
            tuple(f"kpool_write_plan.{name}" for name in ("req", "write_start", "write_loc")), steps=(1,)
        ),
        expected="freshness",
        also=("refresh",),
    ),
    Fault(
        id="H9",
        text="The tail that was rejected stays visible to the next drafts.",
        case=at(),
        injection=Reading(with_the_rejected_tail, "wrong mode"),
        expected="equivalence",
    ),
    Fault(
        id="H10",
        text="A switch for sharing is understood as a request that cannot be met: the ordinary path runs.",
        case=at(model=P1),
        injection=OtherRoute("independent"),
        expected="routing",
    ),
    Fault(
        id="H12",
        text="A buffer that belongs to each step, its KV counter, is shared with the rest.",
        case=at(model=P1, kernel=Kernel.TRTLLM),
        injection=StateRebound(COUNTER, first_counter, "init", SHARED, steps=(1,)),
        expected="aliasing",
    ),
    Fault(
        id="H13",
        text="A step's draft token is a borrowed view of what the last step writes.",
        case=at(model=P1),
        injection=Computed(borrowed, "borrowed output"),
        expected="output",
    ),
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
    Fault(
        id="H1b",
        text="A step copies the write plan of its sibling one refresh late.",
        case=at(Path.SIBLING_COPY, steps=4),
        injection=Rewritten(
            ("kpool_write_plan.write_loc", "kpool_write_plan.write_start"),
            rules.late,
            "late refresh",
            steps=(2,),
            when=ALWAYS,
        ),
        expected="freshness",
        also=("equivalence",),
    ),
)
