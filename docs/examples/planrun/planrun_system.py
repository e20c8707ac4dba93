"""Draft steps that each have a `plan`/`run` wrapper, or share one, as a system under test."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields

import torch
from planrun_wrapper import PAGE, Buffers, DecodeWrapper

from harness.case import Case
from harness.engine.protocol import Engine
from harness.observation import Expectation, LedgerEntry
from harness.rounds import Inputs
from harness.sut.protocol import SpanRecorder, StepOutputs, StepRoots
from harness.types import Path

WIDTH = 16
LEAVES = tuple(field.name for field in fields(Buffers))


class PlanRunSystem:
    """All draft steps of one case."""

    name = "planrun"
    tolerates_poison = False  # a real kernel with a wrong page list reads foreign memory

    def __init__(self, case: Case, engine: Engine, *, lazy: bool) -> None:
        self.case, self.device, self.steps, self._lazy = case, engine.device, case.backends, lazy
        self._columns = case.geometry.width // PAGE
        self._shares = case.path is Path.SHARED
        self._wrappers: list[dict[int, DecodeWrapper]] = [{} for _ in range(self.steps)]
        self._active: list[Buffers | None] = [None] * self.steps
        self._planned = 0
        pool = (case.geometry.requests + 1) * self._columns + case.geometry.first_page
        random = torch.Generator().manual_seed(1)
        self._keys = torch.randn(pool, PAGE, WIDTH, generator=random).to(self.device)
        largest = max(case.model.buckets)
        # The same for every step: the reference of all steps is the system's own single step (S = 2).
        self._query = torch.randn(largest, WIDTH, generator=random).to(self.device)

    def facts(self) -> Mapping[str, str]:
        """The wrapper is a stand-in for FlashInfer's."""
        return {"planrun.wrapper": "stand-in", "planrun.device": str(self.device)}

    def expectation(self, bucket: int) -> Expectation:
        """Every plan writes every buffer once."""
        planned = range(1 if self._shares else self.steps)
        writes = tuple(LedgerEntry(step, leaf, 1) for step in planned for leaf in LEAVES)
        return Expectation(self.case.path.value, writes, {}, shared=self._shares, state_leaves=())

    def init_graph_state(self) -> None:
        """The inputs that a server keeps: lengths, requests and its table of token slots."""
        geometry, largest = self.case.geometry, max(self.case.model.buckets)
        self._inputs = {
            "lengths": torch.ones(largest, dtype=torch.int64, device=self.device),
            "requests": torch.zeros(largest, dtype=torch.int64, device=self.device),
            "table": torch.zeros(geometry.requests, geometry.width, dtype=torch.int32, device=self.device),
        }

    def stage(self, inputs: Inputs) -> None:
        """Write a round's inputs in place."""
        self._inputs["lengths"][: inputs.bucket].copy_(torch.from_numpy(inputs.lengths))
        self._inputs["requests"][: inputs.bucket].copy_(torch.from_numpy(inputs.requests))
        self._inputs["table"].copy_(torch.from_numpy(inputs.table))

    def inputs(self) -> Mapping[str, torch.Tensor]:
        """What a plan may only read."""
        return self._inputs

    def prepare_capture(self, bucket: int) -> None:
        """Make the wrappers of a batch size, and plan once: `run` is captured on planned buffers."""
        for wrappers in self._wrappers:
            wrappers[bucket] = DecodeWrapper(bucket, self._columns, self.device, lazy=self._lazy)
            if self._shares:
                wrappers[bucket] = self._wrappers[0][bucket]
        self.refresh(bucket)

    def refresh(self, bucket: int) -> None:
        """Build the page list of the batch and plan: for every step, or once for all of them."""
        lengths, requests = (self._inputs[name][:bucket] for name in ("lengths", "requests"))
        pages = (lengths + PAGE - 1) // PAGE
        rows = self._inputs["table"][requests, ::PAGE] // PAGE
        indices = rows[torch.arange(self._columns, device=self.device) < pages[:, None]]
        indptr = torch.cat([pages.new_zeros(1), pages.cumsum(0)])
        planning = self._wrappers[:1] if self._shares else self._wrappers
        for wrappers in planning:
            wrappers[bucket].plan(indptr, indices, (lengths - 1) % PAGE + 1)
        self._active = [wrappers[bucket].buffers for wrappers in self._wrappers]
        self._planned = len(planning)

    def forward(self, bucket: int) -> tuple[StepOutputs, ...]:
        """All steps; what each reads is copied inside the graph."""
        return tuple(
            StepOutputs(
                read={name: leaf.clone() for name, leaf in vars(wrappers[bucket].buffers).items()},
                computed={"attention": wrappers[bucket].run(self._query[:bucket], self._keys)},
            )
            for wrappers in self._wrappers
        )

    def eager(self, rows: int) -> None:
        """There is no eager path: the specification leaves the drill out."""

    def roots(self) -> tuple[StepRoots, ...]:
        """The buffers; what else a wrapper remembers is its own."""
        return tuple(
            StepRoots({bucket: one.buffers for bucket, one in wrappers.items()}, active)
            for wrappers, active in zip(self._wrappers, self._active, strict=True)
        )

    def route(self) -> str:
        """What ran, by how many wrappers planned."""
        return (Path.SHARED if self._planned < self.steps else self.case.path).value

    def reference(self, leaf: str, inputs: Inputs) -> torch.Tensor | None:
        """Every buffer has a formula."""
        return None

    def close(self) -> None:
        """Nothing is patched."""


def make_sut(case: Case, engine: Engine, span: SpanRecorder, *, plan: str = "always") -> PlanRunSystem:
    """Return the system; `--sut-option plan=lazy` plans anew only where the number of pages changes."""
    return PlanRunSystem(case, engine, lazy=plan == "lazy")
