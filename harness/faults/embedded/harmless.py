"""Changes around the values that no check may notice: allocations, layouts, objects, streams, rounds."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from harness.faults.catalogue import Harmless
from harness.faults.embedded.frozen import replaced
from harness.faults.embedded.padding import idle_in_between
from harness.faults.embedded.target import EmbeddedTarget
from harness.faults.geometry import P1, at
from harness.faults.mechanisms.binding import MadeOtherwise, OwnObject, StateRebound
from harness.faults.mechanisms.combined import Unchanged
from harness.faults.mechanisms.forward import Computed, ForwardWrites, InForward, Outputs, Reads
from harness.faults.mechanisms.life import Around, AtCapture, OtherStream, SecondGraph
from harness.faults.mechanisms.rounds import happening
from harness.faults.scene import Injection, Scene
from harness.fields import COUNTER
from harness.rounds import Eager, Inputs, Pause
from harness.types import Drill, Kernel, Path

JUNK = "junk where nothing is defined"
OTHER = "equal values, made otherwise"


def allocate(scene: Scene, bucket: int) -> None:
    """Keep blocks of many sizes, and let go of those kept before."""
    sizes = range(4, 14)
    scene.memory["blocks"] = [torch.empty(1 << size, device=scene.engine.device) for size in sizes]


def wait(scene: Scene, bucket: int) -> None:
    """Wait for the device once more than needed."""
    scene.engine.synchronize()


def warm_temporaries(scene: Scene, bucket: int, outputs: Outputs) -> Outputs:
    """Temporaries and results of the forward's own, in addition to its outputs."""
    for one in outputs:
        _ = one.computed["attention"].mul(2).relu().sum()
    return outputs


def nan_in_padding(scene: Scene, bucket: int, outputs: Outputs) -> Outputs:
    """NaN in output rows of padding, which nobody reads."""
    padded = scene.target.given(bucket).requests == 0
    attention = outputs[-1].computed["attention"]
    rows = padded.repeat_interleave(attention.shape[0] // bucket)[:, None]
    return replaced(outputs, len(outputs) - 1, attention=torch.where(rows, float("nan"), attention))


def scratch_of_its_own(scene: Scene, bucket: int, metadata: Any) -> None:
    """A step counts in a copy of the lengths."""
    metadata.cache_seqlens_int32.clone().add_(1)


def a_copy_to_read(scene: Scene, bucket: int, metadata: Any) -> Any:
    """A step reads copies that the graph itself makes."""
    return dataclasses.replace(
        metadata,
        page_table_1=metadata.page_table_1.clone(),
        dsa_cu_seqlens_q=metadata.dsa_cu_seqlens_q.clone(),
    )


def unrelated_work(scene: Scene, bucket: int) -> None:
    """Sum a buffer that belongs to nobody else."""
    own = scene.recall(("own", bucket), lambda: torch.ones(64, device=scene.engine.device))
    own.mul_(2).sum()


def by_columns(scene: Scene, bucket: int, leaf: torch.Tensor) -> torch.Tensor:
    """The same table with its columns together in memory."""
    return leaf.t().contiguous().t()


def with_a_gap(scene: Scene, bucket: int, leaf: torch.Tensor) -> torch.Tensor:
    """The same table as a slice of a wider one."""
    wider = torch.zeros(leaf.shape[0], leaf.shape[1] + 32, dtype=leaf.dtype, device=leaf.device)
    wider[:, : leaf.shape[1]] = leaf
    return wider[:, : leaf.shape[1]]


def side_by_side(scene: Scene, bucket: int) -> None:
    """Two leaves of one bucket in one allocation, next to each other."""
    first, second = scene.leaf(0, bucket, "cu_seqlens_k"), scene.leaf(0, bucket, "dsa_cu_seqlens_k")
    block = torch.cat((first, second))
    for step in scene.steps:
        scene.bind(step, bucket, "cu_seqlens_k", block[: first.shape[0]])
        scene.bind(step, bucket, "dsa_cu_seqlens_k", block[first.shape[0] :])


def a_note(scene: Scene, bucket: int) -> None:
    """A host attribute beside the leaves, the same from capture to the last replay."""
    scene.bind(0, bucket, "note", f"made for {bucket}")


def with_room(scene: Scene, step: int, old: torch.Tensor) -> torch.Tensor:
    """A counter with more rows than needed, before anything is captured."""
    return torch.zeros(2 * old.shape[0], dtype=old.dtype, device=old.device)


class StepsBackwards(Injection):
    """The steps of the embedded system are refreshed last to first."""

    kind = "another order of steps"

    def start(self, scene: Scene) -> None:
        """See `Injection`."""
        assert isinstance(scene.target, EmbeddedTarget)
        scene.target.refresh_backwards()
        scene.hit()


class StagedTwice(Injection):
    """The inputs of a round are written twice."""

    kind = "staged twice"

    def stage(self, scene: Scene, inputs: Inputs, call: Callable[[Inputs], None]) -> None:
        """See `Injection`."""
        call(inputs)
        call(dataclasses.replace(inputs, lengths=np.array(inputs.lengths)))
        scene.hit()


CHANGES = (
    Harmless(
        id="Y1",
        text="Nothing is changed at all.",
        cases=(at(Path.SHARED_IN_GRAPH), at(Path.MULTI_DESTINATION_COPY, steps=5)),
        injection=Unchanged(),
    ),
    Harmless(
        id="Y6",
        text="Every refresh is preceded by allocations of many sizes.",
        cases=(at(), at(Path.SIBLING_COPY, drill=Drill.CHURN)),
        injection=Around(allocate, "extra allocations", before=True),
    ),
    Harmless(
        id="Y10",
        text="Staging and refresh run on another stream that waits for the replays in flight.",
        cases=(at(drill=Drill.DELAYED),),
        injection=OtherStream(wait=True, kind="ordered stream"),
    ),
    Harmless(
        id="Y10b",
        text="A small graph that keeps the lengths current is launched on another stream that waits.",
        cases=(at(model=P1, drill=Drill.DELAYED), at(Path.INDEPENDENT)),
        injection=SecondGraph(wait=True),
    ),
    Harmless(
        id="Y11",
        text="The host waits for the device more often than needed.",
        cases=(at(Path.INDEPENDENT),),
        injection=Around(wait, "extra synchronisation", before=True),
    ),
    Harmless(
        id="Y12",
        text="The steps are refreshed last to first.",
        cases=(at(Path.INDEPENDENT, steps=4),),
        injection=StepsBackwards(),
    ),
    Harmless(
        id="Y13",
        text="A step has an object of its own over the same tensors.",
        cases=(at(), at(Path.SHARED_IN_GRAPH)),
        injection=OwnObject(cloned=False, kind="legal sharing"),
    ),
    Harmless(
        id="Y14",
        text="KV counters have more rows than any launch needs.",
        cases=(at(kernel=Kernel.TRTLLM, drill=Drill.OVERSIZE),),
        injection=StateRebound(COUNTER, with_room, "init", "larger from the start"),
    ),
    Harmless(
        id="Y15",
        text="A page table lies column by column in memory, from its making on.",
        cases=(at(), at(Path.SHARED_IN_GRAPH, P1)),
        injection=MadeOtherwise(
            "real_page_table",
            by_columns,
            "another layout",
        ),
    ),
    Harmless(
        id="Y16",
        text="A page table is a slice of a wider one, from its making on.",
        cases=(at(Path.SIBLING_COPY),),
        injection=MadeOtherwise("real_page_table", with_a_gap, "another layout", steps=(0, 1)),
    ),
    Harmless(
        id="Y17",
        text="Two leaves lie next to each other in one allocation.",
        cases=(at(model=P1),),
        injection=AtCapture(side_by_side, "one allocation without overlap"),
    ),
    Harmless(
        id="Y18",
        text="The metadata object carries a note beside its leaves.",
        cases=(at(),),
        injection=AtCapture(a_note, "extra attribute"),
    ),
    Harmless(
        id="Y19",
        text="The forward makes temporaries of its own.",
        cases=(at(model=P1), at(Path.INDEPENDENT)),
        injection=Computed(warm_temporaries, "other temporaries"),
    ),
    Harmless(
        id="Y20",
        text="A step counts in a copy of the lengths.",
        cases=(at(),),
        injection=ForwardWrites(scratch_of_its_own, step=1, kind="other temporaries"),
    ),
    Harmless(
        id="Y21",
        text="A step reads copies of constants and tables that the graph makes.",
        cases=(at(Path.SIBLING_COPY),),
        injection=Reads(a_copy_to_read, OTHER),
    ),
    Harmless(
        id="Y22",
        text="Output rows of padding are NaN, and nobody reads them.",
        cases=(at(drill=Drill.PADDED), at(model=P1)),
        injection=Computed(nan_in_padding, JUNK),
    ),
    Harmless(
        id="Y24",
        text="The inputs of a round are staged twice.",
        cases=(at(), at(Path.SHARED_IN_GRAPH)),
        injection=StagedTwice(),
    ),
    Harmless(
        id="Y25",
        text="Memory is released and taken again between replays, except what is written once.",
        cases=(at(), at(Path.SIBLING_COPY, P1)),
        injection=Unchanged("pause and resume"),
        rounds=happening(Pause(), 3, 9),
    ),
    Harmless(
        id="Y26",
        text="A rank is idle for a round.",
        cases=(at(), at(Path.INDEPENDENT, P1)),
        injection=Unchanged("idle round"),
        rounds=idle_in_between,
    ),
    Harmless(
        id="Y27",
        text="Eager calls of few rows come between replays.",
        cases=(at(kernel=Kernel.TRTLLM),),
        injection=Unchanged("eager calls"),
        rounds=happening(Eager(7), 2, 5, 6),
    ),
    Harmless(
        id="Y28",
        text="The captured forward begins with work that has nothing to do with metadata.",
        cases=(at(Path.SHARED_IN_GRAPH),),
        injection=InForward(unrelated_work, "other temporaries"),
    ),
    Harmless(
        id="Y29",
        text="Nothing is changed, and the run is compared with a golden.",
        cases=(at(),),
        injection=Unchanged(),
        golden=True,
    ),
)
