"""The toy as a system under test: the contract of `harness/sut/protocol.py`, method by method."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from toy_backend import PAGE, Step

from harness.case import Case
from harness.engine.protocol import Engine
from harness.observation import Expectation, LedgerEntry
from harness.rounds import Inputs
from harness.sut.protocol import SpanRecorder, StepOutputs, StepRoots
from harness.types import Path


class ToySystem:
    """All draft steps of one case."""

    name = "toy"
    tolerates_poison = True  # the forward clamps page ids, and nothing else of the metadata is an index

    def __init__(self, case: Case, engine: Engine, *, cached: bool) -> None:
        geometry = case.geometry
        columns = geometry.width // PAGE
        self.case, self.device, self.steps = case, engine.device, case.backends
        self._shares = case.path is Path.SHARED
        pool = (geometry.requests + 1) * columns + geometry.first_page
        self._backends = [Step(columns, pool, self.device, cached=cached) for _ in range(self.steps)]
        self._inputs: dict[str, torch.Tensor] = {}
        self._refreshed = 0

    def facts(self) -> Mapping[str, str]:
        """Everything here is real."""
        return {"toy.device": str(self.device)}

    def expectation(self, bucket: int) -> Expectation:
        """Every refreshing step writes each of its three leaves once."""
        owners = range(1 if self._shares else self.steps)
        names = ("lengths", "pages", "plan")
        writes = tuple(LedgerEntry(step, name, 1) for step in owners for name in names)
        return Expectation(self.case.path.value, writes, {}, shared=self._shares, state_leaves=())

    def init_graph_state(self) -> None:
        """The input tensors: a graph and a refresh read them where they are."""
        geometry, largest = self.case.geometry, max(self.case.model.buckets)
        self._inputs = {
            "lengths": torch.ones(largest, dtype=torch.int32, device=self.device),
            "requests": torch.zeros(largest, dtype=torch.int64, device=self.device),
            "table": torch.zeros(geometry.requests, geometry.width, dtype=torch.int32, device=self.device),
        }

    def stage(self, inputs: Inputs) -> None:
        """Write a round's inputs in place."""
        self._inputs["lengths"][: inputs.bucket].copy_(torch.from_numpy(inputs.lengths))
        self._inputs["requests"][: inputs.bucket].copy_(torch.from_numpy(inputs.requests))
        self._inputs["table"].copy_(torch.from_numpy(inputs.table))

    def inputs(self) -> Mapping[str, torch.Tensor]:
        """What a refresh may only read."""
        return self._inputs

    def prepare_capture(self, bucket: int) -> None:
        """Make a bucket's metadata; with sharing, later steps take step 0's object."""
        for backend in self._backends:
            backend.make(bucket)
            if self._shares:
                backend.buckets[bucket] = self._backends[0].buckets[bucket]
        self.refresh(bucket)

    def refresh(self, bucket: int) -> None:
        """Refresh every step, or step 0 for all of them."""
        lengths, requests = (self._inputs[name][:bucket] for name in ("lengths", "requests"))
        owners = self._backends[:1] if self._shares else self._backends
        for backend in owners:
            backend.refresh(bucket, lengths, requests, self._inputs["table"])
        for backend in self._backends:
            backend.active = backend.buckets[bucket]
        self._refreshed = len(owners)

    def forward(self, bucket: int) -> tuple[StepOutputs, ...]:
        """All steps; what each reads is copied inside the graph."""
        return tuple(
            StepOutputs(
                read={name: leaf.clone() for name, leaf in vars(backend.buckets[bucket]).items()},
                computed={"attention": backend.forward(bucket)},
            )
            for backend in self._backends
        )

    def eager(self, rows: int) -> None:
        """There is no eager path: the specification leaves the drill out."""

    def roots(self) -> tuple[StepRoots, ...]:
        """Where the tensors hang."""
        return tuple(StepRoots(backend.buckets, backend.active) for backend in self._backends)

    def route(self) -> str:
        """What ran, by how many steps were refreshed."""
        return (Path.SHARED if self._refreshed < self.steps else self.case.path).value

    def reference(self, leaf: str, inputs: Inputs) -> torch.Tensor | None:
        """Every field has a formula."""
        return None

    def close(self) -> None:
        """Nothing is patched."""


def make_sut(case: Case, engine: Engine, span: SpanRecorder, *, plan: str = "fresh") -> ToySystem:
    """Return the toy; `--sut-option plan=cached` gives the one that keeps its plan too long."""
    return ToySystem(case, engine, cached=plan == "cached")
