"""A kept JSON report, read back for a page. It has no drawings: the observations are not in it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path as FilePath
from typing import Any

import msgspec

from harness.errors import UsageError
from harness.findings import CaseResult, CheckResult, Finding, Verdict
from harness.report.html.page import Run
from harness.report.jsonreport import SCHEMA


class _Check(msgspec.Struct):
    check: str
    verdict: Verdict
    elements: int
    findings: int
    reason: str


class _Case(msgspec.Struct):
    case: str
    axes: dict[str, str]
    skipped: str
    replays: int
    refreshes: int
    fused_copies: float
    bytes_owned: int
    seconds: float
    checks: tuple[_Check, ...]


class _Summary(msgspec.Struct):
    seconds: float


class _Report(msgspec.Struct):
    schema: int
    environment: dict[str, Any]
    summary: _Summary
    cases: tuple[_Case, ...]
    findings: tuple[Finding, ...]


def load_run(path: FilePath) -> Run:
    """Read what `verify --json` wrote. Raises UsageError in one line where the file is no such report."""
    try:
        report = msgspec.json.decode(path.read_bytes(), type=_Report)
    except (OSError, msgspec.MsgspecError) as error:
        raise UsageError(
            f"{path}: not a JSON report ({error}); `replay-harness verify --json FILE` writes one"
        ) from error
    if report.schema != SCHEMA:
        raise UsageError(f"{path}: schema {report.schema}, this version reads {SCHEMA}; verify again")
    if sum(check.findings for case in report.cases for check in case.checks) != len(report.findings):
        raise UsageError(f"{path}: its cases and its findings do not belong together; verify again")
    left = iter(report.findings)
    results = tuple(_result(case, left) for case in report.cases)
    return Run(results, None, report.summary.seconds, report.environment)


def _result(case: _Case, left: Iterator[Finding]) -> CaseResult:
    """Rebuild a result; findings lie in the order of their cases (`jsonreport.document`)."""
    own = [next(left) for check in case.checks for _ in range(check.findings)]
    checks = tuple(
        CheckResult(
            one.check,
            one.verdict,
            tuple(finding for finding in own if finding.check == one.check),
            one.elements,
            one.reason,
        )
        for one in case.checks
    )
    return CaseResult(
        case=case.case,
        axes=case.axes,
        checks=checks,
        replays=case.replays,
        refreshes=case.refreshes,
        fused_copies=case.fused_copies,
        bytes_owned=case.bytes_owned,
        seconds=case.seconds,
        skipped=case.skipped,
    )
