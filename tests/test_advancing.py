"""A small system whose lengths grow from step to step: refreshes in the graph, and refreshes taking turns."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch

from harness.case import Case
from harness.checks.subject import Subject
from harness.driver import drive
from harness.engine.protocol import Engine
from harness.engine.tape import TapeEngine
from harness.fields import Dims, FieldSpec, Padding
from harness.findings import CaseResult, Verdict
from harness.judge import judge
from harness.observation import Expectation, LedgerEntry
from harness.rounds import Inputs
from harness.specification import HostSpec, Specification
from harness.sut.protocol import SpanRecorder, StepOutputs, StepRoots
from harness.truth import Truth
from harness.types import Path, Role
from tests.helpers import make_case, make_program, tiny_model


def _bucket(dims: Dims) -> tuple[int, ...]:
    return (dims.bucket,)


def _advance(dims: Dims, inputs: Inputs, steps: int) -> Inputs:
    return replace(inputs, lengths=inputs.lengths + steps, advanced=inputs.advanced + steps)


GROWING = Specification(
    fields=(
        FieldSpec("lengths", "int32", _bucket, Role.STAGED, view_of="lengths", padding=Padding.ADVANCES),
        FieldSpec("twice", "int32", _bucket, padding=Padding.ADVANCES),
    ),
    expected=lambda dims, inputs: {"lengths": inputs.lengths, "twice": 2 * inputs.lengths},
    ordinary={Path.MULTI_STEP: Path.MULTI_STEP, Path.FUSED_MULTI_STEP: Path.MULTI_STEP},
    advance=_advance,
    ahead=lambda model: 2,
    hosts=lambda dims: (HostSpec("rows", lambda dims, inputs, captured: dims.bucket),),
    matters=lambda case: {"steps": case.variant.steps, "path": case.path},
    goldens=False,
)
BATCHES = (((65, 257, 900, 13), (3, 1, 4, 2)), ((600, 700, 10), (5, 6, 7)), ((9, 7, 64, 2), (8, 6, 7, 1)))


@dataclass(frozen=True)
class Bent:
    """What goes wrong."""

    forgets: frozenset[int] = frozenset()
    """Steps whose refresh leaves `twice` as it was."""
    rows: int = 0
    """Another number of rows than the bucket's."""
    moves: bool = False
    """Whether a later step's metadata holds a copy of the runner's lengths."""


class Growing:
    """One metadata object for all steps: `lengths` is the runner's buffer, `twice` follows it."""

    name = "growing"
    tolerates_poison = True

    def __init__(self, bent: Bent, case: Case, engine: Engine, span: SpanRecorder) -> None:
        self._bent, self._case, self._span = bent, case, span
        self.steps = case.backends
        self.buffers = {
            "lengths": torch.zeros(8, dtype=torch.int32),
            "twice": torch.zeros(8, dtype=torch.int32),
        }
        self.metadata: dict[int, dict[str, Any]] = {}
        self._done = 0

    def facts(self) -> Mapping[str, str]:
        return {}

    def expectation(self, bucket: int) -> Expectation:
        path, steps = self._case.path, self.steps
        writes = (
            (LedgerEntry(0, "twice", steps),)
            if path.in_graph
            else tuple(LedgerEntry(step, "twice", 1) for step in range(steps))
        )
        return Expectation(path.value, writes, {}, self._case.sharing_applies, ())

    def init_graph_state(self) -> None:
        pass

    def stage(self, inputs: Inputs) -> None:
        self.buffers["lengths"][: inputs.bucket] = torch.from_numpy(inputs.lengths.astype(np.int32))

    def inputs(self) -> Mapping[str, torch.Tensor]:
        return {}

    def prepare_capture(self, bucket: int) -> None:
        self.metadata[bucket] = {
            "lengths": self.buffers["lengths"][:bucket],
            "twice": self.buffers["twice"][:bucket],
            "rows": self._bent.rows or bucket,
        }
        self.metadata[bucket]["twice"].copy_(2 * self.metadata[bucket]["lengths"])

    def _update(self, step: int, bucket: int) -> None:
        found = self.metadata[bucket]
        with self._span("refresh"):
            if step not in self._bent.forgets:
                found["twice"].copy_(2 * found["lengths"])

    def _read(self, bucket: int) -> StepOutputs:
        found = self.metadata[bucket]
        with self._span("forward"):
            leaves = {name: found[name].clone() for name in ("lengths", "twice")}
            return StepOutputs(leaves, {"sum": (leaves["lengths"] + 3 * leaves["twice"]).float()})

    def forward(self, bucket: int) -> tuple[StepOutputs, ...]:
        if not self._case.path.in_graph:
            outputs = self._read(bucket)
            self.metadata[bucket]["lengths"].add_(1)
            return (outputs,)
        seen = []
        for step in range(self.steps):
            self._update(step, bucket)
            seen.append(self._read(bucket))
            self.metadata[bucket]["lengths"].add_(1)
        return tuple(seen)

    def decode(self, bucket: int, replay: Callable[[int], None]) -> None:
        for step in range(self.steps):
            self._update(step, bucket)
            if self._bent.moves and step:
                self.metadata[bucket]["lengths"] = self.metadata[bucket]["lengths"].clone()
            replay(step)

    def refresh(self, bucket: int) -> None:
        pass

    def eager(self, rows: int) -> None:
        self.buffers["twice"][:rows] = 5

    def roots(self) -> tuple[StepRoots, ...]:
        active = next(iter(self.metadata.values()), None)
        return tuple(
            StepRoots(
                dict(self.metadata),
                active,
                {"runner": {"lengths": self.buffers["lengths"]}} if not step else {},
            )
            for step in range(self.steps)
        )

    def route(self) -> str:
        return self._case.path.value

    def reference(self, leaf: str, inputs: Inputs) -> torch.Tensor | None:
        return None

    def close(self) -> None:
        pass


@pytest.fixture(autouse=True)
def _growing(monkeypatch: pytest.MonkeyPatch) -> None:
    def found(sut: str) -> Specification | None:
        return GROWING if sut == "growing" else None

    for name, module in list(sys.modules.items()):
        if name.startswith("harness.") and hasattr(module, "specification_of"):
            monkeypatch.setattr(module, "specification_of", found)


def judged(path: Path, bent: Bent) -> CaseResult:
    model = tiny_model(1)
    case = make_case(model, path=path, steps=4, sut="growing")
    program, truth = make_program(model, 4, BATCHES), Truth()

    def factory(bends: Bent) -> Callable[[Case, Engine, SpanRecorder], Growing]:
        return lambda case, engine, span: Growing(bends, case, engine, span)

    observation = drive(case, program, truth, factory(bent), TapeEngine())
    ordinary = None
    if path is not Path.MULTI_STEP:
        plain = replace(case, path=Path.MULTI_STEP)
        ordinary = drive(plain, program, truth, factory(Bent()), TapeEngine(), probes=False)
    return judge(Subject.of(observation, truth, ordinary, golden_checked=False), ())


@pytest.mark.parametrize("path", [Path.MULTI_STEP, Path.FUSED_MULTI_STEP])
def test_what_follows_the_lengths_at_every_step_is_clean(path: Path) -> None:
    result = judged(path, Bent())
    assert result.findings == ()
    assert result.verdict is Verdict.PASSED


@pytest.mark.parametrize("path", [Path.MULTI_STEP, Path.FUSED_MULTI_STEP])
@pytest.mark.parametrize("forgets", [{0}, {1}, {2}, {0, 1, 2}])
def test_a_step_whose_refresh_is_left_out_is_named(path: Path, forgets: set[int]) -> None:
    findings = judged(path, Bent(frozenset(forgets))).findings
    values = [one for one in findings if one.field == "twice" and one.kind != "writes"]
    assert forgets <= {step for one in values for step in one.steps}


def test_a_python_value_that_is_another_is_named() -> None:
    found = judged(Path.FUSED_MULTI_STEP, Bent(rows=3)).findings
    assert "rows" in {one.field for one in found}


def test_lengths_that_no_longer_are_the_runners_are_named() -> None:
    found = judged(Path.MULTI_STEP, Bent(moves=True)).findings
    assert {("aliasing", "not_a_view"), ("address", "moved")} <= {
        (one.check, one.kind) for one in found if one.field == "lengths"
    }
