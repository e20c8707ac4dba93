"""On a GPU: the stand-ins against the kernels they stand in for, and the real thing behind the protocol.

First JIT builds take about a minute. Run by itself: `pytest -m gpu tests/sut/sglang`.
"""

import numpy as np
import pytest
import torch

from harness.fields import Dims, canonical, fields_for
from harness.probe.leaves import leaf_tensors, walk_roots
from harness.probe.ledger import Ledger
from harness.probe.observers import watched_leaves
from harness.probe.regions import Regions
from harness.sut.deepgemm import paged_mqa_schedule
from harness.sut.sglang.standins import CopyModule, TopkModule, counter_bytes
from harness.sut.sglang.sut import SglangSut
from harness.types import EngineKind, Path

from .support import HOPPER, Gpu, batch, build, case, loaded, wrong_leaves

pytestmark = [pytest.mark.gpu, pytest.mark.sglang]

CUDA = torch.device("cuda")


@pytest.fixture(scope="module", autouse=True)
def _real() -> None:
    loaded(CUDA)


def int32(values: object) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


@pytest.mark.parametrize("rows", [1, 2, 4, 31, 32, 33, 64, 257])
@pytest.mark.parametrize("longest", [1, 300, 5000, 131072])
def test_schedule_is_deep_gemms(rows: int, longest: int) -> None:
    import deep_gemm

    workers = deep_gemm.get_num_sms()
    for seed in range(4):
        lengths = int32(np.random.default_rng(seed).integers(1, longest + 1, (rows, 1)))
        real = deep_gemm.get_paged_mqa_logits_metadata(lengths.to(CUDA), 64, workers)
        assert torch.equal(paged_mqa_schedule(lengths, 64, workers), real.cpu())


@pytest.mark.parametrize("rows", [1, 8, 30, 31, 32, 64, 200, 512, 513])
def test_plan_is_topk_v2s(rows: int) -> None:
    module = loaded(CUDA).seams.topk._jit_topk_v2_module()
    for seed, longest in enumerate((1000, 66000, 140000, 500000)):
        lengths = int32(np.random.default_rng(seed).integers(0, longest, rows))
        real = torch.full((rows + 1, 2), -9, dtype=torch.int32, device=CUDA)
        module.topk_plan(lengths.to(CUDA), real, -1)
        ours = torch.full((rows + 1, 2), -9, dtype=torch.int32)
        TopkModule(HOPPER).topk_plan(lengths, ours, -1)
        got, right = real.cpu().numpy(), ours.numpy()
        assert got[0].tolist() == right[0].tolist()
        count = max(int(right[0, 1]), 0)
        assert sorted(got[1 : count + 1].tolist()) == right[1 : count + 1].tolist()
        assert (got[count + 1 :] == -9).all()


Tensors = list[torch.Tensor | None]


def _tensors(rows: int, width: int, seed: int | None, *, tiles: bool) -> Tensors:
    """Lengths, offsets, table, sparse lengths, expanded, sparse offsets, pages, splits and tiles."""
    table, pages, offsets = (rows, width), (rows, width // 64), (rows + 1,)
    shapes = [(rows,), offsets, table, (rows,), (rows,), offsets, pages, offsets, (132, 8)]
    if seed is None:
        filled: Tensors = [torch.full(shape, -1, dtype=torch.int32) for shape in shapes]
    else:
        random = np.random.default_rng(seed)
        filled = [int32(random.integers(0, 1 << 20, shape)) for shape in shapes]
    return filled if tiles else [*filled[:7], None, None]


def _on_gpu(tensors: Tensors) -> Tensors:
    return [tensor.to(CUDA) if tensor is not None else None for tensor in tensors]


@pytest.mark.parametrize("tiles", [False, True])
@pytest.mark.parametrize("mode", [0, 1])
def test_single_copy_is_the_jit_kernels(mode: int, tiles: bool) -> None:
    copies = loaded(CUDA).seams.copies
    module = copies._jit_fused_metadata_copy_module(mode, True, tiles)
    bs, rows, width = 3, 3 if mode == 0 else 18, 512
    source = _tensors(rows, width, 1, tiles=tiles)
    ours, real = (_tensors(rows, width, None, tiles=tiles) for _ in range(2))
    sizes = (bs, width if mode == 0 else -1, width, rows)
    CopyModule(mode).fused_metadata_copy(*source, *ours, *sizes)
    on_gpu = _on_gpu(real)
    module.fused_metadata_copy(*_on_gpu(source), *on_gpu, *sizes)
    _assert_equal(ours, on_gpu)


@pytest.mark.parametrize("tiles", [False, True])
def test_multi_copy_is_the_jit_kernels(tiles: bool) -> None:
    copies = loaded(CUDA).seams.copies
    module = copies._jit_fused_metadata_copy_multi_module(True, tiles)
    bs, width = 5, 512

    def eight(seed: int | None) -> Tensors:
        tensors = _tensors(bs, width, seed, tiles=tiles)
        return tensors[:4] + tensors[5:]

    source = eight(2)
    ours = eight(None) + eight(None) + eight(None)
    on_gpu = _on_gpu(eight(None) + eight(None) + eight(None))
    CopyModule().fused_metadata_copy_multi(*source, *ours, bs, width, bs)
    module.fused_metadata_copy_multi(*_on_gpu(source), *on_gpu, bs, width, bs)
    _assert_equal(ours, on_gpu)


def _assert_equal(ours: Tensors, real: Tensors) -> None:
    for index, (one, other) in enumerate(zip(ours, real, strict=True)):
        if one is not None and other is not None:
            assert torch.equal(one, other.cpu()), index


@pytest.mark.parametrize(("pool", "fusion"), [(1, False), (4, False), (4, True)])
@pytest.mark.parametrize("path", [Path.RELEASED, Path.SHARED])
@pytest.mark.parametrize("bucket", [4, 32])
def test_real_refreshes_are_stale_exactly_where_declared(
    pool: int, fusion: bool, path: Path, bucket: int
) -> None:
    of = case(pool, path, fusion=fusion, bucket=bucket, engine=EngineKind.CUDA_GRAPH)
    sut = build(of)
    inputs = batch(of, 1, live=bucket - 1)
    sut.stage(inputs)
    sut.refresh(bucket)
    stale: dict[str, set[int]] = {}
    if path is Path.RELEASED and not fusion:
        stale["paged_mqa_schedule_metadata"] = {0, 1, 2}
        if bucket == 32:
            stale["topk_v2_plan"] = {0, 1, 2}
    assert wrong_leaves(sut, of, inputs) == stale
    assert sut.route() == sut.expectation(bucket).route


@pytest.mark.parametrize(
    ("pool", "path", "fusion"), [(1, Path.RELEASED, False), (4, Path.RELEASED, True), (4, Path.SHARED, True)]
)
def test_declared_launches_make_the_declared_ledger(pool: int, path: Path, fusion: bool) -> None:
    of = case(pool, path, fusion=fusion, bucket=32, engine=EngineKind.CUDA_GRAPH)
    regions = Regions()
    ledger = Ledger(regions)
    sut = SglangSut(of, Gpu(), ledger.span, (32,), loaded(CUDA))  # type: ignore[arg-type]
    sut.init_graph_state()
    sut.stage(batch(of, 0))
    sut.prepare_capture(32)
    sut.stage(batch(of, 1))
    leaves = watched_leaves(walk_roots(sut.roots(), regions), 32)
    with ledger:
        sut.refresh(32)
    got = {(entry.step, entry.name): entry.writes for entry in ledger.entries(leaves)}
    assert got == {(entry.step, entry.name): entry.writes for entry in sut.expectation(32).writes}


@pytest.mark.parametrize(("pool", "fusion"), [(1, False), (4, True)])
def test_a_refresh_inside_a_cuda_graph_follows_the_staged_round(pool: int, fusion: bool) -> None:
    of = case(pool, Path.SHARED_IN_GRAPH, fusion=fusion, bucket=32, engine=EngineKind.CUDA_GRAPH)
    sut = build(of)
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    with torch.cuda.stream(stream):
        sut.forward(32)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        outputs = sut.forward(32)
    inputs = batch(of, 1)
    sut.stage(inputs)
    graph.replay()
    torch.cuda.synchronize()
    assert wrong_leaves(sut, of, inputs) == {}
    dims = Dims.of(of, 32)
    for root, step in zip(sut.roots(), outputs, strict=True):
        for name, leaf in leaf_tensors(root.metadata[32]).items():
            read, held = (
                canonical(fields_for(dims)[name], dims, inputs, tensor.cpu().numpy())
                for tensor in (step.read[name], leaf)
            )
            assert np.array_equal(read, held), name


def test_kv_counters_take_the_size_rule_of_the_stand_in() -> None:
    utils = pytest.importorskip("flashinfer.utils", reason="the KV counter's real size rule is FlashInfer's")
    for rows in (1, 8192, 16384):
        size = utils.get_trtllm_gen_multi_ctas_kv_counter_bytes(rows, 64, 132)
        assert size == counter_bytes(rows, 64, 132)
