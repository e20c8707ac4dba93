"""Class H: sharing, caching and aliasing across draft steps; mutants of the shared path are in `sharing`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from harness.faults.catalogue import Fault
from harness.faults.mechanisms import rules
from harness.faults.mechanisms.binding import StateRebound
from harness.faults.mechanisms.combined import Combined
from harness.faults.mechanisms.timing import LeftOut, Reading
from harness.faults.mechanisms.values import Rewritten, Spot
from harness.faults.scene import Given, Scene
from harness.faults.sglang import seam
from harness.faults.sglang.geometry import P4, at
from harness.faults.sglang.seam import CAPTURE, INITIAL, REFRESH, AtSeam
from harness.fields import COUNTER
from harness.types import Kernel, Path

LATE = "late refresh"
NOT_SHARED = "sharing not engaged"


def map_of_another_layout(spot: Spot) -> torch.Tensor:
    """Rows looked up as if every request had N tokens in the batch."""
    row = torch.arange(spot.fresh.shape[0], device=spot.fresh.device)
    return spot.fresh[row // spot.scene.case.variant.draft_tokens]


def state_for_each(
    scene: Scene, plain: Callable[..., None], multi: Any, max_bs: int, max_num_tokens: int
) -> None:
    """Make the graph state of every step in full, as without sharing."""
    scene.hit()
    for backend in multi.attn_backends:
        backend.init_cuda_graph_state(max_bs, max_num_tokens)


def each_by_itself(
    scene: Scene, plain: Callable[..., None], multi: Any, batch: Any, in_capture: bool = False
) -> None:
    """Have every step build and refresh its own metadata: the values are right."""
    scene.hit()
    for backend in multi.attn_backends:
        backend.init_forward_metadata_out_graph(batch, in_capture=in_capture)


def state_in_full(
    scene: Scene, plain: Callable[..., None], backend: Any, max_bs: int, max_num_tokens: int
) -> None:
    """Make buffers of its own for a step that will not use them."""
    scene.hit()
    backend.init_cuda_graph_state(max_bs, max_num_tokens)


def fused(on: bool) -> Callable[..., None]:
    """Return an around for all steps, whose KPool metadata fusion is on or off whatever was asked for."""

    def around(
        scene: Scene, plain: Callable[..., None], multi: Any, batch: Any, in_capture: bool = False
    ) -> None:
        for backend in multi.attn_backends:
            scene.hit(backend.experimental_kpool_metadata_fusion != on)
            backend.experimental_kpool_metadata_fusion = on
        plain(multi, batch, in_capture=in_capture)

    return around


def hoarded(scene: Scene, plain: Callable[..., None], backend: Any, first: Any, bs: int) -> None:
    """Keep a copy of the shared wide table beside the entries."""
    plain(backend, first, bs)
    kept = vars(backend).setdefault("tables_before", {})
    kept[bs] = first.decode_cuda_graph_metadata[bs].page_table_1.clone()
    scene.hit()


def with_the_rejected_tail(scene: Scene, given: Given) -> Given:
    """Lengths as drafted, though fewer tokens were accepted."""
    drafted = given.lengths + scene.case.variant.draft_tokens
    capped = torch.minimum(drafted, torch.full_like(drafted, scene.case.geometry.width))
    lengths = torch.where(given.requests == 0, given.lengths, capped)
    return Given(lengths, given.requests, given.accepted, given.table)


def seeds_of_the_rows(scene: Scene, given: Given) -> Given:
    """Lengths stay in their rows when a request in front of them has gone."""
    place = "rows", scene.round.bucket
    before: list[int] = scene.memory.get(place, [])
    now = scene.round.requests.tolist()
    scene.memory[place] = now
    gone = [row for row, request in enumerate(before) if request not in now]
    if not gone or len(gone) == len(before):
        return given
    order = [*range(1, len(now)), 0]
    return Given(given.lengths[order], given.requests, given.accepted, given.table)


def first_counter(scene: Scene, step: int, old: torch.Tensor) -> torch.Tensor:
    """Step 0's counter for every step."""
    counter = scene.target.roots()[0].state[COUNTER]
    assert isinstance(counter, torch.Tensor)
    return counter


FAULTS = (
    Fault(
        id="H1",
        text="Later steps look rows up in the map that was built for N tokens per request.",
        case=at(Path.RELEASED, P4, fusion=True),
        injection=Rewritten(
            ("kpool_write_plan.req", "page_table_1", "real_page_table"),
            map_of_another_layout,
            "wrong step's object",
            steps=(1,),
        ),
        expected="equivalence",
    ),
    Fault(
        id="H1b",
        text="A step copies the write plan of its sibling one refresh late.",
        case=at(Path.RELEASED, P4, fusion=True, steps=4),
        injection=Rewritten(
            ("kpool_write_plan.write_loc", "kpool_write_plan.write_start"), rules.late, LATE, steps=(2,)
        ),
        expected="freshness",
        also=("equivalence",),
    ),
    Fault(
        id="H4",
        text="Sharing never engages: every step builds and refreshes its own, and the values are right.",
        case=at(),
        injection=Combined(
            (
                AtSeam(seam.INIT, state_for_each, NOT_SHARED, during=(INITIAL,)),
                AtSeam(seam.OUT_GRAPH, each_by_itself, NOT_SHARED, during=(CAPTURE, REFRESH)),
            ),
            NOT_SHARED,
        ),
        expected="aliasing",
        also=("routing",),
    ),
    Fault(
        id="H4b",
        text="Steps that share are given wide buffers of their own all the same.",
        case=at(model=P4, steps=4),
        injection=AtSeam(seam.INIT_SHARED, state_in_full, "own state", during=(INITIAL,)),
        expected="aliasing",
    ),
    Fault(
        id="H4c",
        text="A step that shares keeps copies of the wide tables in a cache of its own.",
        case=at(),
        injection=AtSeam(seam.SHARE, hoarded, "own state", during=(CAPTURE,)),
        expected="aliasing",
    ),
    Fault(
        id="H10",
        text="The gate of KPool fusion forgets P > 1: P = 1 takes the path that copies from a sibling.",
        case=at(Path.RELEASED),
        injection=AtSeam(seam.OUT_GRAPH, fused(True), "wrong gate", during=(CAPTURE, REFRESH)),
        expected="routing",
    ),
    Fault(
        id="H10b",
        text="Sharing silently switches KPool fusion off.",
        case=at(model=P4, fusion=True),
        injection=AtSeam(seam.OUT_GRAPH, fused(False), "wrong gate", during=(CAPTURE, REFRESH)),
        expected="routing",
    ),
    Fault(
        id="H6",
        text="When a request goes, lengths stay in the rows that they had.",
        case=at(model=P4, bucket=4),
        injection=Reading(seeds_of_the_rows, "wrong row"),
        expected="equivalence",
    ),
    Fault(
        id="H7",
        text="What later steps need not read again is skipped with what they have to write.",
        case=at(Path.RELEASED, P4, fusion=True),
        injection=LeftOut(
            tuple(f"kpool_write_plan.{name}" for name in ("req", "write_start", "write_loc")), steps=(1,)
        ),
        expected="freshness",
        also=("refresh",),
    ),
    Fault(
        id="H9",
        text="The tail that was rejected stays visible to the next drafts.",
        case=at(model=P4),
        injection=Reading(with_the_rejected_tail, "wrong mode"),
        expected="equivalence",
    ),
    Fault(
        id="H12",
        text="A buffer that belongs to each step, its KV counter, is shared with the rest.",
        case=at(kernel=Kernel.TRTLLM),
        injection=StateRebound(COUNTER, first_counter, "init", "shared though a step's own", steps=(1,)),
        expected="aliasing",
    ),
)
