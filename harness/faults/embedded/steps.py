"""Class H: sharing, caching and aliasing across draft steps."""

from __future__ import annotations

from typing import Any

import torch

from harness.faults.catalogue import Fault
from harness.faults.embedded.frozen import replaced
from harness.faults.geometry import P1, at
from harness.faults.mechanisms import rules
from harness.faults.mechanisms.binding import OwnObject, StateRebound
from harness.faults.mechanisms.combined import Combined
from harness.faults.mechanisms.forward import Computed, Outputs, Reads, with_leaves
from harness.faults.mechanisms.life import Around, OtherRoute
from harness.faults.mechanisms.timing import LeftOut, Reading
from harness.faults.mechanisms.values import Rewritten, Spot
from harness.faults.mechanisms.when import ALWAYS
from harness.faults.scene import Given, Scene
from harness.fields import COUNTER
from harness.sut.protocol import StepOutputs
from harness.types import Kernel, Path

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
