"""Class H: sharing, caching and aliasing across draft steps, and mutants of the shared path (X)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch

from harness.faults.catalogue import Fault
from harness.faults.mechanisms import rules
from harness.faults.mechanisms.binding import NotRepointed, StateRebound
from harness.faults.mechanisms.combined import Combined
from harness.faults.mechanisms.forward import with_leaves
from harness.faults.mechanisms.life import Around
from harness.faults.mechanisms.timing import LeftOut, Reading, Repeated
from harness.faults.mechanisms.values import Rewritten, Spot
from harness.faults.scene import Given, Scene
from harness.faults.sglang import seam
from harness.faults.sglang.geometry import P1, P4, at
from harness.faults.sglang.seam import CAPTURE, INITIAL, REFRESH, STAGE, AtSeam, StagedRefresh
from harness.fields import COUNTER
from harness.types import Drill, Kernel, Path

OWN = "own object"
LATE = "late refresh"
FOR_EACH = "duplicated refresh"
NOT_SHARED = "sharing not engaged"
SHARES = (CAPTURE, REFRESH, STAGE)
"""Calls in which steps are pointed at step 0's object."""


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


def the_larger_buckets(scene: Scene, plain: Callable[..., None], backend: Any, first: Any, bs: int) -> None:
    """Point at step 0's object of the next larger bucket, where there is one."""
    entries = first.decode_cuda_graph_metadata
    larger = [key for key in entries if isinstance(key, int) and key > bs]
    plain(backend, first, bs)
    if larger:
        scene.hit()
        backend.decode_cuda_graph_metadata[bs] = entries[min(larger)]
        backend.forward_metadata = entries[min(larger)]


def with_its_own(name: str) -> Callable[..., None]:
    """Return an around for sharing, which leaves a step a copy of one nested object or leaf."""

    def around(scene: Scene, plain: Callable[..., None], backend: Any, first: Any, bs: int) -> None:
        plain(backend, first, bs)
        shared = first.decode_cuda_graph_metadata[bs]
        own = scene.recall((name, bs), lambda: _copied(getattr(shared, name)))
        scene.hit()
        backend.decode_cuda_graph_metadata[bs] = dataclasses.replace(shared, **{name: own})
        backend.forward_metadata = backend.decode_cuda_graph_metadata[bs]

    return around


def _copied(value: Any) -> Any:
    """Return a tensor's clone, a dataclass with its tensors and nested dataclasses copied, or the value."""
    if isinstance(value, torch.Tensor):
        return value.clone()
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return value
    return dataclasses.replace(value, **{name: _copied(part) for name, part in vars(value).items()})


def its_own_in_the_smaller(
    scene: Scene, plain: Callable[..., None], backend: Any, first: Any, bs: int
) -> None:
    """Keep an object of its own, made at the capture, in buckets smaller than the case's."""
    plain(backend, first, bs)
    if bs < scene.case.bucket:
        shared = first.decode_cuda_graph_metadata[bs]
        own = scene.recall(("own", backend.speculative_step_id, bs), lambda: _copied(shared))
        scene.hit()
        backend.decode_cuda_graph_metadata[bs] = own
        backend.forward_metadata = own


def only_at_capture(scene: Scene, plain: Callable[..., None], backend: Any, first: Any, bs: int) -> None:
    """Leave a step pointed at whatever it was pointed at last."""
    scene.hit(backend.forward_metadata is not first.decode_cuda_graph_metadata[bs])


def schedule_again(scene: Scene, plain: Callable[..., None], backend: Any, first: Any, bs: int) -> None:
    """Refresh the shared schedule once more for each step that shares it."""
    plain(backend, first, bs)
    metadata = first.decode_cuda_graph_metadata[bs]
    first._refresh_paged_mqa_schedule_metadata(metadata, metadata.paged_mqa_ctx_lens_2d)
    scene.hit()


def outside_as_well(
    scene: Scene, plain: Callable[..., None], multi: Any, batch: Any, in_capture: bool = False
) -> None:
    """Refresh before the graph what the graph refreshes itself."""
    plain(multi, batch, in_capture=in_capture)
    if not in_capture:
        scene.hit()
        multi.attn_backends[0].init_forward_metadata_out_graph(batch)


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


def one_leaf_only(scene: Scene, bucket: int) -> None:
    """Give the last step a table of its own in the smaller bucket, and keep it right."""
    last = len(scene.steps) - 1
    if bucket == scene.buckets[0]:
        shared = scene.metadata(0, bucket)
        own = scene.recall("table", shared.real_page_table.clone)
        with scene.quiet():
            own.copy_(shared.real_page_table)
        scene.target.point(last, bucket, with_leaves(shared, real_page_table=own))


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
        id="H6",
        text="When a request goes, lengths stay in the rows that they had.",
        case=at(bucket=4),
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
    Fault(
        id="X1",
        letter="H",
        text="A step aliases step 0 in the larger bucket and keeps an object of its own in the smaller.",
        case=at(model=P4),
        injection=AtSeam(seam.SHARE, its_own_in_the_smaller, OWN, during=SHARES),
        expected="aliasing",
    ),
    Fault(
        id="X1b",
        letter="H",
        text="Staged: in a round after a bucket switch a step still reads the other bucket's object.",
        case=at(drill=Drill.BUCKET_SWITCH),
        injection=Combined((StagedRefresh(), NotRepointed()), "wrong bucket's object"),
        expected="aliasing",
    ),
    Fault(
        id="X1c",
        letter="H",
        text="A step shares step 0's object of the next larger bucket.",
        case=at(model=P4),
        injection=AtSeam(seam.SHARE, the_larger_buckets, "wrong bucket's object", during=SHARES),
        expected="aliasing",
    ),
    Fault(
        id="X1d",
        letter="H",
        text="The steps of an in-graph refresh are pointed at the bucket's object at its capture only.",
        case=at(Path.SHARED_IN_GRAPH, drill=Drill.BUCKET_SWITCH),
        injection=AtSeam(seam.SHARE, only_at_capture, "wrong bucket's object", during=(STAGE,)),
        expected="aliasing",
    ),
    Fault(
        id="X2",
        letter="H",
        text="The object is shared and the write plan nested in it is not.",
        case=at(model=P4),
        injection=AtSeam(seam.SHARE, with_its_own("kpool_write_plan"), OWN, during=SHARES),
        expected="aliasing",
    ),
    Fault(
        id="X2b",
        letter="H",
        text="In-graph: the optional tile plan nested in the shared object is the step's own.",
        case=at(Path.SHARED_IN_GRAPH, kernel=Kernel.FLASHMLA_KV),
        injection=AtSeam(seam.SHARE, with_its_own("flashmla_metadata"), OWN, during=SHARES),
        expected="aliasing",
    ),
    Fault(
        id="X2c",
        letter="H",
        text="Of all leaves the pooled schedule alone is a step's own.",
        case=at(Path.SHARED_IN_GRAPH, P4, fusion=True),
        injection=AtSeam(seam.SHARE, with_its_own("pooled_paged_mqa_schedule_metadata"), OWN, during=SHARES),
        expected="aliasing",
    ),
    Fault(
        id="X2d",
        letter="H",
        text="In the smaller bucket the last step has a page table of its own, equal at every replay.",
        case=at(steps=4),
        injection=Around(one_leaf_only, OWN),
        expected="aliasing",
    ),
    Fault(
        id="X5",
        letter="H",
        text="The shared object is refreshed as often as there are steps: right values, a dead feature.",
        case=at(model=P1),
        injection=Repeated(2),
        expected="refresh",
    ),
    Fault(
        id="X5b",
        letter="H",
        text="Each step that shares has the schedule made once more.",
        case=at(model=P4, fusion=True),
        injection=AtSeam(seam.SHARE, schedule_again, FOR_EACH),
        expected="refresh",
    ),
    Fault(
        id="X5c",
        letter="H",
        text="What the graph refreshes is refreshed before it, too.",
        case=at(Path.SHARED_IN_GRAPH),
        injection=AtSeam(seam.OUT_GRAPH, outside_as_well, FOR_EACH, during=(STAGE,)),
        expected="routing",
        also=("refresh",),
    ),
)
