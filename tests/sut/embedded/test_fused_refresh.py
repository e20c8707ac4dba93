"""The fused refresh in Triton's interpreter: every leaf is the oracle's, however the launch is cut up."""

from __future__ import annotations

import dataclasses
import mmap
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.case import PlanRule
from harness.errors import HarnessError
from harness.fields import Dims, Live, fields_for, live_mask, plan_is_written
from harness.rounds import Inputs
from harness.sut.embedded.fused_plan import Tiling
from harness.sut.embedded.fused_refresh import FusedRefresh
from harness.sut.embedded.metadata import DSAMetadata, named_leaves
from harness.types import Kernel, Mode
from tests.helpers import make_dims, make_inputs
from tests.sut.embedded.fused_support import (
    CPU,
    SENTINEL,
    device_inputs,
    need_interpreter,
    poisoned,
    wrong,
)


@pytest.fixture(scope="module", autouse=True)
def _interpreter() -> None:
    need_interpreter()


@st.composite
def rounds(draw: st.DrawFn) -> tuple[Dims, Inputs, Tiling]:
    mode = draw(st.sampled_from(list(Mode)))
    pool = draw(st.sampled_from([1, 2, 4]))
    width = 64 * pool * draw(st.integers(1, 512 // (64 * pool)))
    dims = make_dims(mode, pool, draw(st.integers(1, 4)), draw(st.integers(1, 3)), width)
    kernels = [Kernel.FA3, Kernel.FLASHMLA_KV] if pool == 1 else [Kernel.TRTLLM]
    thresholds = sorted(draw(st.lists(st.integers(1, width), min_size=1, max_size=4, unique=True)))
    caps = draw(st.lists(st.integers(0, 4), min_size=len(thresholds), max_size=len(thresholds)))
    dims = dataclasses.replace(
        dims,
        kernel=draw(st.sampled_from(kernels)),
        topk=pool * draw(st.integers(1, width // pool)),
        num_sms=draw(st.integers(1, 9)),
        plan=PlanRule(candidates=tuple(zip(thresholds, caps, strict=True)), min_rows=2, max_rows=64),
    )
    longest = width - (dims.draft_tokens if mode is Mode.TARGET_VERIFY else 0)
    lengths = st.one_of(st.integers(1, 5), st.integers(1, longest))
    given_lengths = draw(st.lists(lengths, min_size=dims.bucket, max_size=dims.bucket))
    requests = list(draw(st.permutations(range(1, dims.bucket + 1))))
    inputs = make_inputs(dims, given_lengths, requests, draw(st.integers(0, 99)))
    accepted = draw(st.lists(st.integers(1, 3), min_size=dims.bucket, max_size=dims.bucket))
    inputs = dataclasses.replace(inputs, accepted=np.array(accepted, np.int32))
    tiling = Tiling(
        block=draw(st.sampled_from([2, 16])),
        chunk=draw(st.sampled_from([2, 16])),
        workers=draw(st.sampled_from([4, 16])),
        tile=draw(st.sampled_from([128, 512])),
        shares=draw(st.integers(1, 2)),
    )
    return dims, inputs, tiling


@given(sample=rounds())
@settings(max_examples=10, deadline=None)
def test_every_leaf_is_the_oracles_and_nothing_else_is_written(sample: tuple[Dims, Inputs, Tiling]) -> None:
    dims, inputs, tiling = sample
    metadata, given_inputs = poisoned(dims), device_inputs(inputs)
    FusedRefresh(dims, CPU, tiling).refresh(metadata, given_inputs)
    assert wrong(dims, inputs, metadata) == set()
    assert_dead_untouched(dims, inputs, metadata)
    again = device_inputs(inputs)
    for field in dataclasses.fields(given_inputs):
        assert torch.equal(getattr(given_inputs, field.name), getattr(again, field.name)), field.name


def assert_dead_untouched(dims: Dims, inputs: Inputs, metadata: DSAMetadata) -> None:
    """Columns past a row's length, plan rows past the count, and whole plans that are not written."""
    fields = fields_for(dims)
    for name, leaf in named_leaves(metadata):
        mask = live_mask(fields[name], dims, inputs)
        if fields[name].live is Live.PLAN:
            rows = int(leaf[0, 1]) + 1 if plan_is_written(dims) else 0
            assert bool((leaf[rows:] == SENTINEL).all()), name
        elif mask is not None and fields[name].live is not Live.CANDIDATES:
            assert bool((leaf[torch.from_numpy(~mask)] == SENTINEL).all()), name


BORDERS = [63, 64, 65, 255, 256, 257, 1023, 1024]


@pytest.mark.parametrize("pool", [1, 4])
@pytest.mark.parametrize("mode", list(Mode))
def test_lengths_at_the_borders(mode: Mode, pool: int) -> None:
    dims = make_dims(mode, pool, len(BORDERS), 3, 2048)
    longer = dims.draft_tokens if mode is Mode.TARGET_VERIFY else 0  # tables are live up to the borders
    inputs = make_inputs(dims, [length - longer for length in BORDERS], [3, 1, 8, 2, 5, 4, 7, 6])
    metadata = poisoned(dims)
    tiling = dataclasses.replace(Tiling.interpreted(dims), tile=64, shares=2)
    FusedRefresh(dims, CPU, tiling).refresh(metadata, device_inputs(inputs))
    assert wrong(dims, inputs, metadata) == set()
    assert_dead_untouched(dims, inputs, metadata)


MANY = [1, 2, 700, 3, 130, 4, 5]
"""Lengths of seven requests, some shorter than the tokens that a draft extension writes."""


@pytest.mark.parametrize(
    ("mode", "pool", "kernel"),
    [
        (Mode.DECODE, 4, Kernel.FA3),
        (Mode.DECODE, 1, Kernel.FLASHMLA_KV),
        (Mode.TARGET_VERIFY, 4, Kernel.FA3),
        (Mode.DRAFT_EXTEND, 4, Kernel.FA3),
    ],
)
def test_jobs_carry_over_many_blocks(mode: Mode, pool: int, kernel: Kernel) -> None:
    rule = PlanRule(candidates=((0, 3), (1, 30)), min_rows=2, max_rows=64)
    dims = dataclasses.replace(make_dims(mode, pool, len(MANY), 3), kernel=kernel, plan=rule)
    inputs = make_inputs(dims, MANY)
    metadata = poisoned(dims)
    several = 2 if mode is Mode.DECODE else 8  # three blocks at least: two would not need what is carried
    tiling = Tiling(block=several, chunk=several, workers=8, tile=128, shares=3)
    FusedRefresh(dims, CPU, tiling).refresh(metadata, device_inputs(inputs))
    assert wrong(dims, inputs, metadata) == set()


def test_workers_without_tiles_end_at_the_last_row() -> None:
    dims = dataclasses.replace(make_dims(pool=1, bucket=3), kernel=Kernel.FLASHMLA_KV)
    inputs, metadata = make_inputs(dims, [1, 1, 1]), poisoned(dims)
    FusedRefresh(dims, CPU).refresh(metadata, device_inputs(inputs))
    assert wrong(dims, inputs, metadata) == set()
    assert metadata.flashmla_metadata is not None
    assert int(metadata.flashmla_metadata.flashmla_metadata[-1, 0]) == 2


def test_a_second_round_overwrites_the_first_and_other_metadata_is_left_alone() -> None:
    dims = make_dims(pool=4)
    first, second = (
        make_inputs(dims, lengths, seed=seed) for seed, lengths in enumerate(([900] * 4, [70] * 4))
    )
    refresh, metadata, other = FusedRefresh(dims, CPU), poisoned(dims), poisoned(dims)
    refresh.prepare(other, device_inputs(first))
    refresh.refresh(metadata, device_inputs(first))
    refresh.refresh(metadata, device_inputs(second))
    assert wrong(dims, second, metadata) == set()
    assert bool((other.page_table_1 == SENTINEL).all())


STRIDE = 1 << 27
"""Elements between rows: the sixteenth row starts 2^31 elements into its buffer."""


def apart(rows: int, columns: int) -> torch.Tensor:
    """Return int32 `[rows, columns]`, rows `STRIDE` apart in memory that costs nothing until touched."""
    size = (rows * STRIDE) * 4
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0x4000)
    memory = torch.frombuffer(mmap.mmap(-1, size, flags=flags), dtype=torch.int32)
    return memory.as_strided((rows, columns), (STRIDE, 1))


@pytest.mark.parametrize(
    ("mode", "pool"), [(Mode.DECODE, 4), (Mode.TARGET_VERIFY, 4), (Mode.DRAFT_EXTEND, 1)]
)
def test_rows_far_apart_do_not_overflow(mode: Mode, pool: int) -> None:
    bucket = 18 if mode is Mode.DECODE else 6
    dims = make_dims(mode, pool, bucket, 3, 256)
    inputs = make_inputs(dims, [20 + 10 * index for index in range(bucket)], list(range(bucket, 0, -1)))
    table = apart(bucket + 1, dims.width)
    table.copy_(torch.from_numpy(inputs.table))
    metadata = poisoned(dims)
    names = [name for name in ("page_table_1", "real_page_table", "pooled_real_page_table")
             if getattr(metadata, name) is not None]  # fmt: skip
    far: dict[str, Any] = {
        name: apart(*getattr(metadata, name).shape).copy_(getattr(metadata, name)) for name in names
    }
    metadata = dataclasses.replace(metadata, **far)
    given_inputs = dataclasses.replace(device_inputs(inputs), req_to_token=table)
    FusedRefresh(dims, CPU).refresh(metadata, given_inputs)
    assert wrong(dims, inputs, metadata) == set()


def test_a_buffer_with_holes_is_refused() -> None:
    dims = make_dims(pool=1)
    metadata = poisoned(dims)
    holes = torch.zeros(2 * dims.bucket, dtype=torch.int32)[::2]
    metadata = dataclasses.replace(metadata, dsa_cache_seqlens_int32=holes)
    with pytest.raises(HarnessError, match=r"sparse of shape \(4,\) has stride \(2,\)"):
        FusedRefresh(dims, CPU).prepare(metadata, device_inputs(make_inputs(dims, [5, 6, 7, 8])))
