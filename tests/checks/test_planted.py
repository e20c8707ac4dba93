"""Every check speaks on a fault planted for it, and none speaks on harmless changes."""

from __future__ import annotations

import warnings

import pytest
import torch

from harness.case import Case
from harness.checks.registry import CHECKS
from harness.findings import CaseResult, Finding, Verdict
from harness.sut.protocol import StepOutputs
from harness.types import Drill, Kernel, Path
from tests.faulty import Bends, BentSut, bent_result, own_copy, replaced_leaf
from tests.helpers import make_case, make_program, tiny_model

MODEL = tiny_model()
BATCHES = (
    ((65, 257, 900, 13), (3, 1, 4, 2)),
    ((66, 258, 901, 14), (3, 1, 4, 2)),
    ((600, 700, 10), (5, 6, 7)),
    ((600, 701, 10, 999), (5, 6, 7, 9)),
    ((999, 700, 64, 2), (8, 6, 7, 1)),
    ((3, 1, 2, 3), (1, 2, 3, 4)),
)
PROGRAM = make_program(MODEL, 4, BATCHES)
SHARED = make_case(MODEL)
COUNTED = make_case(MODEL, kernel=Kernel.TRTLLM)
OVERSIZE = make_case(MODEL, kernel=Kernel.TRTLLM, drill=Drill.OVERSIZE)
DELAYED = make_case(MODEL, drill=Drill.DELAYED)


def stale_schedule(sut: BentSut, bucket: int) -> None:
    """Refresh all but the schedule, as a path does that thinks the batch size decides it."""
    schedule = sut.metadata(0, bucket).paged_mqa_schedule_metadata
    before = schedule.clone()
    sut.plain_refresh(bucket)
    schedule.copy_(before)


def skip_every_third(sut: BentSut, bucket: int) -> None:
    if sut.refreshes % 3:
        sut.plain_refresh(bucket)


def twice(sut: BentSut, bucket: int) -> None:
    sut.plain_refresh(bucket)
    sut.plain_refresh(bucket)


def writes_input(sut: BentSut, bucket: int) -> None:
    sut.inputs()["seq_lens"][0].add_(1)


def rebind(sut: BentSut, bucket: int) -> None:
    if sut.refreshes == 4:
        replaced_leaf(sut, 0, bucket, cu_seqlens_k=sut.metadata(0, bucket).cu_seqlens_k.clone())


def grow_counter(sut: BentSut, rows: int) -> None:
    for backend in sut.backend.backends:
        backend.counter._buffer = torch.zeros(2 * rows, dtype=torch.int32)


def write_lengths(sut: BentSut, bucket: int) -> None:
    sut.metadata(1, bucket).cache_seqlens_int32.add_(1)


def wrong_row(sut: BentSut, bucket: int) -> None:
    sut.plain_refresh(bucket)
    table = sut.metadata(0, bucket).real_page_table
    table[1, 0] = table[0, 0]


def rounded_up(sut: BentSut, bucket: int) -> None:
    sut.plain_refresh(bucket)
    lengths = sut.metadata(0, bucket).cache_seqlens_int32
    sut.metadata(0, bucket).pooled_cache_seqlens_int32.copy_((lengths + 3) // 4)


def other_buffer(outputs: tuple[StepOutputs, ...]) -> tuple[StepOutputs, ...]:
    """Step 1 reads the lengths of its own frozen copy."""
    read = dict(outputs[1].read)
    read["cache_seqlens_int32"] = torch.full_like(read["cache_seqlens_int32"], 5)
    return (outputs[0], StepOutputs(read, outputs[1].computed), *outputs[2:])


def nudged(outputs: tuple[StepOutputs, ...]) -> tuple[StepOutputs, ...]:
    computed = dict(outputs[1].computed)
    computed["attention"] = computed["attention"] * 1.0000002
    return (outputs[0], StepOutputs(outputs[1].read, computed), *outputs[2:])


def warn(sut: BentSut, bucket: int) -> None:
    warnings.warn("fused kernel not available, falling back", stacklevel=1)


def explode(sut: BentSut, bucket: int) -> None:
    if sut.refreshes == 3:
        raise ValueError("no kernel for this shape\nsecond line")


def shared_counter(sut: BentSut, bucket: int) -> None:
    backends = sut.backend.backends
    for backend in backends[1:]:
        backend.counter = backends[0].counter


def dirty_counter(sut: BentSut, bucket: int) -> None:
    sut.backend.backends[1].counter.buffer[0] = 1


def other_active(sut: BentSut, bucket: int) -> None:
    sut.backend.backends[2].active = None


def refresh_while_staging(sut: BentSut, bucket: int) -> None:
    if sut.refreshes == 3:
        sut.plain_refresh(bucket)


def refresh_ahead_of_its_inputs(sut: BentSut, bucket: int) -> None:
    with sut.engine.side_stream(wait=False):
        sut.plain_refresh(bucket)


FAULTS = [
    ("aliasing", "own_object", SHARED, Bends(captured=lambda s, b: own_copy(s, 1, b))),
    ("aliasing", "counter_shared", COUNTED, Bends(captured=shared_counter)),
    ("aliasing", "not_repointed", SHARED, Bends(after=other_active)),
    ("refresh", "twice", SHARED, Bends(refresh=twice)),
    ("refresh", "while_staged", SHARED, Bends(staged=refresh_while_staging)),
    ("refresh", "input", SHARED, Bends(after=writes_input)),
    ("readonly", "input", SHARED, Bends(in_forward=writes_input)),
    ("refresh", "never", SHARED, Bends(refresh=skip_every_third)),
    ("freshness", "schedule", SHARED, Bends(refresh=stale_schedule)),
    ("freshness", "every_third", SHARED, Bends(refresh=skip_every_third)),
    ("address", "rebound", SHARED, Bends(after=rebind)),
    ("address", "grown", OVERSIZE, Bends(eager=grow_counter)),
    ("readonly", "lengths", SHARED, Bends(in_forward=write_lengths)),
    ("readonly", "dirty_counter", COUNTED, Bends(before=dirty_counter)),
    ("equivalence", "wrong_row", SHARED, Bends(refresh=wrong_row)),
    ("equivalence", "rounded_up", SHARED, Bends(refresh=rounded_up)),
    ("output", "other_buffer", SHARED, Bends(outputs=other_buffer)),
    ("output", "nudged", SHARED, Bends(outputs=nudged)),
    ("routing", "warned", SHARED, Bends(after=warn)),
    ("routing", "raised", SHARED, Bends(before=explode)),
    ("routing", "other_path", SHARED, Bends(route=lambda sut: "independent")),
    ("routing", "once", SHARED, Bends(route=lambda sut: "independent" if sut.refreshes == 3 else "shared")),
    ("ordering", "no_wait", DELAYED, Bends(side_stream=False)),
    ("ordering", "too_early", DELAYED, Bends(refresh=refresh_ahead_of_its_inputs)),
]


def spoke(result: CaseResult) -> dict[str, tuple[Finding, ...]]:
    return {check.check: check.findings for check in result.checks if check.findings}


@pytest.mark.parametrize(("check", "name", "case", "bends"), FAULTS, ids=lambda value: str(value)[:24])
def test_the_check_speaks_on_its_fault(check: str, name: str, case: Case, bends: Bends) -> None:
    found = spoke(bent_result(case, PROGRAM, bends))
    assert check in found, f"{name}: only {sorted(found)} spoke"


def test_every_check_has_a_planted_fault() -> None:
    elsewhere = {"golden", "evidence"}  # tests/checks/test_golden_check.py, test_evidence.py
    assert {check.name for check in CHECKS} - elsewhere == {fault[0] for fault in FAULTS}


def permuted_plan(sut: BentSut, bucket: int) -> None:
    """Write the plan's rows in another order, within the one write that the path declares."""
    plan = sut.metadata(0, bucket).topk_v2_plan
    count = int(plan[0, 1])
    with torch.no_grad():
        plan.numpy()[1 : count + 1] = plan.numpy()[1 : count + 1][::-1].copy()


def junk_after_the_lengths(sut: BentSut, bucket: int) -> None:
    metadata = sut.metadata(0, bucket)
    table, lengths = metadata.page_table_1.numpy(), metadata.cache_seqlens_int32.numpy()
    for row, length in enumerate(lengths):
        table[row, length:] = 7


def extra_allocations(sut: BentSut, bucket: int) -> None:
    sut.kept["junk"] = [torch.empty(1 << size) for size in range(4, 16)]


HARMLESS = [
    ("nothing", SHARED, Bends()),
    ("ordinary", make_case(MODEL, path=Path.INDEPENDENT), Bends()),
    ("permuted_plan", SHARED, Bends(after=permuted_plan)),
    ("dead_columns", SHARED, Bends(after=junk_after_the_lengths)),
    ("allocations", SHARED, Bends(before=extra_allocations)),
    ("waits", DELAYED, Bends(side_stream=True)),
    ("oversize", OVERSIZE, Bends()),
    ("counters", COUNTED, Bends()),
    ("recapture", make_case(MODEL, drill=Drill.RECAPTURE), Bends()),
    ("churn", make_case(MODEL, drill=Drill.CHURN, path=Path.SHARED_IN_GRAPH), Bends()),
]


@pytest.mark.parametrize(("name", "case", "bends"), HARMLESS, ids=lambda value: str(value)[:24])
def test_no_check_speaks_on_a_harmless_change(name: str, case: Case, bends: Bends) -> None:
    found = spoke(bent_result(case, PROGRAM, bends))
    messages = [finding.message for findings in found.values() for finding in findings]
    assert not messages


def test_a_two_step_draft_has_nothing_to_share() -> None:
    case = make_case(MODEL, steps=2)
    result = bent_result(case, PROGRAM, Bends())
    assert not spoke(result)
    verdicts = {check.check: (check.verdict, check.reason) for check in result.checks}
    assert verdicts["aliasing"][0] is Verdict.NOT_APPLICABLE
    assert "S = 2" in verdicts["aliasing"][1]
    assert verdicts["freshness"][0] is Verdict.PASSED
