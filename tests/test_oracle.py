"""The oracle against second, slower readings of the specification, and against figures of its own."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.case import PlanRule
from harness.fields import Dims, FieldSpec, Live, canonical, fields_for
from harness.oracle import expected, offsets, plan_threshold, schedule, sparse_lengths, topk_plan
from harness.rounds import Inputs
from harness.specification import Specification
from harness.types import Mode
from tests.helpers import make_dims, make_inputs

LENGTHS = st.lists(st.integers(0, 5000), min_size=1, max_size=40)


def dealt(lengths: list[int], workers: int) -> list[tuple[int, int]]:
    """Deal the segments one by one: what each worker's first segment is, and where the list ends."""
    segments = [(row, part) for row, length in enumerate(lengths) for part in range(-(-length // 256))]
    each, rest = divmod(len(segments), workers)
    starts, position = [], 0
    for worker in range(workers):
        starts.append(segments[position] if position < len(segments) else (len(lengths), 0))
        position += each + (1 if worker >= workers - rest else 0)
    return [*starts, (len(lengths), 0)]


@given(LENGTHS, st.integers(1, 24))
def test_schedule_equals_dealing_segments_one_by_one(lengths: list[int], workers: int) -> None:
    got = schedule(np.array(lengths, np.int64), workers)
    assert [tuple(row) for row in got.tolist()] == dealt(lengths, workers)


def test_schedule_changes_when_one_row_crosses_a_segment() -> None:
    before = schedule(np.array([256, 256]), 4)
    after = schedule(np.array([257, 256]), 4)
    assert not np.array_equal(before, after)
    assert before.tolist() == [[0, 0], [0, 0], [0, 0], [1, 0], [2, 0]]


@given(LENGTHS)
def test_plan_lists_exactly_the_rows_above_its_threshold(lengths: list[int]) -> None:
    rule = PlanRule(candidates=((100, 1), (1000, 3), (2000, 6)), min_rows=1, max_rows=99)
    values = np.array(lengths, np.int64)
    plan = topk_plan(values, rule)
    threshold, count = plan[0].tolist()
    assert threshold == plan_threshold(values, rule)
    assert {tuple(row) for row in plan[1 : count + 1].tolist()} == {
        (row, length) for row, length in enumerate(lengths) if length > threshold
    }
    fitting = [t for t, most in rule.candidates if sum(x > t for x in lengths) <= most]
    assert threshold == (fitting[0] if fitting else 2000)


@given(st.integers(0, 100_000), st.sampled_from([1, 2, 4, 8]), st.sampled_from([64, 512, 2048]))
def test_sparse_length_counts_whole_pools_and_the_tail(length: int, pool: int, topk: int) -> None:
    got = int(sparse_lengths(np.array([length]), pool, topk)[0])
    pools = min(length // pool, topk // pool)
    assert got == (min(length, topk) if pool == 1 else pools * pool + length % pool)


@pytest.mark.parametrize(("length", "pooled"), [(1023, 255), (1024, 256), (1028, 257), (3, 0), (4, 1)])
def test_pooled_lengths_round_down(length: int, pooled: int) -> None:
    dims = make_dims(bucket=1, width=2048)
    values = expected(dims, make_inputs(dims, [length]))
    assert values["pooled_cache_seqlens_int32"].tolist() == [pooled]


def test_offsets_start_at_zero() -> None:
    assert offsets(np.array([3, 4, 5])).tolist() == [0, 3, 7, 12]
    assert offsets(np.array([3])).dtype == np.int64


def test_schedules_and_plans_are_integers() -> None:
    rule = PlanRule(candidates=((60, 1),), min_rows=1, max_rows=9)
    assert schedule(np.array([256, 257]), 2).dtype == topk_plan(np.array([60, 61]), rule).dtype == np.int64


def test_a_row_exactly_at_the_threshold_is_not_above_it() -> None:
    rule = PlanRule(candidates=((60, 1), (150, 2)), min_rows=1, max_rows=9)
    assert topk_plan(np.array([60, 61, 60]), rule).tolist() == [[60, 1], [1, 61], [0, 0], [0, 0]]
    assert topk_plan(np.array([61, 61, 150]), rule).tolist() == [[150, 0], [0, 0], [0, 0], [0, 0]]


def test_a_schedule_of_no_rows_has_every_worker_at_the_start() -> None:
    assert schedule(np.array([], np.int64), 3).tolist() == [[0, 0]] * 4


def naive_decode(dims: Dims, inputs: Inputs) -> dict[str, object]:
    """Read the decode column of the table of fields element by element."""
    table, pool = inputs.table, dims.pool
    real, loc = [], []
    for length, request in zip(inputs.lengths, inputs.requests, strict=True):
        row = [int(table[request, k * 64]) // 64 for k in range(dims.width // 64)]
        real.append(row)
        pool_id = (int(length) - 1) // pool
        loc.append([row[pool_id // 64 * pool] // pool * 64 + pool_id % 64])
    return {
        "real_page_table": real,
        "pooled_real_page_table": [[row[k * pool] // pool for k in range(len(row) // pool)] for row in real],
        "kpool_write_plan.write_loc": loc,
        "kpool_write_plan.tail_logical_start": [(int(x) - 1) // pool * pool for x in inputs.lengths],
    }


@given(st.lists(st.integers(1, 1023), min_size=4, max_size=4), st.integers(0, 5))
def test_decode_tables_and_write_plan_element_by_element(lengths: list[int], seed: int) -> None:
    dims = make_dims()
    inputs = make_inputs(dims, lengths, [3, 1, 4, 2], seed)
    got = expected(dims, inputs)
    for name, value in naive_decode(dims, inputs).items():
        assert got[name].tolist() == value, name


def test_verify_and_extend_rows() -> None:
    verify = make_dims(Mode.TARGET_VERIFY, bucket=2, draft_tokens=3)
    values = expected(verify, make_inputs(verify, [10, 70]))
    assert values["cache_seqlens_int32"].tolist() == [13, 73]
    assert values["dsa_seqlens_expanded"].tolist() == [11, 12, 13, 71, 72, 73]
    assert values["kpool_write_plan.write_start"].tolist() == [10, 70]
    assert "pooled_cache_seqlens_int32" not in values
    extend = make_dims(Mode.DRAFT_EXTEND, pool=1, bucket=2, draft_tokens=6)
    padded = expected(extend, make_inputs(extend, [1, 70]))
    # A padded row of length 1 sees nothing in its first rows: never a negative length.
    assert padded["dsa_seqlens_expanded"].tolist() == [0, 0, 0, 0, 0, 1, 65, 66, 67, 68, 69, 70]
    assert padded["cache_seqlens_int32"].tolist() == [1, 70]


def naive(dims: Dims, inputs: Inputs) -> dict[str, object]:
    """Read the whole table of fields element by element, in every mode."""
    mode, tokens, pool = dims.mode, dims.draft_tokens, dims.pool
    each = 1 if mode is Mode.DECODE else tokens
    base = [int(x) + (tokens if mode is Mode.TARGET_VERIFY else 0) for x in inputs.lengths]
    before = {Mode.DECODE: -1, Mode.TARGET_VERIFY: 0, Mode.DRAFT_EXTEND: -tokens}[mode]
    start = [int(x) + before for x in inputs.lengths]
    visible = [max(first + t + 1, 0) for first in start for t in range(each)]
    table = [[int(x) for x in inputs.table[request]] for request in inputs.requests for _ in range(each)]
    real = [[row[k * 64] // 64 for k in range(dims.width // 64)] for row in table]
    sparse = [
        min(x, dims.topk) if pool == 1 else min(x // pool * pool, dims.topk) + x % pool for x in visible
    ]
    pooled = [x // pool for x in visible]

    def slot(row: int, candidate: int) -> int:
        """Where a pool that begins at this candidate is written; beyond the table the last page stands in."""
        where = start[row] // pool + candidate
        column = min(max(where // 64 * pool, 0), len(real[0]) - 1)
        return real[row * each][column] // pool * 64 + where % 64

    def sums(values: list[int]) -> list[int]:
        return [sum(values[:n]) for n in range(len(values) + 1)]

    def planned(values: list[int]) -> list[list[int]]:
        fits = [t for t, most in dims.plan.candidates if sum(x > t for x in values) <= most]
        threshold = fits[0] if fits else dims.plan.candidates[-1][0]
        rows = [[row, x] for row, x in enumerate(values) if x > threshold]
        return [[threshold, len(rows)], *rows, *[[0, 0]] * (len(values) - len(rows))]

    def dealt_to(values: list[int]) -> list[list[int]]:
        return [list(pair) for pair in dealt(values, dims.num_sms)]

    plan = planned(pooled)
    pooled_schedule = dealt_to([max(x, 1) for x in pooled])
    found = {
        "cache_seqlens_int32": base,
        "cu_seqlens_q": list(range(len(visible) + 1)),
        "dsa_cu_seqlens_q": list(range(len(visible) + 1)),
        "cu_seqlens_k": sums(base),
        "page_table_1": table,
        "real_page_table": real,
        "dsa_cache_seqlens_int32": sparse,
        "dsa_cu_seqlens_k": sums(sparse),
        "dsa_seqlens_expanded": visible,
        "paged_mqa_ctx_lens_2d": [[x] for x in visible],
        "paged_mqa_schedule_metadata": dealt_to(visible),
        "topk_v2_plan": planned(visible),
        "pooled_cache_seqlens_int32": pooled,
        "pooled_real_page_table": [[row[k] // pool for k in range(0, len(row), pool)] for row in real],
        "pooled_paged_mqa_schedule_metadata": pooled_schedule,
        "pooled_topk_v2_plan": plan,
        "kpool_write_plan.req": [int(x) for x in inputs.requests],
        "kpool_write_plan.write_start": start,
        "kpool_write_plan.tail_logical_start": [x // pool * pool for x in start],
        "kpool_write_plan.write_loc": [
            [slot(i, c) for c in range(-(-each // pool))] for i in range(len(start))
        ],
        "kpool_write_plan.seqlens_per_q": visible,
        "kpool_write_plan.pool_seqlens_per_q": pooled,
        "kpool_write_plan.pool_schedule_metadata": pooled_schedule,
        "kpool_write_plan.pool_topk_v2_plan": plan,
        "kpool_write_plan.effective_n_per_batch": [int(x) for x in inputs.accepted],
    }
    return {name: found[name] for name in fields_for(dims)}


@pytest.mark.parametrize(
    "lengths", [(9, 70, 333, 1000), (6, 64, 257, 5), (1023, 1023, 900, 5), (5, 5, 5, 5), (60, 150, 400, 61)]
)
@pytest.mark.parametrize("pool", [1, 4])
@pytest.mark.parametrize("mode", list(Mode))
def test_every_field_element_by_element(mode: Mode, pool: int, lengths: tuple[int, ...]) -> None:
    dims = make_dims(mode, pool)
    inputs = make_inputs(dims, list(lengths), [3, 1, 4, 2])
    got = expected(dims, inputs)
    for name, value in naive(dims, inputs).items():
        assert got[name].tolist() == value, name


def test_fields_of_an_own_specification_get_their_dtype_and_shape() -> None:
    own = Specification(
        fields=(
            FieldSpec("grid", "int16", lambda dims: (dims.bucket, 2)),
            FieldSpec("planned", "int32", lambda dims: (3,), live=Live.ELSEWHERE),
        ),
        expected=lambda dims, inputs: {"grid": list(range(2 * dims.bucket))},  # type: ignore[dict-item]
    )
    dims = replace(make_dims(), own=own)
    values = expected(dims, make_inputs(dims, [7, 5, 3, 2]))
    assert values.keys() == {"grid"}
    assert values["grid"].dtype == np.int16
    assert values["grid"].tolist() == [[0, 1], [2, 3], [4, 5], [6, 7]]


@pytest.mark.parametrize("mode", list(Mode))
@pytest.mark.parametrize("pool", [1, 4])
def test_every_field_has_its_dtype_and_shape(mode: Mode, pool: int) -> None:
    dims = make_dims(mode, pool)
    inputs = make_inputs(dims, [9, 70, 333, 1000])
    values = expected(dims, inputs)
    fields = fields_for(dims)
    assert values.keys() == fields.keys()
    for name, value in values.items():
        assert str(value.dtype) == fields[name].dtype
        assert value.shape == fields[name].shape(dims)
        assert canonical(fields[name], dims, inputs, value).ndim == 1
