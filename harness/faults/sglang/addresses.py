"""Class B: what a graph has captured is rebound, reallocated or freed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from harness.faults.catalogue import Fault
from harness.faults.mechanisms.binding import MadeOtherwise, Rebound, StateRebound
from harness.faults.mechanisms.combined import Combined
from harness.faults.mechanisms.timing import LeftOut
from harness.faults.mechanisms.when import ALWAYS, Nth, Switched
from harness.faults.scene import Scene
from harness.faults.sglang import seam
from harness.faults.sglang.geometry import P1, P4, at
from harness.faults.sglang.seam import AtSeam
from harness.types import Drill, Kernel, Path

GROWN = "grown on demand"
REBOUND = "rebound leaf"
FREED = "freed by a cache"


def grow(scene: Scene, plain: Callable[..., Any], backend: Any, num_query_rows: int) -> torch.Tensor:
    """Serve a wide prefill by growing the backend's own counter, as releases before 0.5.23 did."""
    before = backend._multi_ctas_kv_counter_buffer
    backend._ensure_multi_ctas_kv_counter_capacity(num_query_rows)
    counter: torch.Tensor = backend._multi_ctas_kv_counter_buffer
    scene.hit(counter is not before)
    return counter


def one_bucket_only(scene: Scene, plain: Callable[..., None], backend: Any, *, bs: int, **given: Any) -> None:
    """Keep metadata of one bucket: what was made for another is dropped, and made anew when asked for."""
    entries = backend.decode_cuda_graph_metadata
    others = [key for key in entries if isinstance(key, int) and key != bs]
    scene.hit(bool(others))
    for key in others:
        del entries[key]
    plain(backend, bs=bs, **given)


def without_its_entry(
    scene: Scene, plain: Callable[..., None], backend: Any, *, bs: int, **given: Any
) -> None:
    """Look the bucket up in a way that never finds it, so that its metadata is made anew."""
    found = backend.decode_cuda_graph_metadata.pop(bs, None)
    scene.hit(found is not None)
    plain(backend, bs=bs, **given)


def unless_there_is_one(scene: Scene, plain: Callable[..., None], backend: Any, first: Any, bs: int) -> None:
    """Share step 0's object only where the step has none for this bucket yet."""
    own = backend.decode_cuda_graph_metadata.get(bs)
    if own is None:
        plain(backend, first, bs)
    else:
        scene.hit(own is not first.decode_cuda_graph_metadata[bs])
        backend.forward_metadata = own


def locations_assigned(
    scene: Scene, plain: Callable[..., None], backend: Any, metadata: Any, source: Any
) -> None:
    """Assign the sibling's write locations instead of copying them."""
    plain(backend, metadata, source)
    object.__setattr__(metadata.kpool_write_plan, "write_loc", source.kpool_write_plan.write_loc)
    scene.hit()


def twice_as_large(scene: Scene, step: int, old: torch.Tensor) -> torch.Tensor:
    """Return a zeroed tensor of twice the rows."""
    return torch.zeros((2 * old.shape[0], *old.shape[1:]), dtype=old.dtype, device=old.device)


def in_the_larger(scene: Scene, bucket: int, leaf: torch.Tensor) -> torch.Tensor:
    """Return the leaf as the first rows of a larger bucket's own, where there is one already."""
    for other in scene.buckets:
        if other > bucket:
            return scene.leaf(0, other, "real_page_table")[: leaf.shape[0]]
    return leaf


def the_lengths_themselves(scene: Scene, bucket: int, leaf: torch.Tensor) -> torch.Tensor:
    """Lengths within the top-k are all the lengths, so one buffer is enough for both."""
    return scene.leaf(0, bucket, "cache_seqlens_int32")


def the_input_itself(scene: Scene, bucket: int, leaf: torch.Tensor) -> torch.Tensor:
    """The persistent input, which holds the same request ids."""
    return scene.target.given(bucket).requests


FAULTS = (
    Fault(
        id="B1",
        text="A prefill of more query rows than the KV counter serves replaces the captured counter.",
        case=at(kernel=Kernel.TRTLLM, drill=Drill.OVERSIZE),
        injection=AtSeam(seam.COUNTER_FOR, grow, GROWN, during=(seam.EAGER,)),
        expected="address",
    ),
    Fault(
        id="B1b",
        text="The KV counter of the last step alone grows so.",
        case=at(Path.RELEASED, P4, fusion=True, kernel=Kernel.TRTLLM, drill=Drill.OVERSIZE),
        injection=AtSeam(seam.COUNTER_FOR, grow, GROWN, steps=(1,), during=(seam.EAGER,)),
        expected="address",
    ),
    Fault(
        id="B3",
        text="The smaller bucket's page table lies inside the larger one's.",
        case=at(Path.RELEASED),
        injection=MadeOtherwise("real_page_table", in_the_larger, "overlapping allocation"),
        expected="aliasing",
        also=("refresh",),
    ),
    Fault(
        id="B3b",
        text="Selected lengths are the lengths themselves: short captured batches cannot tell them apart.",
        case=at(),
        injection=MadeOtherwise("dsa_cache_seqlens_int32", the_lengths_themselves, "legal at capture only"),
        expected="aliasing",
        also=("refresh",),
    ),
    Fault(
        id="B3c",
        text="The write plan's request ids are the persistent input, staged while a replay still reads it.",
        case=at(model=P4),
        injection=MadeOtherwise("kpool_write_plan.req", the_input_itself, "overlapping allocation"),
        expected="aliasing",
        also=("refresh",),
    ),
    Fault(
        id="B4",
        text="A step keeps metadata of the last bucket only: the other bucket's is dropped and made anew.",
        case=at(drill=Drill.BUCKET_SWITCH),
        injection=AtSeam(seam.APPLY, one_bucket_only, FREED),
        expected="address",
        also=("aliasing",),
    ),
    Fault(
        id="B6",
        text="A wide eager call replaces the wide page table that all buckets are slices of.",
        case=at(Path.RELEASED, drill=Drill.OVERSIZE),
        injection=StateRebound("page_table", twice_as_large, "eager", GROWN),
        expected="address",
    ),
    Fault(
        id="B7",
        text="FlashMLA's splits are assigned anew once, in the sixth refresh.",
        case=at(kernel=Kernel.FLASHMLA_KV),
        injection=Rebound("flashmla_metadata.num_splits", Nth(6), before=True),
        expected="address",
    ),
    Fault(
        id="B9",
        text="A bucket that is captured again has new metadata, and the other steps keep their old object.",
        case=at(model=P4, drill=Drill.RECAPTURE),
        injection=Combined(
            (
                AtSeam(seam.APPLY, without_its_entry, "made anew", during=(seam.CAPTURE,)),
                AtSeam(seam.SHARE, unless_there_is_one, "wrong object", during=(seam.CAPTURE, seam.REFRESH)),
            ),
            "wrong object",
        ),
        expected="aliasing",
        also=("address", "freshness"),
    ),
    Fault(
        id="B12",
        text="The replay rebuilds the prefix sums of the eager twin, not those that the graph is bound to.",
        case=at(Path.RELEASED, P4),
        injection=LeftOut(("cu_seqlens_k",)),
        expected="freshness",
        also=("refresh",),
    ),
    Fault(
        id="B13",
        text="The copy from a sibling assigns the write locations instead of copying into them.",
        case=at(Path.RELEASED, P4, fusion=True),
        injection=AtSeam(seam.KPOOL_SIBLING, locations_assigned, REBOUND),
        expected="address",
        also=("aliasing",),
    ),
    Fault(
        id="B13b",
        text="A leaf is assigned anew only when the bucket changes.",
        case=at(model=P4, drill=Drill.BUCKET_SWITCH),
        injection=Rebound("pooled_real_page_table", Switched()),
        expected="address",
    ),
    Fault(
        id="B15",
        text="Prefix sums are created by every refresh while the graph reads the first ones' address.",
        case=at(Path.RELEASED, P4, drill=Drill.CHURN),
        injection=Rebound("dsa_cu_seqlens_k", ALWAYS, free=True, before=True),
        expected="address",
    ),
    Fault(
        id="P6",
        text="A bucket is looked up under another type than it is stored: exact sizes are made anew.",
        case=at(model=P1),
        injection=AtSeam(seam.APPLY, without_its_entry, "lookup that misses"),
        expected="address",
        also=("freshness",),
    ),
)
