"""Running one sequence: drive it, judge it with every check that a single sequence can answer to."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace

from harness.case import Case, Model
from harness.checks import evidence
from harness.checks.registry import CHECKS, Check
from harness.checks.subject import Outcome, Subject
from harness.driver import drive
from harness.engine.protocol import Engine
from harness.findings import CaseResult, Finding
from harness.fuzz.expand import expand, undisturbed
from harness.fuzz.sequence import Sequence, Setting, case_of
from harness.judge import judge
from harness.known import KnownFinding
from harness.probe.instruments import Spans
from harness.sut.protocol import Pausable, SutFactory
from harness.truth import Truth

OF_ONE_ROUND = (
    "poison_missed",
    "not_poisoned",
    "field_missing",
    "step_absent",
    "not_replayed",
    "not_captured",
    "rounds_missing",
    "pause_missed",
)
"""Findings of the evidence check that a sequence can answer to: they speak of single rounds and captures."""
OF_A_PROGRAM = (
    "too_few_rounds",
    "no_replay",
    "lengths_constant",
    "only_capture_batch",
    "no_padding",
    "lengths_equal",
    "no_switch",
    "plan_empty",
    "reference_constant",
    "field_constant",
    "outputs_constant",
    "nothing_delayed",
)
"""Its other findings ask a whole program for variety; a short sequence has none. A test knows all kinds."""
LEFT_OUT = {
    "golden": "drawn values have no golden",
    "evidence": "what it asks of a whole program: " + ", ".join(OF_A_PROGRAM),
}
"""What a sequence is not judged by, with the reason: said in every report."""


def _evidence(subject: Subject) -> Outcome:
    outcome = evidence.check(subject)
    return replace(outcome, findings=tuple(one for one in outcome.findings if one.kind in OF_ONE_ROUND))


def checks_of_a_sequence() -> tuple[Check, ...]:
    """Return the checks that a sequence can answer to."""
    kept = [check for check in CHECKS if check.name != "golden"]
    return tuple(replace(check, run=_evidence) if check.name == "evidence" else check for check in kept)


@dataclass(frozen=True)
class Trial:
    """One sequence, driven and judged."""

    sequence: Sequence
    case: Case
    result: CaseResult

    @property
    def unexpected(self) -> tuple[Finding, ...]:
        """Findings that no known finding declares, in check order."""
        return tuple(finding for finding in self.result.findings if not finding.known)


class Bench:
    """A system under test on an engine, ready to run sequences one after the other."""

    def __init__(
        self,
        models: Mapping[str, Model],
        factory: SutFactory,
        engine: Engine,
        known: tuple[KnownFinding, ...] = (),
        ordinary: SutFactory | None = None,
    ) -> None:
        """Run systems made by `factory`; `ordinary` makes their reference (default: the same)."""
        self.models = models
        self._factory = factory
        self._ordinary = ordinary or factory
        self._engine = engine
        self._known = known
        self._truth = Truth(rounds=128)
        self._checks = checks_of_a_sequence()

    def run(self, sequence: Sequence) -> Trial:
        """Drive and judge a sequence.

        Raises NotDrivable where the system says so, CaseError where the sequence cannot be expanded.
        """
        start = time.perf_counter()
        case, program = expand(sequence, self.models)
        observation = drive(case, program, self._truth, self._factory, self._engine)
        reference = None
        if sequence.ordinary:
            ordinary, rounds = undisturbed(case, program)
            reference = drive(ordinary, rounds, self._truth, self._ordinary, self._engine, probes=False)
        subject = Subject.of(observation, self._truth, reference, golden_checked=False)
        result = judge(subject, self._known, checks=self._checks, seconds=time.perf_counter() - start)
        return Trial(sequence, case, result)

    def pauses(self, setting: Setting) -> bool:
        """Whether the system offers pause and resume. Raises NotDrivable or CaseError as building it does."""
        case = case_of(setting, self.models[setting.model])
        sut = self._factory(case, self._engine, Spans())
        try:
            return isinstance(sut, Pausable)
        finally:
            sut.close()
