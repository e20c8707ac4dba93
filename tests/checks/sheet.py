"""Runs driven once, and sheets of them that an edit may change before the checks judge them."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import msgspec
import numpy as np
import pytest

from harness.case import Case, Model, PlanRule
from harness.checks.registry import CHECKS
from harness.checks.subject import Subject
from harness.digest import value_digest
from harness.driver import drive
from harness.engine.protocol import Engine
from harness.engine.tape import TapeEngine
from harness.fields import Dims, FieldSpec, Padding
from harness.findings import Finding
from harness.golden.collect import collect, default_policy
from harness.golden.model import Golden
from harness.observation import Cell, LeafFact, Observation, Walk
from harness.rounds import Inputs, Program, Round
from harness.specification import HostSpec
from harness.sut.protocol import SpanRecorder
from harness.truth import Truth
from harness.types import Drill, Kernel, Mode, Path, Precision, Role
from tests.faulty import Bends, bent_subject
from tests.helpers import make_case, make_program, page_map, tiny_model
from tests.test_advancing import GROWING, Bent, Growing

MODEL = tiny_model()
PLAIN_POOL = tiny_model(pool=1)
BATCHES = (
    ((65, 257, 900, 13), (3, 1, 4, 2)),
    ((600, 700, 10), (5, 6, 7)),
    ((999, 700, 64, 2), (8, 6, 7, 1)),
)


def two_buckets(model: Model, less: bool = False) -> Program:
    """Return rounds in buckets 4, 2 and 4; less: without the one between, the last with other lengths."""
    tables = {f"t{number}": page_map(model, number) for number in range(4)}
    rounds = (
        Round("b4.00", 4, (65, 257, 900, 13), (3, 1, 4, 2), "t1"),
        Round("b2.00", 2, (600, 10), (5, 7), "t2"),
        Round("b4.01", 4, (999, 700, 64), (8, 6, 7), "t3"),
    )
    captured = {bucket: Round(f"b{bucket}.capture", bucket, (1,) * bucket, tuple(range(1, bucket + 1)), "t0")
                for bucket in (4, 2)}  # fmt: skip
    chosen = (rounds[0], replace(rounds[2], lengths=(998, 700, 64))) if less else rounds
    return Program((4, 2), captured, chosen, tables)


def with_thresholds(first: int, second: int) -> Model:
    """Return a model of 1024 tokens, or 256 pools, whose plans begin at these lengths."""
    model = tiny_model()
    plan = PlanRule(candidates=((first, 1), (second, 2)), min_rows=2, max_rows=64)
    geometries = {
        name: msgspec.structs.replace(geometry, plan=plan) for name, geometry in model.geometries.items()
    }
    return msgspec.structs.replace(model, geometries=geometries)


CASES: dict[str, Case] = {
    "shared": make_case(MODEL),
    "independent": make_case(MODEL, path=Path.INDEPENDENT, steps=6),
    "copied": make_case(MODEL, path=Path.SIBLING_COPY),
    "counted": make_case(MODEL, kernel=Kernel.TRTLLM),
    "in_graph": make_case(MODEL, path=Path.SHARED_IN_GRAPH),
    "delayed": make_case(MODEL, drill=Drill.DELAYED),
    "switched": make_case(MODEL, drill=Drill.BUCKET_SWITCH),
    "verify": make_case(MODEL, mode=Mode.TARGET_VERIFY),
    "extend": make_case(MODEL, mode=Mode.DRAFT_EXTEND),
    "switched_less": make_case(MODEL, drill=Drill.BUCKET_SWITCH),
    "bf16": make_case(MODEL, precision=Precision.BF16),
    "flash": make_case(PLAIN_POOL, kernel=Kernel.FLASHMLA_KV),
    "growing": make_case(PLAIN_POOL, path=Path.MULTI_STEP, sut="growing"),
    "fused_growing": make_case(PLAIN_POOL, path=Path.FUSED_MULTI_STEP, sut="growing"),
    "padded_growing": make_case(PLAIN_POOL, path=Path.FUSED_MULTI_STEP, sut="padded"),
    "constant_growing": make_case(PLAIN_POOL, path=Path.MULTI_STEP, sut="constant"),
    "views_growing": make_case(PLAIN_POOL, path=Path.MULTI_STEP, sut="views"),
    "views_fused": make_case(PLAIN_POOL, path=Path.FUSED_MULTI_STEP, sut="views"),
    "constant_switched": make_case(
        PLAIN_POOL, path=Path.MULTI_STEP, sut="constant", drill=Drill.BUCKET_SWITCH
    ),
    "pooled_below": make_case(with_thresholds(256, 300)),
    "pooled_far_below": make_case(with_thresholds(1000, 1024)),
    "in_graph_switched": make_case(MODEL, path=Path.SHARED_IN_GRAPH, drill=Drill.BUCKET_SWITCH),
    "captured_only": make_case(MODEL),
    "equal": make_case(MODEL),
    "short": make_case(MODEL),
    "single": make_case(MODEL, bucket=1),
    "pair": make_case(MODEL, bucket=2),
}
BATCHES_OF = {
    "captured_only": (((1, 1, 1, 1), (1, 2, 3, 4)),) * 2,
    "equal": (((300,) * 4, (1, 2, 3, 4)), ((500,) * 3, (3, 1, 2))),
    "short": (((9, 8, 7, 6), (1, 2, 3, 4)), ((5, 4, 3), (3, 1, 2))),
    "pooled_below": (((9, 8, 7, 6), (1, 2, 3, 4)), ((5, 4, 3), (3, 1, 2))),
    "pooled_far_below": (((9, 8, 7, 6), (1, 2, 3, 4)), ((5, 4, 3), (3, 1, 2))),
    "single": (((65,), (3,)), ((700,), (5,))),
    "pair": (((65, 900), (3, 1)), ((600, 700), (5, 6))),
}
"""Rounds of runs that have others than `BATCHES`."""


def _fields(dims: Dims) -> tuple[FieldSpec, FieldSpec]:
    lengths, twice = GROWING.fields if isinstance(GROWING.fields, tuple) else GROWING.fields(dims)
    return lengths, twice


def _free_where_fused(dims: Dims) -> tuple[FieldSpec, ...]:
    lengths, twice = _fields(dims)
    fused = dims.path is Path.FUSED_MULTI_STEP and dims.rows > 0
    return lengths, replace(twice, padding=Padding.FREE) if fused else twice


def _with_a_constant(dims: Dims) -> tuple[FieldSpec, ...]:
    return (FieldSpec("constant", "int32", lambda dims: (2,)), *_fields(dims))


def _staged_in_two(dims: Dims) -> tuple[FieldSpec, ...]:
    """In a bucket of two rows both leaves are views that the runner stages; in others both are views."""
    lengths, twice = _fields(dims)
    return lengths, replace(twice, view_of="lengths", role=Role.STAGED if dims.rows == 2 else twice.role)


def _rows(dims: Dims, inputs: Inputs, captured: bool) -> object:
    """Return the batch's rows; a build that is taken for a capture's where it is none gives others."""
    assert dims.path is not None
    return inputs.bucket if captured is dims.path.in_graph else -1


SPECIFICATIONS = {
    "growing": GROWING,
    "padded": replace(GROWING, fields=_free_where_fused),
    "views": replace(
        GROWING,
        fields=_staged_in_two,
        hosts=lambda dims: (
            HostSpec("rows", lambda dims, inputs, captured: dims.bucket, frozen=dims.rows == 4),
        ),
    ),
    "constant": replace(
        GROWING,
        fields=_with_a_constant,
        expected=lambda dims, inputs: {**GROWING.expected(dims, inputs), "constant": np.array([3, 4])},
    ),
}


@cache
def driven(name: str) -> Subject:
    """Return a healthy run of a case and its ordinary reference, driven once."""
    case = CASES[name]
    if case.sut in SPECIFICATIONS:
        return grown(case)
    program = (
        two_buckets(case.model, less=name.endswith("less"))
        if case.drill is Drill.BUCKET_SWITCH
        else make_program(case.model, case.bucket, BATCHES_OF.get(name, BATCHES))
    )
    return bent_subject(case, program, Bends(side_stream=True if name == "delayed" else None))


def grown(case: Case) -> Subject:
    """Return a run of the system whose lengths grow from step to step; `specified` has to be in force."""
    program, engine = make_program(case.model, 4, BATCHES), TapeEngine()
    if case.drill is Drill.BUCKET_SWITCH:
        both = two_buckets(case.model)
        program = replace(both, rounds=(both.rounds[1], both.rounds[0], both.rounds[2]))

    def plain(case: Case, engine: Engine, span: SpanRecorder) -> Growing:
        return Growing(Bent(), case, engine, span)

    observation = drive(case, program, truth(), plain, engine)
    reference = replace(case, path=Path.MULTI_STEP)
    ordinary = None if case == reference else drive(reference, program, truth(), plain, engine, probes=False)
    return Subject.of(observation, truth(), ordinary, golden_checked=False)


@contextmanager
def specified() -> Iterator[None]:
    """Let the systems whose lengths grow have their specifications."""
    with pytest.MonkeyPatch.context() as patch:
        for name, module in list(sys.modules.items()):
            if name.startswith("harness.") and hasattr(module, "specification_of"):
                patch.setattr(module, "specification_of", SPECIFICATIONS.get)
        yield


@cache
def accepted(name: str) -> Golden:
    """Return the golden of a healthy run."""
    observation = driven(name).observation
    return collect(observation, default_policy(observation.case), "a healthy run")


@cache
def truth() -> Truth:
    """Return the truths of all runs' rounds."""
    return Truth()


@dataclass
class Sheet:
    """A run that is being edited."""

    observation: Observation
    ordinary: Observation | None
    golden: Golden | None = None
    golden_checked: bool = False

    @classmethod
    def of(cls, name: str) -> Sheet:
        """Return a sheet of a healthy run."""
        subject = driven(name)
        return cls(subject.observation, subject.ordinary)

    def put(self, path: str, change: Any) -> None:
        """Replace what a path of attributes and indices leads to, by a value or a function of the old one."""
        self.observation = _put(self.observation, path.split("."), change)

    def ordinary_put(self, path: str, change: Any) -> None:
        """Do the same in the ordinary reference."""
        self.ordinary = _put(self.ordinary, path.split("."), change)

    def value(self, array: Any) -> str:
        """Keep a value and return its digest."""
        digest = value_digest(array)
        values = {**self.observation.values, digest: array}
        self.observation = replace(self.observation, values=values)
        return digest

    def ordinary_value(self, array: Any) -> str:
        """Keep a value in the ordinary reference and return its digest."""
        assert self.ordinary is not None
        digest = value_digest(array)
        self.ordinary = replace(self.ordinary, values={**self.ordinary.values, digest: array})
        return digest

    def cells(self, path: str, name: str, step: int | None = None, /, **changes: Any) -> None:
        """Change a leaf's cells below a path: `array` (a function of the old value) or attributes."""
        array = changes.pop("array", None)

        def edit(cell: Cell) -> Cell:
            if cell.name != name or step not in (None, cell.step):
                return cell
            if array is not None:
                changes["value"] = self.value(array(self.observation.values[cell.value].copy()))
            return replace(cell, **changes)

        cells = tuple(edit(cell) for cell in _get(self.observation, path.split(".")))
        self.put(path, cells)

    def drop(self, path: str, name: str, step: int | None = None) -> None:
        """Take a leaf's cells or facts out of a tuple."""
        self.put(path, lambda all_: tuple(x for x in all_ if x.name != name or step not in (None, x.step)))

    def walked(self, path: str, change: Callable[[Walk], Walk]) -> None:
        """Let a refresh, replay or capture have a walk of its own that differs."""
        old = self.observation.walks[_get(self.observation, path.split("."))]
        self.put("walks", (*self.observation.walks, change(old)))
        self.put(path, len(self.observation.walks) - 1)

    def everywhere(self, change: Callable[[Walk], Walk]) -> None:
        """Change every walk."""
        self.put("walks", lambda walks: tuple(change(walk) for walk in walks))

    def judged(self) -> Subject:
        """Return what the checks judge."""
        return Subject.of(
            self.observation, truth(), self.ordinary, self.golden, golden_checked=self.golden_checked
        )


def leaves(
    name: str, step: int | None = None, bucket: int | None = None, **changes: Any
) -> Callable[[Walk], Walk]:
    """Return a change of a leaf's facts in a walk; without changes the leaf is taken out."""

    def edit(walk: Walk) -> Walk:
        kept = []
        for leaf in walk.leaves:
            hit = leaf.name == name and step in (None, leaf.step) and bucket in (None, leaf.bucket)
            if not hit:
                kept.append(leaf)
            elif changes:
                kept.append(replace(leaf, **changes))
        return replace(walk, leaves=tuple(kept))

    return edit


def more(*facts: LeafFact) -> Callable[[Walk], Walk]:
    """Return a change that adds leaves to a walk."""
    return lambda walk: replace(walk, leaves=(*walk.leaves, *facts))


def said(subject: Subject) -> dict[str, Any]:
    """Return all that the checks say and how much each compared, in a form that reads well as JSON."""
    outcomes = {check.name: check.run(subject) for check in CHECKS}
    return {
        "compared": ", ".join(f"{name} {outcome.elements}" for name, outcome in outcomes.items()),
        "not applicable": [
            f"{name}: {outcome.not_applicable}"
            for name, outcome in outcomes.items()
            if outcome.not_applicable
        ],
        "findings": [
            _finding(one, subject.observation.case)
            for outcome in outcomes.values()
            for one in outcome.findings
        ],
    }


def _finding(finding: Finding, case: Case) -> dict[str, Any]:
    """Return a finding without what is empty, and without the case where it is the run's."""
    shown: dict[str, Any] = {
        "case": "" if finding.case == case.id else str(finding.case),
        "kind": f"{finding.check}/{finding.kind}",
        "field": finding.field,
        "bucket": finding.bucket,
        "steps": " ".join(map(str, finding.steps)),
        "rounds": " ".join(finding.rounds),
        "message": finding.message,
        "hint": finding.hint,
        "elements": finding.elements,
        "known": finding.known,
    }
    if finding.first is not None:
        first = finding.first
        values = f"{_rounded(first.expected)!r} -> {_rounded(first.got)!r}"
        shown["first"] = f"[{first.row}, {first.column}] {values} {first.note!r}"
    return {key: value for key, value in shown.items() if value not in ("", 0)}


def _rounded(text: str) -> str:
    """Return a value as text with four digits of a float: the last ones of sums differ between processors."""
    return re.sub(r"-?\d+\.\d{5,}", lambda found: f"{float(found[0]):.4g}", text)


def _get(thing: Any, path: list[str]) -> Any:
    for key in path:
        thing = thing[int(key)] if isinstance(thing, tuple) else getattr(thing, key)
    return thing


def _put(thing: Any, path: list[str], change: Any) -> Any:
    if not path:
        return change(thing) if callable(change) else change
    key, rest = path[0], path[1:]
    if isinstance(thing, tuple):
        index = int(key) % len(thing)
        return (*thing[:index], _put(thing[index], rest, change), *thing[index + 1 :])
    return replace(thing, **{key: _put(getattr(thing, key), rest, change)})


def plus(amount: int, index: int = 0) -> Callable[[Any], Any]:
    """Return a change of one element."""

    def edit(array: Any) -> Any:
        array.reshape(-1)[index] += np.array(amount).astype(array.dtype)
        return array

    return edit
