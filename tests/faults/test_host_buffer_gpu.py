"""On a GPU: lengths go through one pinned buffer, which is filled again for the next use."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch

from harness.engine.cuda_graph import CudaGraphEngine
from harness.faults.catalogue import Fault, Harmless
from harness.faults.embedded import OPENER
from harness.faults.geometry import P1, at
from harness.faults.scene import Injection, Scene
from harness.faults.trial import Fate, Laboratory
from harness.rounds import Inputs
from harness.types import Drill, EngineKind

pytestmark = pytest.mark.gpu


@dataclass(frozen=True)
class HostBuffer(Injection):
    """Lengths are copied asynchronously out of one pinned buffer, which is then filled for something else."""

    waits: bool
    """Whether the host waits for the copy before it fills the buffer again."""
    kind: str = "host buffer refilled too early"

    def stage(self, scene: Scene, inputs: Inputs, call: Callable[[Inputs], None]) -> None:
        """See `Injection`."""
        call(inputs)
        buffer = scene.recall(
            ("pinned", inputs.bucket), lambda: torch.empty(inputs.bucket, dtype=torch.int64, pin_memory=True)
        )
        buffer.copy_(torch.from_numpy(inputs.lengths))
        scene.target.given(inputs.bucket).lengths.copy_(buffer, non_blocking=True)
        if self.waits:
            torch.cuda.current_stream().synchronize()
        buffer.fill_(1)
        scene.hit()


CASE = at(model=P1, drill=Drill.DELAYED)


def test_the_missing_wait_is_caught_and_the_present_one_passes() -> None:
    laboratory = Laboratory(OPENER, CudaGraphEngine(), EngineKind.CUDA_GRAPH)
    fault = Fault(
        id="I6b", text="The buffer is filled again at once.", case=CASE, injection=HostBuffer(False),
        expected="ordering",
    )  # fmt: skip
    (caught,) = laboratory.attempt(fault)
    assert caught.fate is Fate.KILLED, caught.messages
    harmless = Harmless(
        id="Y90", text="The buffer is filled again after a wait.", cases=(CASE,), injection=HostBuffer(True)
    )
    (passed,) = laboratory.attempt(harmless)
    assert passed.fate is Fate.CLEAN, passed.messages
