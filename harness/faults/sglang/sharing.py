"""Class H, mutants of the shared path: what steps are pointed at, and how often the object is refreshed."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch

from harness.faults.catalogue import Fault
from harness.faults.mechanisms.binding import NotRepointed
from harness.faults.mechanisms.combined import Combined
from harness.faults.mechanisms.forward import with_leaves
from harness.faults.mechanisms.life import Around
from harness.faults.mechanisms.timing import Repeated
from harness.faults.scene import Scene
from harness.faults.sglang import seam
from harness.faults.sglang.geometry import P1, P4, at
from harness.faults.sglang.seam import CAPTURE, REFRESH, STAGE, AtSeam, StagedRefresh
from harness.types import Drill, Kernel, Path

OWN = "own object"
FOR_EACH = "duplicated refresh"
SHARES = (CAPTURE, REFRESH, STAGE)
"""Calls in which steps are pointed at step 0's object."""


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


def _copied(value: Any) -> Any:
    """Return a tensor's clone, a dataclass with its tensors and nested dataclasses copied, or the value."""
    if isinstance(value, torch.Tensor):
        return value.clone()
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return value
    return dataclasses.replace(value, **{name: _copied(part) for name, part in vars(value).items()})


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


def precomputed_for_nobody(
    scene: Scene, plain: Callable[..., None], multi: Any, batch: Any, in_capture: bool = False
) -> None:
    """Precompute what the direct refresh does not read."""
    multi.attn_backends[0]._precompute_replay_metadata(
        bs=batch.batch_size,
        req_pool_indices=batch.req_pool_indices,
        seq_lens=batch.seq_lens,
        seq_lens_cpu=batch.seq_lens_cpu,
        forward_mode=batch.forward_mode,
    )
    scene.hit()
    plain(multi, batch, in_capture=in_capture)


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
        id="X5d",
        letter="H",
        text="The direct refresh still precomputes what nobody copies.",
        case=at(model=P4),
        injection=AtSeam(seam.OUT_GRAPH, precomputed_for_nobody, FOR_EACH),
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
