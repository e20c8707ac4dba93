from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.fields import fields_for
from harness.oracle import expected
from harness.probe.sentinels import sentinel_for
from harness.types import Mode
from tests.helpers import make_dims, make_inputs

LENGTHS = [700, 64, 257, 5]


@pytest.mark.parametrize("pool", [1, 4])
@pytest.mark.parametrize("mode", list(Mode))
def test_no_field_expects_its_sentinel_and_salts_differ(mode: Mode, pool: int) -> None:
    dims = make_dims(mode, pool)
    inputs = make_inputs(dims, LENGTHS)
    guard = int(inputs.table.max()) // (64 * pool) + 1
    right = expected(dims, inputs)
    for name, field in fields_for(dims).items():
        values = [
            sentinel_for(field, dims, inputs, salt, expected=right[name], guard_page=guard) for salt in (0, 1)
        ]
        assert values[0] != values[1]
        assert not np.isin(values, right[name]).any()
        assert all(0 < value < 2**31 for value in values)


@pytest.mark.parametrize("pool", [1, 4])
def test_page_ids_stay_in_the_pool_and_off_the_pages_in_use(pool: int) -> None:
    dims = make_dims(pool=pool)
    inputs = make_inputs(dims, LENGTHS)
    guard = int(inputs.table.max()) // (64 * pool) + 1
    used = {
        token // (64 * pool)
        for request, length in zip(inputs.requests, inputs.lengths, strict=True)
        for token in inputs.table[request, :length].tolist()
    }
    right = expected(dims, inputs)
    units = {"page_table_1": 64 * pool, "real_page_table": pool, "pooled_real_page_table": 1}
    units["kpool_write_plan.write_loc"] = 64
    for name, field in fields_for(dims).items():
        for salt in (0, 1):
            if name in units:
                live = np.array(
                    [value for value in right[name].reshape(-1).tolist() if value // units[name] in used]
                )
                value = sentinel_for(field, dims, inputs, salt, expected=live, guard_page=guard)
                assert value // units[name] not in used
                assert value // units[name] <= guard


@given(st.lists(st.integers(5, 1000), min_size=4, max_size=4), st.integers(0, 1))
def test_lengths_are_in_range_and_of_no_request(lengths: list[int], salt: int) -> None:
    dims = make_dims()
    inputs = make_inputs(dims, lengths)
    right = expected(dims, inputs)
    fields = fields_for(dims)
    for name, top in {
        "cache_seqlens_int32": dims.width,
        "pooled_cache_seqlens_int32": dims.width // 4,
    }.items():
        value = sentinel_for(fields[name], dims, inputs, salt, expected=right[name], guard_page=99)
        assert 0 < value <= top
        assert value not in lengths


def test_a_range_that_is_used_up_is_left_upwards() -> None:
    dims = make_dims(Mode.DRAFT_EXTEND)
    inputs = make_inputs(dims, LENGTHS)
    field = fields_for(dims)["kpool_write_plan.effective_n_per_batch"]
    every = np.arange(1, dims.draft_tokens + 1)
    values = [sentinel_for(field, dims, inputs, salt, expected=every, guard_page=99) for salt in (0, 1)]
    assert values == [dims.draft_tokens + 1, dims.draft_tokens + 2]
