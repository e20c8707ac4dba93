"""Classes I, J, N and P: streams, counters, released memory, and what ranks decide by themselves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

from harness.faults.catalogue import Fault
from harness.faults.geometry import P1, at
from harness.faults.mechanisms.binding import StateRebound
from harness.faults.mechanisms.forward import InForward
from harness.faults.mechanisms.life import Around, OnPause, OtherStream, SecondGraph, Staged
from harness.faults.mechanisms.rounds import happening
from harness.faults.mechanisms.timing import Skipped
from harness.faults.mechanisms.when import Every, Nth
from harness.faults.scene import Scene
from harness.fields import COUNTER
from harness.rounds import Inputs, Pause
from harness.types import Drill, Kernel, Path

HOST = "host buffer refilled too early"
ZEROED = "init-once overwritten"
DIRTY = "dirty counter"


def lengths_of_before(scene: Scene, inputs: Inputs) -> Inputs:
    """Lengths that the host buffer still held when the copy ran."""
    place = "staged", inputs.bucket
    before = scene.memory.get(place, inputs.lengths)
    scene.memory[place] = inputs.lengths
    return replace(inputs, lengths=before) if (before != inputs.lengths).any() else inputs


def zeroed(name: str) -> Callable[[Scene], None]:
    """Return the act: an init-once leaf of every bucket comes back as zero pages."""

    def act(scene: Scene) -> None:
        for bucket in scene.buckets:
            for step in scene.steps:
                scene.leaf(step, bucket, name).zero_()

    return act


def other_offsets(scene: Scene) -> None:
    """Prefix sums that begin at 3."""
    for bucket in scene.buckets:
        scene.leaf(0, bucket, "cu_seqlens_k")[0] = 3


def elsewhere(scene: Scene) -> None:
    """A table of the largest bucket at another address."""
    bucket = scene.buckets[-1]
    scene.bind(0, bucket, "real_page_table", scene.leaf(0, bucket, "real_page_table").clone())


def in_the_workspace(scene: Scene, step: int, old: torch.Tensor) -> torch.Tensor:
    """A counter inside the wide table, which everybody writes."""
    workspace = scene.target.roots()[0].state["page_table"]
    assert isinstance(workspace, torch.Tensor)
    flat = workspace.reshape(-1)
    return flat[: min(old.shape[0], flat.shape[0])]


def aborted(scene: Scene, bucket: int) -> None:
    """A launch that was aborted left arrivals behind."""
    counter = scene.target.roots()[-1].state[COUNTER]
    assert isinstance(counter, torch.Tensor)
    counter[0] = 1


def no_reset(scene: Scene, bucket: int) -> None:
    """An arrival that no launch takes back."""
    counter = scene.target.roots()[0].state[COUNTER]
    assert isinstance(counter, torch.Tensor)
    counter[-1:].add_(1)


def not_found(scene: Scene, bucket: int) -> None:
    """The bucket is looked up under another type, not found, and made anew."""
    scene.target.prepare_capture(bucket)


FAULTS = (
    Fault(
        id="I1",
        text="Staging and planning run on a stream of their own that waits for nobody.",
        case=at(model=P1, drill=Drill.DELAYED),
        injection=OtherStream(wait=False),
        expected="ordering",
    ),
    Fault(
        id="I1b",
        text="The request table of the next round is written while an in-graph refresh still reads it.",
        case=at(Path.SHARED_IN_GRAPH, drill=Drill.DELAYED),
        injection=OtherStream(wait=False, refreshes=False),
        expected="ordering",
    ),
    Fault(
        id="I3",
        text="The next round's refresh writes the buffers that the replay before it still reads.",
        case=at(model=P1, drill=Drill.DELAYED),
        injection=OtherStream(wait=False, stages=False),
        expected="ordering",
    ),
    Fault(
        id="I4",
        text="The planner is not ordered before the replay, on the path that copies.",
        case=at(Path.SIBLING_COPY, P1, drill=Drill.DELAYED),
        injection=OtherStream(wait=False),
        expected="ordering",
    ),
    Fault(
        id="I3b",
        text="A small graph that keeps the lengths current overtakes the draft's graph, which is in flight.",
        case=at(model=P1, drill=Drill.DELAYED),
        injection=SecondGraph(wait=False),
        expected="ordering",
    ),
    Fault(
        id="I6",
        text="A pinned host buffer is not yet what the round needs when the device reads it.",
        case=at(model=P1),
        injection=Staged(lengths_of_before, HOST),
        expected="freshness",
        also=("equivalence",),
    ),
    Fault(
        id="J1",
        text="A readiness tag repeats after four launches, so that one of them is taken for done.",
        case=at(Path.INDEPENDENT, P1),
        injection=Skipped(Every(4)),
        expected="freshness",
        also=("refresh",),
    ),
    Fault(
        id="J3",
        text="The KV counter lies in a workspace that others write.",
        case=at(Path.INDEPENDENT, P1, kernel=Kernel.TRTLLM),
        injection=StateRebound(COUNTER, in_the_workspace, "init", "overlapping allocation", steps=(0,)),
        expected="aliasing",
    ),
    Fault(
        id="J4",
        text="A launch that was aborted leaves the KV counter above zero.",
        case=at(model=P1, kernel=Kernel.TRTLLM),
        injection=Around(aborted, DIRTY, Nth(4), before=True),
        expected="readonly",
    ),
    Fault(
        id="J4b",
        text="A kernel relies on a reset that it does not do.",
        case=at(Path.INDEPENDENT, P1, kernel=Kernel.TRTLLM),
        injection=InForward(no_reset, DIRTY),
        expected="readonly",
    ),
    Fault(
        id="N1",
        text="Query offsets, written once when the buffers were made, come back from a pause as zeros.",
        case=at(model=P1),
        injection=OnPause(zeroed("dsa_cu_seqlens_q"), ZEROED),
        expected="equivalence",
        rounds=happening(Pause(), 5),
    ),
    Fault(
        id="N1b",
        text="The first element of the prefix sums, which no copy writes, comes back with another value.",
        case=at(Path.SIBLING_COPY, P1),
        injection=OnPause(other_offsets, ZEROED),
        expected="equivalence",
        rounds=happening(Pause(), 5),
    ),
    Fault(
        id="N1c",
        text="Memory that was released comes back at another address.",
        case=at(model=P1),
        injection=OnPause(elsewhere, "rebound leaf"),
        expected="address",
        rounds=happening(Pause(), 5),
    ),
    Fault(
        id="N3",
        text="A pause releases nothing, so that whatever follows it proves nothing.",
        case=at(model=P1),
        injection=OnPause(None, "pause without effect"),
        expected="evidence",
        rounds=happening(Pause(), 5),
    ),
    Fault(
        id="P6",
        text="A bucket is looked up under another type than it is stored: exact sizes are made anew.",
        case=at(model=P1),
        injection=Around(not_found, "lookup that misses", before=True),
        expected="address",
    ),
)
