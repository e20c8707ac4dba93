from itertools import chain

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.case import PlanRule
from harness.oracle import schedule, topk_plan
from harness.probe.ledger import Ledger
from harness.sut.deepgemm import paged_mqa_schedule
from harness.sut.sglang.standins import (
    CopyModule,
    TopkModule,
    counter_bytes,
    flashmla_planner,
    plan_threshold,
)

LENGTHS = st.lists(st.integers(1, 5000), min_size=1, max_size=40)


def int32(values: object) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


@given(lengths=LENGTHS, num_sms=st.integers(1, 132))
@settings(max_examples=60, deadline=None)
def test_schedule_is_the_oracles(lengths: list[int], num_sms: int) -> None:
    got = paged_mqa_schedule(int32(lengths).view(-1, 1), 64, num_sms)
    assert got.dtype == torch.int32
    assert np.array_equal(got.numpy(), schedule(np.array(lengths), num_sms))


def test_schedule_deals_the_rest_to_the_last_workers() -> None:
    # 3 segments + 2 segments for 3 workers: 1, 2, 2
    got = paged_mqa_schedule(int32([[600], [257]]), 64, 3)
    assert got.tolist() == [[0, 0], [0, 1], [1, 0], [2, 0]]


def test_schedule_refuses_a_layout_that_deadlocks_the_kernel() -> None:
    with pytest.raises(ValueError, match="shaped"):
        paged_mqa_schedule(int32([[1, 2], [3, 4]]), 64, 3)


@given(lengths=LENGTHS)
@settings(max_examples=60, deadline=None)
def test_plan_is_the_oracles_up_to_its_count(lengths: list[int]) -> None:
    rule = PlanRule(candidates=((100, 1), (1000, 3), (3000, 5)), min_rows=1, max_rows=64)
    plan = torch.full((len(lengths) + 1, 2), -9, dtype=torch.int32)
    TopkModule(rule).topk_plan(int32(lengths), plan, -1)
    right = topk_plan(np.array(lengths), rule)
    count = int(right[0, 1])
    assert np.array_equal(plan[: count + 1].numpy(), right[: count + 1])
    assert (plan[count + 1 :] == -9).all()


@pytest.mark.parametrize("rows", [1, 5])
def test_plan_outside_its_row_limits_is_left_alone(rows: int) -> None:
    plan = torch.full((rows + 1, 2), -9, dtype=torch.int32)
    rule = PlanRule(candidates=((1, 1),), min_rows=2, max_rows=4)
    ledger = Ledger()
    with ledger:
        TopkModule(rule).topk_plan(int32([50] * rows), plan, -1)
    assert (plan == -9).all()
    assert ledger.entries([(0, "plan", plan)]) == ()


def test_threshold_is_the_last_where_every_cap_is_exceeded() -> None:
    rule = PlanRule(candidates=((10, 0), (20, 0)), min_rows=1, max_rows=9)
    assert plan_threshold(np.array([30], np.int32), rule) == 20
    assert plan_threshold(np.array([15], np.int32), rule) == 20
    assert plan_threshold(np.array([10], np.int32), rule) == 10


def _tensors(rows: int, width: int, first: int | None = None) -> list[torch.Tensor]:
    """Lengths, offsets, table, sparse lengths, sparse offsets, pages, splits, tiles: -1, or counted up."""
    table, pages = (rows, width), (rows, width // 64)
    shapes = [(rows,), (rows + 1,), table, (rows,), (rows + 1,), pages, (rows + 1,), (2, 8)]
    if first is None:
        return [torch.full(shape, -1, dtype=torch.int32) for shape in shapes]
    sizes = [torch.Size(shape).numel() for shape in shapes]
    return [
        torch.arange(first, first + size, dtype=torch.int32).view(shape)
        for shape, size in zip(shapes, sizes, strict=True)
    ]


def test_multi_copy_fills_three_destinations_and_spares_first_elements() -> None:
    source = _tensors(3, 128, 100)
    targets = [_tensors(4, 128) for _ in range(3)]
    ledger = Ledger()
    with ledger:
        CopyModule().fused_metadata_copy_multi(*source, *chain(*targets), 3, 128, 3)
    for target in targets:
        for index, rows in ((0, 3), (2, 3), (3, 3), (5, 3), (6, 4)):
            assert torch.equal(target[index][:rows], source[index][:rows])
            assert (target[index][rows:] == -1).all()
        for index in (1, 4):
            assert target[index][0] == -1
            assert torch.equal(target[index][1:4], source[index][1:4])
        assert torch.equal(target[7], source[7])
        written = ledger.written_mask(target[2])
        assert written[:3].all()
        assert not written[3:].any()
        assert not ledger.written_mask(target[1])[0]


@pytest.mark.parametrize("decode", [True, False])
def test_single_copy_takes_expanded_rows_in_target_verify(decode: bool) -> None:
    bs, rows = 2, 6
    source, target = _tensors(rows, 64, 100), _tensors(rows, 64)
    expanded = (int32(range(rows)), torch.full((rows,), -1, dtype=torch.int32))
    module = CopyModule(0 if decode else 1)
    without = (None, None, None)
    module.fused_metadata_copy(
        *source[:4], expanded[0], source[4], *without, *target[:4], expanded[1], target[4], *without,
        bs, 64 if decode else -1, 64, bs if decode else rows,
    )  # fmt: skip
    copied = bs if decode else rows
    assert torch.equal(target[2][:copied], source[2][:copied])
    assert (target[2][copied:] == -1).all()
    assert torch.equal(target[0][:bs], source[0][:bs])
    assert (target[0][bs:] == -1).all()
    assert torch.equal(expanded[1], expanded[1] if decode else expanded[0])
    assert (expanded[1] == -1).all() == decode
    assert (target[5] == -1).all()


@given(lengths=st.lists(st.integers(1, 2000), min_size=2, max_size=12), row=st.integers(0, 11))
@settings(max_examples=60, deadline=None)
def test_flashmla_planner_depends_on_every_rows_length(lengths: list[int], row: int) -> None:
    planner = flashmla_planner(6)
    row %= len(lengths)
    tiles, splits = planner(int32(lengths))
    assert tiles.shape == (6, 8)
    assert splits.shape == (len(lengths) + 1,)
    assert splits[0] == 0
    assert (splits[1:] > splits[:-1]).all()
    other = list(lengths)
    other[row] += 64 * 50
    more_tiles, more_splits = planner(int32(other))
    assert not (torch.equal(tiles, more_tiles) and torch.equal(splits, more_splits))


def test_counter_has_an_int32_for_every_row_and_head() -> None:
    assert counter_bytes(8192, 64, 132) == 8192 * 64 * 4
    assert counter_bytes(1, 1, 132) == 136 * 4
