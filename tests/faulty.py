"""Planted faults and harmless changes: the embedded system with one method bent.

A `Bend` is given the system before or after one of its calls. A fault must make the check it is
planted for speak; a harmless change must make none speak.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch

from harness.case import Case
from harness.checks.subject import Subject
from harness.driver import drive
from harness.engine.protocol import Engine
from harness.engine.tape import TapeEngine
from harness.findings import CaseResult
from harness.judge import judge
from harness.known import KnownFinding
from harness.ordinary import is_reference, ordinary_of
from harness.rounds import Inputs, Program
from harness.sut.embedded.sut import EmbeddedSut
from harness.sut.protocol import SpanRecorder, StepOutputs
from harness.truth import Truth

Bend = Callable[["BentSut", int], None]
"""Called with the system and a bucket."""


@dataclass(frozen=True)
class Bends:
    """Where a system is bent; None leaves a call as it is."""

    staged: Bend | None = None
    """After inputs were put in place."""
    captured: Bend | None = None
    """After a bucket's metadata was made."""
    before: Bend | None = None
    """Before a refresh."""
    after: Bend | None = None
    """After a refresh."""
    refresh: Bend | None = None
    """Instead of a refresh; it may call `plain_refresh`."""
    in_forward: Bend | None = None
    """Inside the captured forward, before the steps run."""
    outputs: Callable[[tuple[StepOutputs, ...]], tuple[StepOutputs, ...]] | None = None
    """On what the forward returns."""
    eager: Bend | None = None
    """After an eager call (its bucket is the row count)."""
    route: Callable[[BentSut], str] | None = None
    """Instead of the system's own evidence."""
    side_stream: bool | None = None
    """Stage and refresh on another stream, waiting for replays in flight (True) or not (False)."""


class BentSut(EmbeddedSut):
    """The embedded system with `Bends`."""

    def __init__(self, bends: Bends, case: Case, engine: Engine, span: SpanRecorder) -> None:
        super().__init__(case, engine, span)
        self.bends = bends
        self.engine = engine
        self.refreshes = 0
        self.kept: dict[str, Any] = {}
        """For a bend to remember things in."""

    @property
    def backend(self) -> Any:
        """The multi-step backend."""
        return self._backend

    def metadata(self, step: int, bucket: int) -> Any:
        """The metadata object of a step."""
        return self._backend.metadata(step, bucket)

    def plain_refresh(self, bucket: int) -> None:
        """Refresh as the system does."""
        super().refresh(bucket)

    def prepare_capture(self, bucket: int) -> None:
        super().prepare_capture(bucket)
        if self.bends.captured:
            self.bends.captured(self, bucket)

    def stage(self, inputs: Inputs) -> None:
        with self._stream():
            super().stage(inputs)
        if self.bends.staged:
            self.bends.staged(self, inputs.bucket)

    def _stream(self) -> AbstractContextManager[None]:
        wait = self.bends.side_stream
        return nullcontext() if wait is None else self.engine.side_stream(wait=wait)

    def refresh(self, bucket: int) -> None:
        with self._stream():
            self._refresh(bucket)

    def _refresh(self, bucket: int) -> None:
        self.refreshes += 1
        if self.bends.before:
            self.bends.before(self, bucket)
        if self.bends.refresh:
            self.bends.refresh(self, bucket)
        else:
            self.plain_refresh(bucket)
        if self.bends.after:
            self.bends.after(self, bucket)

    def forward(self, bucket: int) -> tuple[StepOutputs, ...]:
        if self.bends.in_forward:
            self.bends.in_forward(self, bucket)
        outputs = super().forward(bucket)
        return self.bends.outputs(outputs) if self.bends.outputs else outputs

    def eager(self, rows: int) -> None:
        super().eager(rows)
        if self.bends.eager:
            self.bends.eager(self, rows)

    def route(self) -> str:
        return self.bends.route(self) if self.bends.route is not None else super().route()


def bent_subject(case: Case, program: Program, bends: Bends, engine: Engine | None = None) -> Subject:
    """Drive a bent system and the ordinary reference; return what the checks judge."""

    def factory(case: Case, engine: Engine, span: SpanRecorder) -> BentSut:
        return BentSut(bends, case, engine, span)

    def plain(case: Case, engine: Engine, span: SpanRecorder) -> EmbeddedSut:
        return EmbeddedSut(case, engine, span)

    engine = engine or TapeEngine()
    truth = Truth()
    observation = drive(case, program, truth, factory, engine)
    ordinary = None
    if not is_reference(case):
        ordinary = drive(ordinary_of(case), program, truth, plain, engine, probes=False)
    return Subject.of(observation, truth, ordinary, golden_checked=False)


def bent_result(
    case: Case, program: Program, bends: Bends, known: tuple[KnownFinding, ...] = ()
) -> CaseResult:
    """Drive a bent system and judge it with every check."""
    return judge(bent_subject(case, program, bends), known)


def replaced_leaf(sut: BentSut, step: int, bucket: int, **leaves: torch.Tensor) -> None:
    """Bind other tensors in a step's metadata object in place, as `object.__setattr__` does."""
    for name, tensor in leaves.items():
        object.__setattr__(sut.metadata(step, bucket), name, tensor)


def own_copy(sut: BentSut, step: int, bucket: int) -> None:
    """Give a step a metadata object of its own for one bucket, every leaf cloned."""
    backend = sut.backend.backends[step]
    shared = backend.metadata[bucket]
    leaves = {name: value.clone() for name, value in vars(shared).items() if isinstance(value, torch.Tensor)}
    backend.metadata[bucket] = replace(shared, **leaves)
    backend.active = backend.metadata[bucket]
