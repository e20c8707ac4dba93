"""What a dying or hanging worker loses is run again; the case that did it is the finding."""

from __future__ import annotations

import os
import time

import pytest

from harness.case import Case
from harness.errors import UsageError
from harness.findings import CaseResult, Verdict
from harness.pool import UNFIT, Done, Group, leave_if, run_groups
from harness.unrun import skipped
from tests.helpers import make_case, tiny_model

MODEL = tiny_model()
LIMIT_S = 20.0


def cases(*buckets: int) -> Group:
    """Cases whose bucket says what their worker does."""
    return tuple(make_case(MODEL, bucket=bucket) for bucket in buckets)


def result(case: Case) -> CaseResult:
    return skipped(case, f"ran in {os.getpid()}")


def crashes_at_4(group: Group) -> Done:
    for case in group:
        if case.bucket == 4:
            os._exit(3)
    return Done(tuple(result(case) for case in group))


def hangs_at_4(group: Group) -> Done:
    for case in group:
        if case.bucket == 4:
            time.sleep(600)
    return Done(tuple(result(case) for case in group))


def loses_its_device_at_4(group: Group) -> Done:
    leave_if(getattr(loses_its_device_at_4, "dead", False))
    for index, case in enumerate(group):
        if case.bucket == 4:
            loses_its_device_at_4.dead = True  # type: ignore[attr-defined]
            return Done(tuple(result(case) for case in group[: index + 1]), group[index + 1 :])
    return Done(tuple(result(case) for case in group))


def refuses(group: Group) -> Done:
    raise UsageError("engine cuda_graph needs a CUDA device")


def by_bucket(found: list[CaseResult]) -> dict[str, CaseResult]:
    assert len({one.case for one in found}) == len(found)
    return {one.axes["bucket"]: one for one in found}


def test_the_case_that_ends_its_worker_is_the_finding_and_the_others_run() -> None:
    found = by_bucket(list(run_groups(crashes_at_4, [cases(1, 2, 4, 8), cases(32)], 1, LIMIT_S)))
    assert set(found) == {"1", "2", "4", "8", "32"}
    (finding,) = found["4"].checks[0].findings
    assert (found["4"].verdict, finding.kind) == (Verdict.FAILED, "crashed")
    assert "exit status 3" in finding.message
    assert all(found[bucket].skipped.startswith("ran in") for bucket in ("1", "2", "8", "32"))


def test_a_case_that_never_ends_is_killed_and_the_others_run() -> None:
    found = by_bucket(list(run_groups(hangs_at_4, [cases(4), cases(1, 2)], 2, 8.0)))
    (finding,) = found["4"].checks[0].findings
    assert finding.kind == "hung"
    assert "within 8 s" in finding.message
    assert all(found[bucket].skipped.startswith("ran in") for bucket in ("1", "2"))


def test_a_worker_without_a_device_leaves_its_groups_to_another() -> None:
    found = by_bucket(list(run_groups(loses_its_device_at_4, [cases(1, 4, 8), cases(2)], 1, LIMIT_S)))
    assert all(one.skipped.startswith("ran in") for one in found.values())
    assert found["1"].skipped == found["4"].skipped
    assert found["8"].skipped != found["4"].skipped
    assert UNFIT > 2  # no status that Python itself ends with


def test_a_usage_error_of_a_worker_is_the_runs() -> None:
    with pytest.raises(UsageError, match="needs a CUDA device"):
        list(run_groups(refuses, [cases(1)], 1, LIMIT_S))
