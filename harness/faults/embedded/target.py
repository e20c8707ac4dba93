"""The embedded system, opened: its metadata objects, state and inputs behind the `Target` protocol."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from harness.case import Case
from harness.engine.protocol import Engine
from harness.faults.scene import Given, Hooks
from harness.fields import COUNTER
from harness.sut.embedded.metadata import DSAMetadata
from harness.sut.embedded.multistep import MultiStepBackend
from harness.sut.embedded.precompute import DeviceInputs
from harness.sut.embedded.single import BucketTools, SingleBackend
from harness.sut.embedded.strategies import Backends, RefreshStrategy
from harness.sut.embedded.sut import EmbeddedSut
from harness.sut.protocol import SpanRecorder
from harness.types import Path


class _OpenStrategy:
    """A refresh strategy that can be made to read other inputs, and whose in-graph refresh can be wrapped."""

    def __init__(self, plain: RefreshStrategy, hooks: Callable[[], Hooks]) -> None:
        self._plain = plain
        self._hooks = hooks
        self.path = plain.path
        self.in_graph = plain.in_graph
        self.given: DeviceInputs | None = None
        self.backwards = False

    def init_state(self, backends: Backends, max_bs: int) -> None:
        self._plain.init_state(backends, max_bs)

    def build(self, backends: Backends, bucket: int, inputs: DeviceInputs) -> None:
        self._plain.build(backends, bucket, inputs)

    def refresh(self, backends: Backends, bucket: int, inputs: DeviceInputs) -> None:
        def plain() -> None:
            order = backends[::-1] if self.backwards else backends
            self._plain.refresh(order, bucket, self.given or inputs)

        around = self._hooks().in_graph if self.in_graph else None
        if around is None:
            plain()
        else:
            around(bucket, plain)


class _OpenBackend(MultiStepBackend):
    """The multi-step backend, asking what each step's forward reads."""

    def __init__(
        self,
        path: Path,
        steps: int,
        tools: Callable[[int], BucketTools],
        span: SpanRecorder,
        hooks: Callable[[], Hooks],
    ) -> None:
        super().__init__(path, steps, tools, span)
        self._hooks = hooks
        self.opened = _OpenStrategy(self.strategy, hooks)
        self.strategy = self.opened

    def metadata(self, step: int, bucket: int) -> DSAMetadata:
        found = super().metadata(step, bucket)
        reads = self._hooks().reads
        if reads is None:
            return found
        replaced: DSAMetadata = reads(step, bucket, found)
        return replaced


class EmbeddedTarget(EmbeddedSut):
    """See `harness.faults.scene.Target`."""

    def __init__(self, case: Case, engine: Engine, span: SpanRecorder) -> None:
        super().__init__(case, engine, span)
        self.hooks = Hooks()
        self._open = _OpenBackend(case.path, self.steps, self._tools, span, lambda: self.hooks)
        self._backend = self._open

    def refresh_backwards(self) -> None:
        """Refresh the steps last to first from now on."""
        self._open.opened.backwards = True

    def point(self, step: int, bucket: int, metadata: Any, *, entry: bool = True) -> None:
        """See `Target`."""
        backend = self._open.backends[step]
        if entry:
            backend.metadata[bucket] = metadata
        backend.active = metadata

    def rebind_state(self, step: int, name: str, tensor: torch.Tensor) -> None:
        """See `Target`."""
        backend: SingleBackend = self._open.backends[step]
        if name == COUNTER:
            assert backend.counter is not None
            backend.counter._buffer = tensor
            return
        *path, last = name.split(".")
        owner: Any = backend._wide
        for part in path:
            owner = getattr(owner, part)
        object.__setattr__(owner, last, tensor)

    def given(self, bucket: int) -> Given:
        """See `Target`."""
        inputs = self._inputs.of(bucket)
        return Given(inputs.seq_lens, inputs.req_pool_indices, inputs.accepted, inputs.req_to_token)

    @contextmanager
    def reading(self, given: Given) -> Iterator[None]:
        """See `Target`."""
        before = self._open.opened.given
        self._open.opened.given = DeviceInputs(given.lengths, given.requests, given.accepted, given.table)
        try:
            yield
        finally:
            self._open.opened.given = before
