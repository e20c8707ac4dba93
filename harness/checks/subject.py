"""What a check may look at, and one classification of every leaf of every refresh that all checks share.

One cause is stated once: a cell that still holds the sentinel or an older round's value is
freshness's, another wrong value is equivalence's, and the checks that look at consequences (what a
step read, what it computed, the golden) leave out the cells whose cause is stated already.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from harness.fields import RUNNER, Dims, fields_for, position
from harness.findings import Difference, Finding
from harness.golden.model import Golden
from harness.observation import Cell, Observation, RoundRecord
from harness.rounds import Round, given_name
from harness.truth import RoundTruth, Truth
from harness.types import Role

Array = NDArray[np.generic]


class State(Enum):
    """What a leaf's defined elements are after a refresh."""

    RIGHT = "right"
    POISONED = "poisoned"
    """Some element still holds the sentinel: not refreshed, or not wholly."""
    STALE = "stale"
    """Equals the right value of an earlier round, or of capture."""
    WRONG = "wrong"
    UNKNOWN = "unknown"
    """No formula and no reference: nothing to compare with."""


@dataclass(frozen=True, eq=False)
class Judged:
    """One leaf after one refresh, classified."""

    record: RoundRecord
    refresh: int
    """Index into `record.refreshes`."""
    cell: Cell
    state: State
    stale_of: str = ""
    """Name of the round whose value a stale cell holds."""


@dataclass(frozen=True, eq=False)
class Subject:
    """An observation and what it is held against. Made by `Subject.of`."""

    observation: Observation
    truths: tuple[RoundTruth, ...] = field(repr=False)
    """By round index."""
    ordinary: Observation | None
    """The ordinary path's observation of the same rounds; None where the case is itself the reference."""
    golden: Golden | None
    golden_checked: bool
    judged: tuple[Judged, ...] = field(repr=False)
    """Every leaf after every refresh, in order."""
    states: tuple[Mapping[tuple[int, str], State], ...] = field(repr=False)
    """By round index: the state of every (step, leaf) before the replay."""

    @classmethod
    def of(
        cls,
        observation: Observation,
        truth: Truth,
        ordinary: Observation | None = None,
        golden: Golden | None = None,
        *,
        golden_checked: bool = True,
    ) -> Subject:
        """Classify an observation's cells and return it with what it is held against."""
        program, case = observation.program, observation.case
        truths = tuple(truth.of(case, program, program.rounds[r.index]) for r in observation.rounds)
        captured = [truth.of(case, program, round_) for round_ in program.capture.values()]
        judged = tuple(_classify(observation, truths, captured))
        states: list[dict[tuple[int, str], State]] = [{} for _ in truths]
        for one in judged:  # a later refresh of the same round overwrites: the last is what a replay reads
            states[one.record.index][one.cell.step, one.cell.name] = one.state
        return cls(observation, truths, ordinary, golden, golden_checked, judged, tuple(states))

    def round(self, record: RoundRecord) -> Round:
        """Return the program's round of a record."""
        return self.observation.program.rounds[record.index]

    def counterpart(self, record: RoundRecord) -> RoundRecord | None:
        """Return the ordinary path's record of the same inputs; None where there is none."""
        return self._ordinary.get(given_name(record.name))

    @cached_property
    def _ordinary(self) -> Mapping[str, RoundRecord]:
        return {} if self.ordinary is None else {record.name: record for record in self.ordinary.rounds}

    def expected(self, record: RoundRecord, name: str, step: int) -> tuple[Array, str] | None:
        """Return the right value of a step's leaf and its digest: the oracle's, or the planner's
        reference."""
        return expected_value(self.observation, self.truths[record.index].at(step), record, name)

    def staged(self, record: RoundRecord, name: str) -> bool:
        """Whether a leaf, under its name in a ledger, is a view of the runner's inputs: staged and
        advanced."""
        return staged(self.truths[record.index].dims, name)

    def frozen_hosts(self) -> frozenset[str]:
        """Return the host values that a later build may set otherwise than the capture did, by
        declaration."""
        dims = Dims.of(self.observation.case, self.observation.case.bucket)
        hosts = () if dims.own is None else dims.own.hosts(dims)
        return frozenset(host.name for host in hosts if host.frozen)

    def padded_otherwise(self, record: RoundRecord, name: str) -> bool:
        """Whether a leaf's padded rows hold something else on this path than on the ordinary one."""
        truth = self.truths[record.index]
        if self.ordinary is None or truth.inputs.live == truth.dims.bucket or truth.dims.own is None:
            return False
        other = fields_for(Dims.of(self.ordinary.case, truth.dims.bucket))
        return name in other and other[name].padding is not truth.fields[name].padding

    def findings(self, check: str) -> Findings:
        """Return an empty collection for one check's findings."""
        return Findings(check, self.observation.case.id)

    def difference(self, record: RoundRecord, cell: Cell, note: str = "") -> tuple[int, Difference | None]:
        """Return how many elements of a leaf differ from the right value, and the first of them."""
        expected = self.expected(record, cell.name, cell.step)
        if expected is None:
            return 0, None
        return first_difference(
            self.truths[record.index].at(cell.step),
            cell.name,
            expected[0],
            self.observation.values[cell.value],
            note,
        )


def staged(dims: Dims, name: str) -> bool:
    """Whether a leaf, under its name in a ledger of a bucket, is the runner's to stage and to advance.

    name: as is for the bucket's own leaves, `@<bucket>/name` for those of others, `@0/` for state.
    """
    if name.startswith("@"):
        bucket, _, name = name[1:].partition("/")
        if bucket == "0":
            return name.partition(".")[0] == RUNNER
        dims = replace(dims, bucket=int(bucket))
    fields = fields_for(dims)
    return name in fields and fields[name].role is Role.STAGED


def expected_value(
    observation: Observation, truth: RoundTruth, record: RoundRecord, name: str
) -> tuple[Array, str] | None:
    """Return the right value of a leaf in a round and its digest; None where nothing is known."""
    if name in truth.expected:
        return truth.expected[name].live, truth.expected[name].digest
    digest = observation.references.get(f"{record.name}/{name}")
    return None if digest is None else (observation.values[digest], digest)


def first_difference(
    truth: RoundTruth, name: str, expected: Array, got: Array, note: str = ""
) -> tuple[int, Difference | None]:
    """Compare two values of one leaf: number of differing elements and the first, by row and column."""
    if expected.shape != got.shape or expected.dtype != got.dtype:
        shapes = (f"{expected.dtype}{list(expected.shape)}", f"{got.dtype}{list(got.shape)}")
        return max(expected.size, got.size), Difference(0, 0, *shapes, note=note or "dtype or shape")
    differing = np.flatnonzero(expected != got)
    if not differing.size:
        return 0, None
    index = int(differing[0])
    spec = truth.fields.get(name)
    row, column = (index, 0) if spec is None else position(spec, truth.dims, truth.inputs, index)
    return int(differing.size), Difference(row, column, str(expected[index]), str(got[index]), note)


def _classify(
    observation: Observation, truths: tuple[RoundTruth, ...], captured: list[RoundTruth]
) -> Iterator[Judged]:
    history: dict[str, list[tuple[str, str]]] = {}
    for truth in captured:
        for name, value in truth.expected.items():
            history.setdefault(name, []).append((f"capture of bucket {truth.dims.bucket}", value.digest))
    for record in observation.rounds:
        truth, right = truths[record.index], dict[tuple[int, str], str]()
        for index, refresh in enumerate(record.refreshes):
            for cell in refresh.cells:
                expected = expected_value(observation, truth.at(cell.step), record, cell.name)
                key = (cell.step if truth.later else 0, cell.name)
                if expected is not None:
                    right[key] = expected[1]
                before = [*history.get(cell.name, []), *_earlier_steps(truth, cell)]
                state, stale_of = _state(cell, right.get(key), before)
                yield Judged(record, index, cell, state, stale_of)
        for (step, name), digest in right.items():
            where = f", draft step {step}" if truth.later else ""
            history.setdefault(name, []).append((f"round {record.name}{where}", digest))


def _earlier_steps(truth: RoundTruth, cell: Cell) -> Iterator[tuple[str, str]]:
    """Yield what was right of a leaf at the draft steps before, where lengths advance from step to step."""
    for step in range(cell.step if truth.later else 0):
        value = truth.at(step).expected.get(cell.name)
        if value is not None:
            yield f"draft step {step} of the same round", value.digest


def _state(cell: Cell, expected: str | None, history: list[tuple[str, str]]) -> tuple[State, str]:
    if expected is None:
        return State.UNKNOWN, ""
    if cell.value == expected:
        return State.RIGHT, ""
    if cell.poisoned:
        return State.POISONED, ""
    for name, digest in reversed(history):
        if digest == cell.value:
            return State.STALE, name
    return State.WRONG, ""


@dataclass(frozen=True)
class Outcome:
    """What one check returns: findings and how much it compared; a reason where it does not apply."""

    findings: tuple[Finding, ...]
    elements: int
    not_applicable: str = ""


@dataclass
class Group:
    """Findings that show in the same way in several rounds and steps, collected into one."""

    check: str
    kind: str
    subject: str
    bucket: int
    message: str
    hint: str
    elements: int = 0
    first: Difference | None = None
    steps: set[int] = field(default_factory=set)
    rounds: dict[str, None] = field(default_factory=dict)


class Findings:
    """Collects findings of one check, one per (kind, field, bucket), over rounds and steps."""

    def __init__(self, check: str, case: str) -> None:
        """Collect for one check and case."""
        self._check, self._case = check, case
        self._groups: dict[tuple[str, str, int], Group] = {}

    def add(
        self,
        kind: str,
        message: str,
        *,
        subject: str = "",
        bucket: int = 0,
        step: int | None = None,
        round_name: str = "",
        hint: str = "",
        elements: int = 0,
        first: Difference | None = None,
    ) -> None:
        """Add one occurrence; message, first difference and element count are those of the first one."""
        key = (kind, subject, bucket)
        group = self._groups.setdefault(
            key, Group(self._check, kind, subject, bucket, message, hint, elements, first)
        )
        if step is not None:
            group.steps.add(step)
        if round_name:
            group.rounds[round_name] = None

    def result(self) -> tuple[Finding, ...]:
        """Return the findings in the order in which they were first seen."""
        return tuple(
            Finding(
                check=group.check,
                kind=group.kind,
                case=self._case,
                field=group.subject,
                bucket=group.bucket,
                steps=tuple(sorted(group.steps)),
                rounds=tuple(group.rounds),
                message=group.message,
                hint=group.hint,
                elements=group.elements,
                first=group.first,
            )
            for group in self._groups.values()
        )
