"""Schedule, plan and tile planner, against the oracle and against what they promise."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.oracle import schedule, topk_plan
from harness.sut.embedded.planners import Planners
from tests.helpers import PLAN, make_dims

CPU = torch.device("cpu")
LENGTHS = st.lists(st.integers(0, 3000), min_size=1, max_size=70)


def planners(workers: int = 8) -> Planners:
    return Planners(dataclasses.replace(make_dims(bucket=80), num_sms=workers), CPU)


@given(lengths=LENGTHS, workers=st.integers(1, 40))
@settings(max_examples=60, deadline=None)
def test_schedule_equals_the_oracle(lengths: list[int], workers: int) -> None:
    out = torch.full((workers + 1, 2), -7, dtype=torch.int32)
    planners(workers).write_schedule(torch.tensor(lengths, dtype=torch.int32), out)
    assert np.array_equal(out.numpy(), schedule(np.array(lengths, np.int64), workers))


def test_schedule_changes_with_one_token_over_a_segment() -> None:
    out = [torch.zeros(9, 2, dtype=torch.int32) for _ in range(2)]
    for lengths, target in zip(((256, 700), (257, 700)), out, strict=True):
        planners().write_schedule(torch.tensor(lengths, dtype=torch.int32), target)
    assert not torch.equal(*out)


@given(lengths=st.lists(st.integers(0, 900), min_size=PLAN.min_rows, max_size=PLAN.max_rows))
@settings(max_examples=60, deadline=None)
def test_plan_equals_the_oracle_in_descending_row_order(lengths: list[int]) -> None:
    out = torch.full((len(lengths) + 1, 2), -7, dtype=torch.int32)
    planners().write_plan(torch.tensor(lengths, dtype=torch.int32), out)
    right = topk_plan(np.array(lengths, np.int64), PLAN)
    count = int(right[0, 1])
    assert np.array_equal(out[: count + 1].numpy(), np.concatenate([right[:1], right[count:0:-1]]))
    assert bool((out[count + 1 :] == -7).all())


@pytest.mark.parametrize("rows", [PLAN.min_rows - 1, PLAN.max_rows + 1])
def test_plan_is_untouched_outside_its_range_of_rows(rows: int) -> None:
    out = torch.full((rows + 1, 2), -7, dtype=torch.int32)
    planners().write_plan(torch.full((rows,), 900, dtype=torch.int32), out)
    assert bool((out == -7).all())


@given(lengths=st.lists(st.integers(0, 2048), min_size=1, max_size=40), workers=st.integers(1, 12))
@settings(max_examples=60, deadline=None)
def test_flashmla_tiles_cover_every_block_once(lengths: list[int], workers: int) -> None:
    tiles = planners(workers).flashmla(torch.tensor(lengths, dtype=torch.int32))
    starts = np.cumsum([0] + [-(-length // 64) + 5 for length in lengths])
    edges = []
    for first, block, last, end, *_ in tiles.flashmla_metadata.tolist():
        edges.append((starts[first] + block, starts[last] + end))
    assert edges[0][0] == 0
    assert edges[-1][1] == starts[-1]
    assert all(before[1] == after[0] for before, after in itertools.pairwise(edges))
    splits = np.diff(tiles.num_splits.numpy())
    touched = [
        sum(begin < starts[row + 1] and end > starts[row] and end > begin for begin, end in edges)
        for row in range(len(lengths))
    ]
    assert splits.tolist() == touched


def test_flashmla_tiles_depend_on_lengths() -> None:
    one, other = (planners().flashmla(torch.tensor(lengths)) for lengths in ([64, 640], [640, 64]))
    assert not torch.equal(one.flashmla_metadata, other.flashmla_metadata)
    assert not torch.equal(one.num_splits, other.num_splits)
