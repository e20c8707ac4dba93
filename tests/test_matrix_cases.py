"""The matrix as tests: one test a case, one subtest a check. Options select; see `docs/pytest.md`."""

from collections.abc import Callable

import pytest

from harness.case import Case
from harness.findings import CaseResult
from harness.report.terminal import describe


def test_case(
    harness_case: Case, run_harness_case: Callable[[Case], CaseResult], subtests: pytest.Subtests
) -> None:
    result = run_harness_case(harness_case)
    assert result.checks
    for check in result.checks:
        with subtests.test(check=check.check):
            unexpected = [finding for finding in check.findings if not finding.known]
            if unexpected:
                pytest.fail("\n\n".join(map(describe, unexpected)), pytrace=False)
