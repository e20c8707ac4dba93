"""The fused refresh compiled: one kernel and nothing else, right at every size in use, in a graph as well."""

from __future__ import annotations

import dataclasses
from contextlib import nullcontext

import numpy as np
import pytest
import torch

from harness.bench.meter import Activities, CudaMeter
from harness.case import PlanRule
from harness.fields import Dims, Live, fields_for
from harness.rounds import Inputs
from harness.sut.embedded.fused_refresh import FusedRefresh
from harness.sut.embedded.metadata import DSAMetadata, named_leaves
from harness.sut.embedded.precompute import DeviceInputs
from harness.sut.embedded.route import RouteLog
from harness.sut.embedded.single import BucketTools, SingleBackend
from harness.types import Kernel, Mode
from tests.helpers import make_inputs
from tests.sut.embedded.fused_support import SENTINEL, device_inputs, need_compiler, poisoned, wrong

pytestmark = pytest.mark.gpu

HOPPER = PlanRule(
    candidates=((65536, 30), (98304, 45), (131072, 60), (196608, 80), (262144, 112), (393216, 128)),
    min_rows=31,
    max_rows=512,
)
WIDTH = 131072
WIDEST = 1_048_576
LENGTHS = (1, 63, 64, 65, 257, 2049, 2047, 2048, 4095, 4096, 65539, 100001)


@pytest.fixture(scope="module", autouse=True)
def _compiler() -> None:
    need_compiler()


def cuda() -> torch.device:
    return torch.device("cuda")


def dims_of(mode: Mode, pool: int, bucket: int, width: int = WIDTH, kernel: Kernel = Kernel.FA3) -> Dims:
    return Dims(
        mode=mode, kernel=kernel, pool=pool, topk=2048, width=width, bucket=bucket, draft_tokens=6,
        num_sms=132, plan=HOPPER,
    )  # fmt: skip


def round_of(dims: Dims, seed: int) -> Inputs:
    """Return a full batch of lengths at borders and, beyond those, anywhere; requests in random order."""
    rng = np.random.default_rng(seed)
    lowest = dims.draft_tokens + dims.pool if dims.mode is Mode.DRAFT_EXTEND else 1
    lengths = rng.integers(lowest, dims.width - dims.draft_tokens, dims.bucket)
    borders = rng.permutation(LENGTHS)[: max(1, dims.bucket // 2)]
    lengths[: len(borders)] = np.maximum(borders, lowest)
    requests = (rng.permutation(dims.bucket) + 1).tolist()
    return make_inputs(dims, lengths.tolist(), requests, seed)


@pytest.mark.parametrize("bucket", [1, 4, 32])
@pytest.mark.parametrize(
    ("pool", "kernel"), [(1, Kernel.FA3), (1, Kernel.FLASHMLA_KV), (4, Kernel.FA3)], ids=["p1", "mla", "p4"]
)
@pytest.mark.parametrize("mode", list(Mode))
def test_every_leaf_is_the_oracles(mode: Mode, pool: int, kernel: Kernel, bucket: int) -> None:
    dims = dims_of(mode, pool, bucket, kernel=kernel)
    metadata = poisoned(dims, cuda())
    refresh = FusedRefresh(dims, cuda())
    for seed in (1, 2):
        inputs = round_of(dims, seed)
        refresh.refresh(metadata, device_inputs(inputs, cuda()))
        assert wrong(dims, inputs, metadata) == set(), seed


@pytest.mark.parametrize("pool", [1, 4])
def test_it_is_one_kernel_and_dead_columns_keep_their_bytes(pool: int) -> None:
    dims = dims_of(Mode.DECODE, pool, 32)
    inputs, metadata = round_of(dims, 3), poisoned(dims, cuda())
    given = device_inputs(inputs, cuda())
    refresh = FusedRefresh(dims, cuda())
    refresh.prepare(metadata, given)
    assert CudaMeter().activities(lambda: refresh.refresh(metadata, given)) == Activities(kernels=1)
    assert CudaMeter().temporary(lambda: refresh.refresh(metadata, given)) == 0
    columns = torch.arange(dims.width, device=cuda())
    dead = columns[None, :] >= given.seq_lens[:, None]
    assert bool((metadata.page_table_1[dead] == SENTINEL).all())


@pytest.mark.parametrize("mode", list(Mode))
def test_a_graph_holds_it_and_reads_what_is_staged_later(mode: Mode) -> None:
    dims = dims_of(mode, 4, 32)
    metadata = poisoned(dims, cuda())
    given = device_inputs(round_of(dims, 4), cuda())
    refresh = FusedRefresh(dims, cuda())
    refresh.prepare(metadata, given)
    replay = CudaMeter().capture(lambda: refresh.refresh(metadata, given))
    for seed in (5, 6):
        inputs = round_of(dims, seed)
        staged = device_inputs(inputs, cuda())
        for field in dataclasses.fields(given):
            getattr(given, field.name).copy_(getattr(staged, field.name))
        replay()
        assert wrong(dims, inputs, metadata) == set(), seed


@pytest.mark.parametrize(
    ("mode", "pool", "bucket"),
    [(Mode.DECODE, 4, 512), (Mode.DECODE, 1, 512), (Mode.TARGET_VERIFY, 4, 400)],
)
def test_the_widest_table_and_the_largest_batch(mode: Mode, pool: int, bucket: int) -> None:
    # Offsets: request 2100 starts 2.2e9 elements into the table, verify row 2399 2.5e9 into its own.
    dims = dims_of(mode, pool, bucket, WIDEST)
    inputs = far_inputs(dims, first=2101 - bucket)
    log = RouteLog()

    def backend(one_launch: bool) -> DSAMetadata:
        tools = BucketTools.make(dims, cuda(), fused=False, one_launch=one_launch)
        single = SingleBackend(0, lambda _: tools, lambda name, step=-1: nullcontext(), log)
        single.init_cuda_graph_state(bucket)
        single.build(bucket, dataclasses.replace(inputs, seq_lens=torch.ones_like(inputs.seq_lens) * 16))
        single.refresh_direct(bucket, inputs)
        return single.metadata[bucket]

    fused, ordinary = dict(named_leaves(backend(True))), dict(named_leaves(backend(False)))
    for name, spec in fields_for(dims).items():
        got, right = fused[name], ordinary[name]
        if spec.live is Live.PLAN:
            count = int(right[0, 1]) + 1
            got, right = (torch.tensor(sorted(one[:count].tolist())) for one in (got, right))
            assert torch.equal(got, right), name
        elif spec.live in (Live.TOKENS, Live.PAGES, Live.POOLED_PAGES):
            unit = {Live.TOKENS: 1, Live.PAGES: 64, Live.POOLED_PAGES: 64 * pool}[spec.live]
            grown = dims.draft_tokens if mode is Mode.TARGET_VERIFY else 0
            for row in range(0, dims.rows, 37):
                length = int(inputs.seq_lens[row * bucket // dims.rows]) + grown
                live = -(-length // unit)
                assert torch.equal(got[row, :live], right[row, :live]), (name, row)
        else:
            assert torch.equal(got, right), name


def far_inputs(dims: Dims, first: int) -> DeviceInputs:
    """Return requests `first`.. of a table so high that their rows start beyond 2^31 elements."""
    device, bucket = cuda(), dims.bucket
    table = torch.empty(first + bucket, dims.width, dtype=torch.int32, device=device)
    column = torch.arange(dims.width, dtype=torch.int32, device=device)
    for request in range(first, first + bucket):
        page = (column // 256 * 7919 + request * 131) % (1 << 22)
        table[request] = page * 256 + column % 256
    generator = torch.Generator(device="cpu").manual_seed(bucket)
    lengths = torch.randint(16, dims.width - dims.draft_tokens, (bucket,), generator=generator)
    lengths[::5] = torch.randint(16, 300, (len(lengths[::5]),), generator=generator)
    order = torch.randperm(bucket, generator=generator) + first
    return DeviceInputs(
        seq_lens=lengths.to(device),
        req_pool_indices=order.to(device),
        accepted=torch.full((bucket,), 3, dtype=torch.int32, device=device),
        req_to_token=table,
    )
