"""A system with an injection: every call of the `Sut` protocol goes through it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch

from harness.case import Case
from harness.engine.protocol import Engine
from harness.faults.scene import Hooks, Injection, Opener, Scene, Target, Trace
from harness.observation import Expectation
from harness.rounds import Inputs
from harness.sut.protocol import Interleaved, Pausable, SpanRecorder, StepOutputs, StepRoots, SutFactory


class FaultySut:
    """See `harness.sut.protocol.Sut`; what it does not change it hands on to the opened system."""

    def __init__(
        self, target: Target, injection: Injection, trace: Trace, case: Case, engine: Engine
    ) -> None:
        self._target = target
        self._injection = injection
        self._scene = Scene(case, engine, target, trace)
        self.name = target.name
        self.steps = target.steps
        self.tolerates_poison = target.tolerates_poison
        target.hooks = Hooks(in_graph=self._refresh, reads=self._reads)
        injection.start(self._scene)

    def facts(self) -> Mapping[str, str]:
        """See `Sut`."""
        return self._target.facts()

    def expectation(self, bucket: int) -> Expectation:
        """See `Sut`."""
        return self._target.expectation(bucket)

    def init_graph_state(self) -> None:
        """See `Sut`."""
        self._injection.init(self._scene, self._target.init_graph_state)

    def stage(self, inputs: Inputs) -> None:
        """See `Sut`."""
        self._scene.inputs = inputs
        self._injection.stage(self._scene, inputs, self._target.stage)

    def inputs(self) -> Mapping[str, torch.Tensor]:
        """See `Sut`."""
        return self._target.inputs()

    def prepare_capture(self, bucket: int) -> None:
        """See `Sut`."""
        self._injection.capture(self._scene, bucket, partial(self._target.prepare_capture, bucket))

    def forward(self, bucket: int) -> tuple[StepOutputs, ...]:
        """See `Sut`."""
        return self._injection.forward(self._scene, bucket, partial(self._target.forward, bucket))

    def refresh(self, bucket: int) -> None:
        """See `Sut`; where the graph refreshes, this one only points at the bucket's metadata."""
        if self._scene.in_graph:
            self._target.refresh(bucket)
        else:
            self._refresh(bucket, partial(self._target.refresh, bucket))

    def eager(self, rows: int) -> None:
        """See `Sut`."""
        self._injection.eager(self._scene, rows, partial(self._target.eager, rows))

    def roots(self) -> tuple[StepRoots, ...]:
        """See `Sut`."""
        return self._target.roots()

    def route(self) -> str:
        """See `Sut`."""
        return self._injection.route(self._scene, self._target.route)

    def reference(self, leaf: str, inputs: Inputs) -> torch.Tensor | None:
        """See `Sut`: never through the injection, so that a fault cannot excuse itself."""
        return self._target.reference(leaf, inputs)

    def close(self) -> None:
        """See `Sut`."""
        self._target.hooks = Hooks()
        self._scene.memory.clear()
        self._target.close()

    def _refresh(self, bucket: int, call: Any) -> None:
        self._scene.refreshes += 1
        self._injection.refresh(self._scene, bucket, call)

    def _reads(self, step: int, bucket: int, metadata: Any) -> Any:
        return self._injection.reads(self._scene, step, bucket, metadata)


class InterleavedFaultySut(FaultySut):
    """The same of a system whose refreshes and replays take turns."""

    def decode(self, bucket: int, replay: Callable[[int], None]) -> None:
        """See `harness.sut.protocol.Interleaved`."""
        assert isinstance(self._target, Interleaved)
        self._injection.decode(self._scene, bucket, partial(self._target.decode, bucket, replay))


class PausableFaultySut(FaultySut):
    """The same of a system that offers pause and resume."""

    def pause_and_resume(self) -> None:
        """See `harness.sut.protocol.Pausable`."""
        assert isinstance(self._target, Pausable)
        self._injection.pause(self._scene, self._target.pause_and_resume)


def faulty(opener: Opener, injection: Injection, trace: Trace) -> SutFactory:
    """Return a factory of systems with this injection; what it does is counted in `trace`."""

    def factory(case: Case, engine: Engine, span: SpanRecorder) -> FaultySut:
        target = opener(case, engine, span)
        kind = PausableFaultySut if isinstance(target, Pausable) else FaultySut
        if isinstance(target, Interleaved):
            kind = InterleavedFaultySut
        return kind(target, injection, trace, case, engine)

    return factory
