"""Changes of SGLang that no check may notice."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch

from harness import oracle
from harness.faults.catalogue import Harmless
from harness.faults.mechanisms import formulas
from harness.faults.mechanisms.binding import StateRebound
from harness.faults.mechanisms.combined import Unchanged
from harness.faults.mechanisms.forward import Reads
from harness.faults.mechanisms.life import Around, AtCapture, OtherStream
from harness.faults.mechanisms.rounds import happening
from harness.faults.mechanisms.timing import Reading
from harness.faults.mechanisms.values import Rewritten, Spot
from harness.faults.scene import Given, Scene
from harness.faults.sglang import seam
from harness.faults.sglang.geometry import P1, P4, at
from harness.faults.sglang.seam import AtSeam, StagedRefresh
from harness.faults.sglang.sharing import SHARES
from harness.fields import COUNTER
from harness.rounds import Eager, Pause
from harness.types import Drill, Kernel, Mode, Path

JUNK = "junk where nothing is defined"
OTHER = "equal values, made otherwise"


def permuted(scene: Scene, plain: Callable[..., torch.Tensor], *args: Any, **given: Any) -> torch.Tensor:
    """Return a plan with its rows in the reverse order and, in a temporary, junk past them."""
    plan = plain(*args, **given)
    count = int(plan[0, 1])
    if count < plan.shape[0]:  # a plan that is not written may count anything
        with scene.quiet():  # the pooled plan is a leaf, which the planner writes
            plan[1 : count + 1] = plan[1 : count + 1].flip(0)
            if "out" not in given:
                plan[count + 1 :] = 12345
    scene.hit()
    return plan


def past_the_lengths(spot: Spot) -> torch.Tensor:
    """Columns past a row's length hold an id out of any range."""
    unit = -(-spot.dims.width // spot.fresh.shape[1])
    column = torch.arange(spot.fresh.shape[1], device=spot.fresh.device) * unit
    reach = torch.from_numpy(formulas.per_row(spot, oracle.base_lengths(spot.dims, spot.round)))
    return torch.where(column[None, :] < reach.to(column.device)[:, None], spot.fresh, 1 << 30)


def from_the_one_before(
    scene: Scene, plain: Callable[..., None], backend: Any, *, src_backend: Any, **given: Any
) -> None:
    """Copy from the step before, not from step 0."""
    before = scene.target.backends[backend.speculative_step_id - 1]  # type: ignore[attr-defined]
    scene.hit(before is not src_backend)
    plain(backend, src_backend=before, **given)


def pointed_first(
    scene: Scene, plain: Callable[..., None], multi: Any, batch: Any, in_capture: bool = False
) -> None:
    """Point the steps at the bucket's object before it is refreshed, as well as after."""
    first, *others = multi.attn_backends
    for backend in others:
        backend._share_cuda_graph_metadata(first, batch.batch_size)
    plain(multi, batch, in_capture=in_capture)
    scene.hit()


def over_the_same_tensors(
    scene: Scene, plain: Callable[..., None], backend: Any, first: Any, bs: int
) -> None:
    """Share step 0's tensors through an object of the step's own."""
    plain(backend, first, bs)
    shared = first.decode_cuda_graph_metadata[bs]
    own = scene.recall((backend.speculative_step_id, bs, id(shared)), lambda: dataclasses.replace(shared))
    backend.decode_cuda_graph_metadata[bs] = own
    backend.forward_metadata = own
    scene.hit()


def by_the_formula(
    scene: Scene, plain: Callable[..., None], backend: Any, metadata: Any, lengths: torch.Tensor
) -> None:
    """Make the schedule on the host, by the formula."""
    context = lengths.reshape(-1).numpy()
    schedule = oracle.schedule(context, scene.case.geometry.num_sms)
    metadata.paged_mqa_schedule_metadata.copy_(torch.from_numpy(schedule))
    scene.hit()


def by_way_of_doubles(scene: Scene, given: Given) -> Given:
    """Lengths, ids and tokens pass through temporaries of another dtype that holds them exactly."""
    table = given.table.to(torch.float64).to(given.table.dtype)
    return Given(
        given.lengths.to(torch.float64).to(torch.int64), given.requests.clone(), given.accepted, table
    )


def junk_of_dead_requests(scene: Scene, given: Given) -> Given:
    """Rows of the request table that no request of the round names, and dead columns of the others."""
    column = torch.arange(given.table.shape[1], device=given.table.device)
    reach = torch.zeros(given.table.shape[0], dtype=torch.int64, device=given.table.device)
    grown = scene.case.metadata_tokens if scene.case.mode is Mode.TARGET_VERIFY else 0
    page = scene.case.model.page_tokens
    reach[given.requests] = -(-(given.lengths + grown) // page) * page
    junk = given.table.max() // page * page + column % page
    table = torch.where(column[None, :] < reach[:, None], given.table, junk[None, :].to(given.table.dtype))
    return Given(given.lengths, given.requests, given.accepted, table)


def allocate(scene: Scene, bucket: int) -> None:
    """Allocate blocks of many sizes, and free them."""
    for size in (1 << power for power in range(4, 16)):
        torch.full((size,), -7, dtype=torch.int32, device=scene.engine.device)


def with_room(scene: Scene, step: int, old: torch.Tensor) -> torch.Tensor:
    """A counter with more rows than needed, before anything is captured."""
    return old.new_zeros(2 * old.shape[0])


def a_note(scene: Scene, bucket: int) -> None:
    """A host attribute beside the leaves, the same from capture to the last replay."""
    scene.bind(0, bucket, "note", f"made for {bucket}")


def a_copy_to_read(scene: Scene, bucket: int, metadata: Any) -> Any:
    """A step reads copies of constants and tables that the graph itself makes."""
    return dataclasses.replace(
        metadata,
        page_table_1=metadata.page_table_1.clone(),
        dsa_cu_seqlens_q=metadata.dsa_cu_seqlens_q.clone(),
    )


CHANGES = (
    Harmless(
        id="Y1",
        text="Nothing is changed at all, on every path and in every mode.",
        cases=(
            at(Path.RELEASED, P4),
            at(Path.RELEASED, P1, steps=5),
            at(Path.RELEASED, P4, fusion=True, steps=4),
            at(kernel=Kernel.TRTLLM, drill=Drill.OVERSIZE),
            at(kernel=Kernel.FLASHMLA_KV),
            at(Path.SHARED_IN_GRAPH, P4, fusion=True),
            at(mode=Mode.TARGET_VERIFY, steps=2),
            at(model=P4, mode=Mode.DRAFT_EXTEND),
        ),
        injection=Unchanged(),
    ),
    Harmless(
        id="X16",
        text="Rows of a top-k plan stand in another order, and junk follows them.",
        cases=(at(), at(Path.RELEASED, P4, fusion=True)),
        injection=AtSeam(seam.PLANNER, permuted, "permuted rows"),
    ),
    Harmless(
        id="X17",
        text="Dead columns of all page tables hold ids out of any range.",
        cases=(at(Path.RELEASED, P4, steps=4),),
        injection=Rewritten(("page_table_1", "real_page_table"), past_the_lengths, JUNK, everything=True),
    ),
    Harmless(
        id="Y2",
        text="Each step copies from the one before instead of step 0.",
        cases=(at(Path.RELEASED, P4, fusion=True, steps=5),),
        injection=AtSeam(seam.SIBLING, from_the_one_before, "another order of steps"),
    ),
    Harmless(
        id="Y3",
        text="The steps are pointed at the shared object before it is refreshed, as well as after.",
        cases=(at(drill=Drill.BUCKET_SWITCH),),
        injection=AtSeam(seam.OUT_GRAPH, pointed_first, "another order of steps"),
    ),
    Harmless(
        id="Y4",
        text="Step 0 is refreshed through the precomputed input: the staged form of the change.",
        cases=(at(model=P4, fusion=True, steps=5), at(kernel=Kernel.FLASHMLA_KV)),
        injection=StagedRefresh(counts=True),
    ),
    Harmless(
        id="Y5",
        text="The schedule comes from another algorithm with equal results.",
        cases=(at(Path.RELEASED, P4, fusion=True),),
        injection=AtSeam(seam.SCHEDULE, by_the_formula, OTHER),
    ),
    Harmless(
        id="Y6",
        text="A step has an object of its own over step 0's tensors.",
        cases=(at(model=P4), at(Path.SHARED_IN_GRAPH)),
        injection=AtSeam(seam.SHARE, over_the_same_tensors, "legal sharing", during=SHARES),
    ),
    Harmless(
        id="Y7",
        text="Every refresh is preceded by allocations of many sizes.",
        cases=(at(drill=Drill.CHURN),),
        injection=Around(allocate, "extra allocations", before=True),
    ),
    Harmless(
        id="Y8",
        text="Inputs pass through temporaries of another dtype that holds them exactly.",
        cases=(at(model=P4), at(Path.SHARED_IN_GRAPH)),
        injection=Reading(by_way_of_doubles, OTHER, alike=True),
    ),
    Harmless(
        id="Y9",
        text="The request table holds foreign ids for requests not in the batch, and past the last pages.",
        cases=(at(), at(Path.SHARED_IN_GRAPH, P4)),
        injection=Reading(junk_of_dead_requests, JUNK),
    ),
    Harmless(
        id="Y10",
        text="Staging and refresh run on another stream that waits for the replays in flight.",
        cases=(at(drill=Drill.DELAYED),),
        injection=OtherStream(wait=True, kind="ordered stream"),
    ),
    Harmless(
        id="Y14",
        text="KV counters have more rows than any launch needs.",
        cases=(at(kernel=Kernel.TRTLLM, drill=Drill.OVERSIZE),),
        injection=StateRebound(COUNTER, with_room, "init", "larger from the start"),
    ),
    Harmless(
        id="Y18",
        text="The metadata object carries a note beside its leaves.",
        cases=(at(model=P4),),
        injection=AtCapture(a_note, "extra attribute"),
    ),
    Harmless(
        id="Y21",
        text="A step reads copies of constants and tables that the graph makes.",
        cases=(at(Path.RELEASED, P4, fusion=True),),
        injection=Reads(a_copy_to_read, OTHER),
    ),
    Harmless(
        id="Y25",
        text="Memory is released and taken again between replays, except what is written once.",
        cases=(at(Path.RELEASED, P4, fusion=True),),
        injection=Unchanged("pause and resume"),
        rounds=happening(Pause(), 3, 9),
    ),
    Harmless(
        id="Y27",
        text="Eager calls of few rows come between replays.",
        cases=(at(kernel=Kernel.TRTLLM),),
        injection=Unchanged("eager calls"),
        rounds=happening(Eager(7), 2, 5, 6),
    ),
)
