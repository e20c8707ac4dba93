"""Classes C and M: what a capture freezes, and which half of the preparation runs inside the graph."""

from __future__ import annotations

from typing import Any

import torch

from harness.faults.catalogue import Fault
from harness.faults.geometry import P1, at
from harness.faults.mechanisms import rules
from harness.faults.mechanisms.forward import Computed, Outputs, Reads, ReadsFrozen, with_leaves
from harness.faults.mechanisms.life import Around
from harness.faults.mechanisms.timing import Reading
from harness.faults.mechanisms.values import Rewritten
from harness.faults.scene import Given, Scene
from harness.sut.protocol import StepOutputs
from harness.types import Path

FROZEN = "frozen at capture"


def replaced(outputs: Outputs, step: int, **computed: torch.Tensor) -> Outputs:
    """Return the outputs with other results of one step."""
    changed = StepOutputs(outputs[step].read, {**outputs[step].computed, **computed})
    return (*outputs[:step], changed, *outputs[step + 1 :])


def baked_in(scene: Scene, bucket: int, outputs: Outputs) -> Outputs:
    """The last step's attention is what the warm-up gave."""
    last = len(outputs) - 1
    first = scene.recall(("attention", bucket), outputs[last].computed["attention"].clone)
    return replaced(outputs, last, attention=first)


def rescaled(scene: Scene, bucket: int, outputs: Outputs) -> Outputs:
    """Every step's attention is larger by a hundredth."""
    return tuple(
        StepOutputs(one.read, {**one.computed, "attention": one.computed["attention"] * 1.01})
        for one in outputs
    )


def dense(scene: Scene, bucket: int, metadata: Any) -> Any:
    """Read all tokens where every captured length was within the top-k."""
    if int(scene.round.lengths.max(initial=0)) > scene.dims(bucket).topk:
        return metadata
    return with_leaves(
        metadata,
        dsa_cache_seqlens_int32=metadata.cache_seqlens_int32,
        dsa_cu_seqlens_k=metadata.cu_seqlens_k,
    )


def other_variant(scene: Scene, bucket: int, outputs: Outputs) -> Outputs:
    """The last step's selection is that of the variant for short batches, picked at capture."""
    last = len(outputs) - 1
    short = int(scene.round.lengths.max(initial=0)) < 256
    return replaced(outputs, last, selected=outputs[last].computed["selected"] + short)


def wider(scene: Scene, bucket: int) -> bool:
    """Keep the longest length of the round as the width, beside the tensors."""
    width = int(-(-scene.round.lengths.max(initial=0) // 128) * 128)
    changed: bool = scene.metadata(0, bucket).max_seq_len_k != width
    scene.bind(0, bucket, "max_seq_len_k", width)
    return changed


def first_table(scene: Scene, given: Given) -> Given:
    """Read the request table that was there at the first capture."""
    table = scene.recall("first table", given.table.clone)
    return Given(given.lengths, given.requests, given.accepted, table)


def first_lengths(scene: Scene, given: Given) -> Given:
    """Read the lengths tensor of the first call for this bucket."""
    lengths = scene.recall(("first lengths", given.lengths.shape), given.lengths.clone)
    return Given(lengths, given.requests, given.accepted, given.table)


def raw(scene: Scene, bucket: int) -> None:
    """Leave an object active that is not the one prepared for the graph."""
    scene.target.point(0, bucket, {"raw": scene.metadata(0, bucket)}, entry=False)


def ask_the_device(scene: Scene, given: Given) -> Given:
    """Let the host read a length, which a capture cannot hold."""
    longest = int(given.lengths.max().item())
    return Given(given.lengths.clamp(max=longest), given.requests, given.accepted, given.table)


FAULTS = (
    Fault(
        id="C1",
        text="A step works on lengths that were encoded on the host while its graph was captured.",
        case=at(model=P1),
        injection=ReadsFrozen(("cache_seqlens_int32", "dsa_seqlens_expanded"), (1,)),
        expected="output",
    ),
    Fault(
        id="C1b",
        text="A refresh inside the graph reads a request table whose address is no longer the one in use.",
        case=at(Path.SHARED_IN_GRAPH),
        injection=Reading(first_table, FROZEN),
        expected="freshness",
        also=("equivalence",),
    ),
    Fault(
        id="C3",
        text="The width beside the tensors follows the round, while the graph keeps the captured one.",
        case=at(model=P1),
        injection=Around(wider, "host value changes"),
        expected="address",
    ),
    Fault(
        id="C4",
        text="A kernel bakes the values of its first call into the graph.",
        case=at(model=P1),
        injection=Computed(baked_in, FROZEN),
        expected="output",
    ),
    Fault(
        id="C4b",
        text="A constant baked into the attention kernel is another one, on every path alike.",
        case=at(model=P1),
        injection=Computed(rescaled, "wrong constant"),
        expected="golden",
        everywhere=True,
        golden=True,
    ),
    Fault(
        id="C6",
        text="The dense path, chosen while every captured length was within the top-k, is frozen.",
        case=at(model=P1),
        injection=Reads(dense, "frozen branch"),
        expected="output",
    ),
    Fault(
        id="C7",
        text="The top-k variant for short batches, chosen at capture, stays in force for long ones.",
        case=at(model=P1),
        injection=Computed(other_variant, "frozen branch"),
        expected="output",
    ),
    Fault(
        id="M1",
        text="After preparation the raw object is active, not the one that was upgraded for the graph.",
        case=at(model=P1),
        injection=Around(raw, "wrong object"),
        expected="aliasing",
    ),
    Fault(
        id="M1b",
        text="The refresh that moved into the graph still asks the device for a length.",
        case=at(Path.SHARED_IN_GRAPH, P1),
        injection=Reading(ask_the_device, "host read in a capture"),
        expected="routing",
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
        case=at(Path.SIBLING_COPY),
        injection=Rewritten(("dsa_cu_seqlens_k",), rules.captured, "stale field", steps=(1,)),
        expected="freshness",
    ),
)
