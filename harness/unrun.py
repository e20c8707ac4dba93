"""Results of cases that did not run: skipped with a reason, or failed with their whole release."""

from __future__ import annotations

from harness.case import Case
from harness.findings import CaseResult, CheckResult, Finding, Verdict


def skipped(case: Case, reason: str) -> CaseResult:
    """Return the result of a case that the system cannot be driven on."""
    return CaseResult(case.id, case.axes(), (), 0, 0, 0.0, 0, 0.0, skipped=reason)


def lost(case: Case, kind: str, reason: str) -> CaseResult:
    """Return the failed result of a case whose worker died or was killed: kind `crashed` or `hung`."""
    hint = "run it alone under compute-sanitizer, or with CUDA_LAUNCH_BLOCKING=1"
    finding = Finding("routing", kind, case.id, "", case.bucket, (), (), reason, hint)
    check = CheckResult("routing", Verdict.FAILED, (finding,), 0)
    return CaseResult(case.id, case.axes(), (check,), 0, 0, 0.0, 0, 0.0)


def undriven(case: Case, reason: str) -> CaseResult:
    """Return the failed result of a case of a release that is asked for and cannot be driven at all."""
    finding = Finding("routing", "not_driven", case.id, "", 0, (), (), reason)
    check = CheckResult("routing", Verdict.FAILED, (finding,), 0)
    return CaseResult(case.id, case.axes(), (check,), 0, 0, 0.0, 0, 0.0)
