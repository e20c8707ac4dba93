"""The field table: live regions, canonical vectors and positions."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.fields import (
    FIELDS,
    FieldSpec,
    Live,
    Padding,
    canonical,
    fields_for,
    live_mask,
    plan_is_written,
    position,
    row_lengths,
    write_starts,
)
from harness.oracle import expected
from harness.types import Kernel, Mode, Role
from tests.helpers import make_dims, make_inputs


def test_names_are_unique() -> None:
    assert len({field.name for field in FIELDS}) == len(FIELDS)


def test_pooled_fields_exist_only_where_the_specification_has_them() -> None:
    def names(mode: Mode, pool: int) -> set[str]:
        return set(fields_for(make_dims(mode, pool)))

    assert not any("pool" in name for mode in Mode for name in names(mode, 1))
    assert "pooled_topk_v2_plan" in names(Mode.DECODE, 4)
    assert "pooled_real_page_table" in names(Mode.TARGET_VERIFY, 4)
    assert "pooled_real_page_table" not in names(Mode.DRAFT_EXTEND, 4)
    assert "kpool_write_plan.effective_n_per_batch" in names(Mode.DRAFT_EXTEND, 4)


def test_flashmla_leaves_exist_for_its_kernel_and_p1_only() -> None:
    flash = replace(make_dims(pool=1), kernel=Kernel.FLASHMLA_KV)
    assert "flashmla_metadata.num_splits" in fields_for(flash)
    assert "flashmla_metadata.num_splits" not in fields_for(replace(flash, pool=4))


@pytest.mark.parametrize(
    ("length", "tokens", "pages", "pooled"), [(1, 1, 1, 1), (64, 64, 1, 1), (65, 65, 2, 1), (257, 257, 5, 2)]
)
def test_live_columns_stop_at_the_length(length: int, tokens: int, pages: int, pooled: int) -> None:
    dims = make_dims(bucket=1)
    fields, inputs = fields_for(dims), make_inputs(dims, [length])
    counts = {
        name: int(live_mask(fields[name], dims, inputs).sum())  # type: ignore[union-attr]
        for name in ("page_table_1", "real_page_table", "pooled_real_page_table")
    }
    assert list(counts.values()) == [tokens, pages, pooled]


def test_verify_rows_are_live_up_to_the_last_draft_token_in_every_row() -> None:
    dims = make_dims(Mode.TARGET_VERIFY, bucket=2, draft_tokens=5)
    assert row_lengths(dims, make_inputs(dims, [10, 20])).tolist() == [15] * 5 + [25] * 5


@given(st.lists(st.integers(1, 1023), min_size=3, max_size=3), st.sampled_from(list(Mode)), st.randoms())
def test_positions_point_at_the_elements_that_canonical_took(lengths: list[int], mode: Mode, random) -> None:  # type: ignore[no-untyped-def]
    lengths = [max(length, 5) for length in lengths]
    dims = make_dims(mode, bucket=3)
    inputs = make_inputs(dims, lengths)
    values = expected(dims, inputs)
    for name, field in fields_for(dims).items():
        if field.live is Live.PLAN:
            continue
        live = canonical(field, dims, inputs, values[name])
        index = random.randrange(live.size)
        row, column = position(field, dims, inputs, index)
        grid = values[name].reshape(values[name].shape[0], -1)
        assert grid[row, column] == live[index]


def test_plans_compare_in_any_row_order_and_ignore_rows_after_the_count() -> None:
    dims = make_dims(bucket=4)
    inputs = make_inputs(dims, [600, 10, 700, 800])
    field = fields_for(dims)["topk_v2_plan"]
    one = np.array([[500, 3], [0, 600], [2, 700], [3, 800], [9, 9]], np.int32)
    other = np.array([[500, 3], [3, 800], [0, 600], [2, 700], [7, 1]], np.int32)
    wrong = np.array([[500, 3], [3, 800], [0, 600], [2, 701], [7, 1]], np.int32)
    assert np.array_equal(canonical(field, dims, inputs, one), canonical(field, dims, inputs, other))
    assert not np.array_equal(canonical(field, dims, inputs, one), canonical(field, dims, inputs, wrong))


def test_a_garbage_count_cannot_read_past_the_plan() -> None:
    dims = make_dims(bucket=4)
    field = fields_for(dims)["topk_v2_plan"]
    garbage = np.full((5, 2), 2**31 - 1, np.int32)
    inputs = make_inputs(dims, [9, 9, 9, 9])
    assert canonical(field, dims, inputs, garbage).size == 10
    negative = np.array([[60, -3], [0, 600], [2, 700], [3, 800], [9, 9]], np.int32)
    assert canonical(field, dims, inputs, negative).tolist() == [60, -3]


def test_an_unwritten_plan_has_no_defined_element() -> None:
    dims = make_dims(bucket=1)
    assert not plan_is_written(dims)
    field = fields_for(dims)["topk_v2_plan"]
    assert canonical(field, dims, make_inputs(dims, [900]), np.ones((2, 2), np.int32)).shape == (0,)


def test_init_once_fields_are_the_query_offsets() -> None:
    assert {f.name for f in FIELDS if f.role is Role.INIT_ONCE} == {"cu_seqlens_q", "dsa_cu_seqlens_q"}
    assert {f.name for f in FIELDS if f.init_once_first} == {"cu_seqlens_k", "dsa_cu_seqlens_k"}


def test_padded_rows_that_may_hold_anything_are_not_defined() -> None:
    dims = make_dims(Mode.TARGET_VERIFY, bucket=3, draft_tokens=2)
    inputs = replace(make_inputs(dims, [7, 2, 4]), live=2)
    grid = FieldSpec("grid", "int32", lambda dims: (dims.rows, 3), padding=Padding.FREE)
    mask = live_mask(grid, dims, inputs)
    assert mask is not None
    assert mask.tolist() == [[True] * 3] * 4 + [[False] * 3] * 2
    line = live_mask(replace(grid, shape=lambda dims: (dims.rows,)), dims, inputs)
    assert line is not None
    assert line.tolist() == [True] * 4 + [False] * 2
    deep = live_mask(replace(grid, shape=lambda dims: (dims.rows, 2, 2)), dims, inputs)
    assert deep is not None
    assert deep.reshape(6, 4).tolist() == [[True] * 4] * 4 + [[False] * 4] * 2
    assert live_mask(grid, dims, replace(inputs, live=3)) is None
    assert live_mask(replace(grid, padding=Padding.BUILT), dims, inputs) is None
    table = live_mask(replace(grid, live=Live.TOKENS, shape=lambda dims: (dims.rows, 8)), dims, inputs)
    assert table is not None
    assert table.sum(axis=1).tolist() == [8, 8, 4, 4, 0, 0]


def test_a_mask_is_given_what_it_depends_on() -> None:
    dims = make_dims(bucket=2)
    inputs = make_inputs(dims, [7, 2])
    field = FieldSpec("own", "int32", lambda dims: (2, 3), live=Live.MASKED)
    assert live_mask(field, dims, inputs) is None
    given = replace(
        field, mask=lambda dims, inputs: np.arange(6).reshape(2, 3) < dims.bucket * inputs.lengths[1]
    )
    mask = live_mask(given, dims, inputs)
    assert mask is not None
    assert mask.tolist() == [[True] * 3, [True, False, False]]
    assert position(given, dims, inputs, 3) == (1, 0)


def test_lengths_of_rows_are_integers() -> None:
    dims = make_dims(bucket=2)
    inputs = make_inputs(dims, [7, 2])
    assert row_lengths(dims, replace(inputs, lengths=inputs.lengths.astype(np.int32))).dtype == np.int64


@pytest.mark.parametrize(
    ("mode", "starts"), [(Mode.DECODE, [6, 8]), (Mode.TARGET_VERIFY, [7, 9]), (Mode.DRAFT_EXTEND, [2, 4])]
)
def test_where_a_forward_begins_to_write(mode: Mode, starts: list[int]) -> None:
    dims = make_dims(mode, bucket=2)
    assert write_starts(dims, make_inputs(dims, [7, 9])).tolist() == starts


def test_every_candidate_of_a_write_is_defined() -> None:
    for mode in Mode:
        dims = make_dims(mode, bucket=4, draft_tokens=6)
        field = fields_for(dims)["kpool_write_plan.write_loc"]
        mask = live_mask(field, dims, make_inputs(dims, [6, 252, 256, 1000]))
        assert mask is not None
        assert mask.shape == field.shape(dims)
        assert mask.all()
