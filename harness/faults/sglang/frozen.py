"""Classes C and M: what a capture freezes, and which half of the preparation runs inside the graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from harness.faults.catalogue import Fault
from harness.faults.mechanisms import rules
from harness.faults.mechanisms.combined import Unchanged
from harness.faults.mechanisms.forward import Computed, Outputs, Reads, ReadsFrozen, with_leaves
from harness.faults.mechanisms.life import Around, AtCapture
from harness.faults.mechanisms.rounds import captured_batch_only
from harness.faults.mechanisms.timing import Reading
from harness.faults.mechanisms.values import Rewritten
from harness.faults.scene import Given, Scene
from harness.faults.sglang import seam
from harness.faults.sglang.geometry import P1, P4, at
from harness.faults.sglang.seam import AtSeam, left_out
from harness.sut.protocol import StepOutputs
from harness.types import Drill, Path

FROZEN = "frozen at capture"


def computed(outputs: Outputs, step: int, checksum: torch.Tensor) -> Outputs:
    """Return the outputs with another result of one step."""
    changed = StepOutputs(outputs[step].read, {**outputs[step].computed, "checksum": checksum})
    return (*outputs[:step], changed, *outputs[step + 1 :])


def baked_in(scene: Scene, bucket: int, outputs: Outputs) -> Outputs:
    """The last step's result is what the warm-up gave."""
    last = len(outputs) - 1
    first = scene.recall(("result", bucket), outputs[last].computed["checksum"].clone)
    return computed(outputs, last, first)


def of_another_constant(scene: Scene, bucket: int, outputs: Outputs) -> Outputs:
    """Every step's result is larger by one."""
    for step in range(len(outputs)):
        outputs = computed(outputs, step, outputs[step].computed["checksum"] + 1)
    return outputs


def into_step_0(scene: Scene, bucket: int, outputs: Outputs) -> Outputs:
    """Step 1's result is written where step 0's is."""
    target = outputs[0].computed["checksum"]
    target.copy_(outputs[1].computed["checksum"] + 1)
    return outputs


def dense(scene: Scene, bucket: int, metadata: Any) -> Any:
    """Read all tokens where every captured length was within the top-k."""
    if int(scene.round.lengths.max()) > scene.dims(bucket).topk:
        return metadata
    return with_leaves(
        metadata,
        dsa_cache_seqlens_int32=metadata.cache_seqlens_int32,
        dsa_cu_seqlens_k=metadata.cu_seqlens_k,
    )


def narrower(scene: Scene, bucket: int) -> bool:
    """Keep the longest length of the round as the width, beside the tensors."""
    width = int(-(-scene.round.lengths.max() // 128) * 128)
    changed: bool = scene.metadata(0, bucket).max_seq_len_k != width
    scene.bind(0, bucket, "max_seq_len_k", width)
    return changed


def half_as_wide(scene: Scene, bucket: int) -> None:
    """Freeze half the width beside the tensors, from the making of the metadata on."""
    metadata = scene.metadata(0, bucket)
    object.__setattr__(metadata, "max_seq_len_k", metadata.max_seq_len_k // 2)


def first_table(scene: Scene, given: Given) -> Given:
    """Read the request table that was there at the first capture."""
    return Given(
        given.lengths, given.requests, given.accepted, scene.recall("first table", given.table.clone)
    )


def first_lengths(scene: Scene, given: Given) -> Given:
    """Read the lengths tensor of the first call for this bucket."""
    lengths = scene.recall(("first lengths", given.lengths.shape), given.lengths.clone)
    return Given(lengths, given.requests, given.accepted, given.table)


def not_activated(scene: Scene, plain: Callable[..., None], backend: Any, **given: Any) -> None:
    """Refresh a bucket's metadata and leave another object active."""
    before = backend.forward_metadata
    plain(backend, **given)
    scene.hit(before is not backend.forward_metadata)
    backend.forward_metadata = before


def asks_the_device(
    scene: Scene, plain: Callable[..., None], backend: Any, *, seq_lens: torch.Tensor, **given: Any
) -> None:
    """Let the host read the longest length, which a capture cannot hold."""
    scene.hit()
    longest = int(seq_lens.max().item())
    plain(backend, seq_lens=seq_lens.clamp(max=longest), **given)


FAULTS = (
    Fault(
        id="C1",
        text="A step works on lengths that were encoded on the host while its graph was captured.",
        case=at(),
        injection=ReadsFrozen(("cache_seqlens_int32", "dsa_seqlens_expanded"), (1,)),
        expected="output",
    ),
    Fault(
        id="C1b",
        text="A refresh inside the graph reads a request table whose address is no longer the one in use.",
        case=at(Path.SHARED_IN_GRAPH, P4),
        injection=Reading(first_table, FROZEN),
        expected="freshness",
        also=("equivalence",),
    ),
    Fault(
        id="C3",
        text="The width beside the tensors follows the round, while the graph keeps the captured one.",
        case=at(),
        injection=Around(narrower, "host value changes"),
        expected="address",
    ),
    Fault(
        id="C3b",
        text="The width that a graph freezes is half the table's, from the capture on.",
        case=at(),
        injection=AtCapture(half_as_wide, "wrong host value"),
        expected="address",
    ),
    Fault(
        id="C4",
        text="A kernel bakes the values of its first call into the graph.",
        case=at(Path.RELEASED),
        injection=Computed(baked_in, FROZEN),
        expected="output",
    ),
    Fault(
        id="C4b",
        text="A constant of the forward is another one, on every path alike.",
        case=at(model=P4),
        injection=Computed(of_another_constant, "wrong constant"),
        expected="golden",
        everywhere=True,
        golden=True,
    ),
    Fault(
        id="C6",
        text="The dense path, chosen while every captured length was within the top-k, is frozen.",
        case=at(),
        injection=Reads(dense, "frozen branch"),
        expected="output",
    ),
    Fault(
        id="H3",
        text="A cache that all steps share holds the last step's result where step 0's is read.",
        case=at(model=P4),
        injection=Computed(into_step_0, "shared though it belongs to a step"),
        expected="output",
    ),
    Fault(
        id="M1",
        text="After preparation an object is active that is not the bucket's.",
        case=at(Path.RELEASED, drill=Drill.OVERSIZE, steps=2),
        injection=AtSeam(seam.STAGED, not_activated, "wrong object"),
        expected="aliasing",
    ),
    Fault(
        id="M1b",
        text="The refresh that moved into the graph still asks the device for a length.",
        case=at(Path.SHARED_IN_GRAPH),
        injection=AtSeam(seam.APPLY, asks_the_device, "host read in a capture"),
        expected="routing",
    ),
    Fault(
        id="M1c",
        text="The refresh that moved into the graph was left behind: no half does it.",
        case=at(Path.SHARED_IN_GRAPH),
        injection=AtSeam(seam.IN_GRAPH, left_out, "skipped refresh"),
        expected="freshness",
        also=("refresh",),
    ),
    Fault(
        id="M3",
        text="The in-graph refresh reads the lengths tensor of the capture; it was swapped since.",
        case=at(Path.SHARED_IN_GRAPH),
        injection=Reading(first_lengths, FROZEN),
        expected="freshness",
        also=("equivalence",),
    ),
    Fault(
        id="M4",
        text="Owner, address and shape of the prefix sums are stable; the contents are the capture's.",
        case=at(Path.RELEASED, P4, fusion=True),
        injection=Rewritten(("dsa_cu_seqlens_k",), rules.captured, "stale field", steps=(1,)),
        expected="freshness",
        also=("equivalence",),
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
