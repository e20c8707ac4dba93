"""How the fused refresh is cut into programs: every job has its programs, every column one that copies it."""

from __future__ import annotations

import dataclasses

import pytest

from harness.case import PlanRule
from harness.fields import Dims
from harness.sut.embedded.fused_plan import COPYING, LaunchPlan, Tiling
from harness.types import Kernel, Mode
from tests.helpers import make_dims

JOBS = ("SCHEDULE", "POOLED_SCHEDULE", "PLAN", "POOLED_PLAN", "WRITE_PLAN", "FLASHMLA", "TABLES")
WIDEST = 1_048_576


def jobs(plan: LaunchPlan) -> dict[str, int]:
    """Return how many programs each job has."""
    first = [plan.constants[name] for name in JOBS] + [plan.grid]
    assert all(isinstance(one, int) for one in first)
    assert first == sorted(first)
    return {name: int(b) - int(a) for name, a, b in zip(JOBS, first, first[1:], strict=False)}  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("pool", "kernel", "bucket", "absent"),
    [
        (1, Kernel.FA3, 4, {"POOLED_SCHEDULE", "POOLED_PLAN", "WRITE_PLAN", "FLASHMLA"}),
        (1, Kernel.FLASHMLA_KV, 4, {"POOLED_SCHEDULE", "POOLED_PLAN", "WRITE_PLAN"}),
        (4, Kernel.FA3, 4, {"FLASHMLA"}),
        (4, Kernel.TRTLLM, 1, {"FLASHMLA", "PLAN", "POOLED_PLAN"}),  # one row: no plan is written
    ],
)
def test_a_job_has_programs_exactly_where_its_fields_exist(
    pool: int, kernel: Kernel, bucket: int, absent: set[str]
) -> None:
    dims = dataclasses.replace(make_dims(pool=pool, bucket=bucket), kernel=kernel)
    counts = jobs(LaunchPlan.of(dims, Tiling.compiled(dims)))
    assert {name for name, count in counts.items() if count == 0} == absent


@pytest.mark.parametrize("mode", list(Mode))
@pytest.mark.parametrize("bucket", [1, 4, 32, 512])
@pytest.mark.parametrize("width", [256, 131072, WIDEST])
def test_a_gpu_gets_neither_too_few_programs_nor_too_many(mode: Mode, bucket: int, width: int) -> None:
    dims = dataclasses.replace(make_dims(mode, 4, bucket, 6, width), num_sms=132)
    tiling = Tiling.compiled(dims)
    counts = jobs(LaunchPlan.of(dims, tiling))
    assert counts["TABLES"] == bucket * tiling.shares <= max(COPYING, bucket)
    assert tiling.shares * tiling.tile >= width or counts["TABLES"] > COPYING // 2
    assert counts["SCHEDULE"] * tiling.workers >= dims.num_sms + 1
    for size in (tiling.block, tiling.chunk, tiling.workers, tiling.tile):
        assert size & (size - 1) == 0
    assert tiling.tile % 64 == 0


def test_offsets_of_the_three_modes_are_those_of_the_specification() -> None:
    def numbers(mode: Mode) -> tuple[object, ...]:
        dims: Dims = make_dims(mode, draft_tokens=6)
        constants = LaunchPlan.of(dims, Tiling.interpreted(dims)).constants
        return tuple(constants[name] for name in ("REPEAT", "GROWN", "FIRST", "START"))

    assert numbers(Mode.DECODE) == (1, 0, 0, -1)
    assert numbers(Mode.TARGET_VERIFY) == (6, 6, 1, 0)
    assert numbers(Mode.DRAFT_EXTEND) == (6, 0, -5, -6)


def test_plans_are_left_out_beyond_the_most_rows() -> None:
    rule = PlanRule(candidates=((8, 1),), min_rows=2, max_rows=3)
    few, many = (dataclasses.replace(make_dims(bucket=bucket), plan=rule) for bucket in (3, 4))
    assert LaunchPlan.of(few, Tiling.compiled(few)).plans
    assert not LaunchPlan.of(many, Tiling.compiled(many)).plans
