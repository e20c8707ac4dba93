"""On a GPU: real graphs of every path compute what the CPU computes, at both ends of the geometry."""

from __future__ import annotations

from functools import partial

import msgspec
import pytest
import torch

from harness.case import Case, Geometry
from harness.engine.cuda_graph import CudaGraphEngine
from harness.engine.tape import TapeEngine
from harness.fields import Dims
from harness.sut.embedded.generation import generate
from harness.sut.embedded.metadata import named_leaves
from harness.sut.embedded.sut import make_sut
from harness.types import Kernel, Mode, Path, Precision
from tests.helpers import PLAN, make_case, tiny_model
from tests.sut.embedded.support import (
    PATHS,
    eager_results,
    known_stale,
    no_span,
    random_inputs,
    reference_values,
    replayed,
    wrong_leaves,
)

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("mode", list(Mode))
@pytest.mark.parametrize(
    ("pool", "fusion", "kernel"),
    [
        (1, False, Kernel.TRTLLM),
        (1, False, Kernel.FLASHMLA_KV),
        (4, False, Kernel.FA3),
        (4, True, Kernel.TRTLLM),
    ],
)
def test_graphs_compute_what_the_cpu_computes(mode: Mode, pool: int, fusion: bool, kernel: Kernel) -> None:
    def case(path: Path) -> Case:
        return make_case(tiny_model(pool), path=path, fusion=fusion, mode=mode, kernel=kernel, steps=5)

    right = eager_results(case(Path.INDEPENDENT))
    first = None
    for path in PATHS:
        results = replayed(case(path), CudaGraphEngine())
        for one, other in zip(results, right, strict=True):
            for name in ("selected", "draft_token", "out_of_range"):
                assert torch.equal(one[name], other[name]), (path, name)
            torch.testing.assert_close(one["attention"], other["attention"], rtol=1e-4, atol=1e-5)
        if first is None:
            first = results
        assert all(torch.equal(a["attention"], b["attention"]) for a, b in zip(first, results, strict=True))


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("pool", [1, 4])
def test_generation_is_the_cpus(path: Path, pool: int) -> None:
    case = make_case(tiny_model(pool), path=path, fusion=True, steps=4)
    assert generate(case, CudaGraphEngine(), 16) == generate(case, TapeEngine(), 16)


def wide(pool: int, mode: Mode, path: Path, precision: Precision) -> Case:
    """Return a case of bucket 32 at the width of a 128k context."""
    model = tiny_model(pool)
    geometry = Geometry(width=131072, requests=48, topk=2048, num_sms=132, plan=PLAN)
    model = msgspec.structs.replace(
        model, buckets=(32,), geometries={"tape": geometry, "cuda_graph": geometry}
    )
    return make_case(
        model, path=path, mode=mode, bucket=32, steps=5, kernel=Kernel.TRTLLM, precision=precision
    )


@pytest.mark.parametrize("mode", list(Mode))
@pytest.mark.parametrize(
    ("pool", "path"), [(1, Path.SHARED), (4, Path.SHARED_IN_GRAPH), (1, Path.INDEPENDENT)]
)
def test_a_full_width_fits_and_is_right(pool: int, mode: Mode, path: Path) -> None:
    case = wide(pool, mode, path, Precision.BF16)
    torch.cuda.reset_peak_memory_stats()
    engine = CudaGraphEngine()
    sut = make_sut(case, engine, no_span)
    sut.init_graph_state()
    sut.stage(random_inputs(case, 32, 32, 0))
    sut.prepare_capture(32)
    graph, outputs = engine.capture(partial(sut.forward, 32))
    inputs = random_inputs(case, 32, 29, 1)
    sut.stage(inputs)
    sut.refresh(32)
    engine.launch(graph)
    engine.synchronize()
    right = reference_values(case, inputs, sut)
    for step, root in enumerate(sut.roots()):
        leaves = dict(named_leaves(root.metadata[32]))
        assert wrong_leaves(case, inputs, leaves, right) == known_stale(case, step, Dims.of(case, 32))
        assert outputs[step].computed["out_of_range"].item() == 0
    assert torch.cuda.max_memory_allocated() < 12 << 30
