"""Judging: every check over one observation, known findings marked, one result."""

from __future__ import annotations

from harness.checks.registry import CHECKS, Check
from harness.checks.subject import Subject
from harness.findings import CaseResult, CheckResult, Verdict
from harness.known import KnownFinding, mark
from harness.measures import fused_copies, owned_bytes
from harness.observation import Observation


def judge(
    subject: Subject,
    known: tuple[KnownFinding, ...] = (),
    *,
    checks: tuple[Check, ...] = CHECKS,
    seconds: float = 0.0,
) -> CaseResult:
    """Run all checks and return the case's result; `seconds` is how long driving and judging took."""
    results = mark(tuple(_run(check, subject) for check in checks), subject, known)
    return result_of(subject.observation, results, seconds)


def _run(check: Check, subject: Subject) -> CheckResult:
    outcome = check.run(subject)
    if outcome.not_applicable:
        return CheckResult(check.name, Verdict.NOT_APPLICABLE, (), outcome.elements, outcome.not_applicable)
    verdict = Verdict.FAILED if outcome.findings else Verdict.PASSED
    return CheckResult(check.name, verdict, outcome.findings, outcome.elements)


def result_of(observation: Observation, checks: tuple[CheckResult, ...], seconds: float) -> CaseResult:
    """Put a case's figures beside its check results."""
    case = observation.case
    return CaseResult(
        case=case.id,
        axes=case.axes(),
        checks=checks,
        replays=sum(record.replay is not None for record in observation.rounds),
        refreshes=sum(len(record.refreshes) for record in observation.rounds),
        fused_copies=fused_copies(observation),
        bytes_owned=owned_bytes(observation),
        seconds=seconds,
        facts=observation.facts,
    )
