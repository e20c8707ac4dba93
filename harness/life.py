"""One long life of a system, driven and judged window by window: constant memory, however many rounds.

The system is built once; graphs, buffers and whatever it remembers live on from window to window. Only the
record is begun anew: what was read of a window is judged and forgotten before the next one.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from harness.case import Case
from harness.checks.subject import Subject
from harness.driver import Run, SystemFailure
from harness.engine.protocol import Engine
from harness.findings import CaseResult
from harness.fuzz import sequence as plain
from harness.fuzz.expand import program_of
from harness.fuzz.trial import checks_of_a_sequence
from harness.judge import judge
from harness.known import KnownFinding
from harness.pages import page_columns
from harness.rounds import Program, Round
from harness.sut.protocol import SutFactory
from harness.truth import RoundTruth, Truth

WINDOW = 64
"""Operations of one window."""


class Life:
    """One system in one setting, and the operations that it has been through."""

    def __init__(
        self,
        case: Case,
        setting: plain.Setting,
        factory: SutFactory,
        engine: Engine,
        known: tuple[KnownFinding, ...] = (),
    ) -> None:
        """Prepare a life; the system is built with the first window. `setting` is that of the case."""
        self.case = case
        self.operations = 0
        """Operations so far."""
        self.over = False
        """Whether the system has failed: nothing more can be asked of it."""
        self._setting, self._factory, self._engine, self._known = setting, factory, engine, known
        self._truth = Truth(rounds=2 * WINDOW)
        self._checks = checks_of_a_sequence()
        columns = page_columns(case.model, case.geometry)
        self._standing = np.zeros((case.geometry.requests, columns), np.int32)
        self._captures: dict[int, Round] = {}
        """The first capture of each bucket so far; their page maps are in `_tables`."""
        self._tables: dict[str, NDArray[np.int32]] = {}
        self._run: Run | None = None

    @property
    def run(self) -> Run:
        """The run in progress; there is one after the first window."""
        assert self._run is not None
        return self._run

    def next_round(self, operation: plain.Replay) -> RoundTruth:
        """Count one replay without driving it; return its inputs and expected values."""
        part = plain.Sequence(setting=self._setting, operations=(operation,))
        program = program_of(part, self.case, self.operations + 1, self._standing)
        self.operations += 1
        return self._truth.of(self.case, program, program.rounds[0])

    def window(self, operations: Sequence[plain.Operation]) -> CaseResult:
        """Drive some more operations and judge them. Raises NotDrivable where the system says so."""
        begin = time.perf_counter()
        part = plain.Sequence(setting=self._setting, operations=tuple(operations))
        program = self._remember(program_of(part, self.case, self.operations + 1, self._standing))
        self.operations += len(part.operations)
        new = self._run is None
        run = self._run = self._run or Run(self.case, program, self._truth, self._engine, True)
        try:
            if new:
                run.build(self._factory)
            else:
                run.renew(program)
            run.play()
        except SystemFailure as failure:
            run.problems.append(str(failure))
            self.over = True
        subject = Subject.of(run.observation(), self._truth, golden_checked=False)
        seconds = time.perf_counter() - begin
        result = judge(subject, self._known, checks=self._checks, seconds=seconds)
        # A window may be too short for a declared fault to show: that it is absent says nothing.
        return replace(result, checks=tuple(one for one in result.checks if one.check != "known"))

    def forgiven(self) -> frozenset[tuple[int, str]]:
        """Return the (step, field) whose wrong values are declared as known for this case."""
        facts = self.run.sut.facts()
        entries = [entry for entry in self._known if entry.covers_case(self.case, facts)]
        return frozenset((step, name) for entry in entries for step in entry.steps for name in entry.fields)

    def close(self) -> None:
        """Let go of the system."""
        if self._run is not None:
            self._run.close()

    def _remember(self, program: Program) -> Program:
        """Return the program with the captures of earlier windows: what a stale value may stem from."""
        for bucket, round_ in program.capture.items():
            if bucket not in self._captures:
                key = f"{round_.name}.kept"  # a window's own keys mean other maps in the next one
                self._captures[bucket] = replace(round_, table=key)
                self._tables[key] = program.tables[round_.table]
        return replace(program, capture=dict(self._captures), tables={**program.tables, **self._tables})


@contextmanager
def living(
    case: Case,
    setting: plain.Setting,
    factory: SutFactory,
    engine: Engine,
    known: tuple[KnownFinding, ...] = (),
) -> Iterator[Life]:
    """Give a life that ends with the block."""
    life = Life(case, setting, factory, engine, known)
    try:
        yield life
    finally:
        life.close()
