"""The child of `effect`: real kernels in CUDA graphs, on the metadata of SGLang's draft steps.

`python -m harness.sut.sglang.measured ORDER PIPE`; ORDER is JSON. Each draft step's kernel is captured
reading that step's own tables, lengths and schedule (or plan), and a twin reading a schedule made afresh
after the refresh. The twin is replayed first: what the step's own graph does differently is the effect.
Nothing is poisoned.
"""

from __future__ import annotations

import importlib
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec
import numpy as np
import torch

from harness import locate
from harness.case import PHYSICAL_PAGE, Case
from harness.casefile import load_models
from harness.child import Reporter
from harness.engine.cuda_graph import CudaGraphEngine
from harness.engine.protocol import Engine, Graph
from harness.pages import PagePool, pool_pages
from harness.probe.leaves import leaf_tensors
from harness.rounds import Inputs, expand_table
from harness.sut.sglang import cuda
from harness.sut.sglang.loader import Loaded, load
from harness.sut.sglang.scenarios import DERIVED, Kernel, Order, Scenario, stage
from harness.sut.sglang.sut import SglangSut
from harness.types import Drill, EngineKind, Mode

MODEL = "glm-5.3"
"""P = 1: its draft steps read the schedule that the multi-destination copy forgets."""
HEAD_DIM = 128
START_S = 240.0
"""Import and first JIT builds."""
SAMPLES = 20
SPIN_CYCLES = 4_000_000
"""Clock cycles, some 2 ms: all launches of a sample are queued before the first of them runs."""

Leaves = Mapping[str, torch.Tensor]


class Bench(Protocol):
    """A kernel that reads a derived field, and an engine that captures it."""

    engine: Engine

    def fresh(self, leaves: Leaves) -> torch.Tensor:
        """Derive the field anew from a step's lengths."""
        ...

    def same_derived(self, one: torch.Tensor, other: torch.Tensor) -> bool:
        """Compare two values of the field, the second of them fresh."""
        ...

    def run(self, leaves: Leaves, derived: torch.Tensor) -> torch.Tensor:
        """Launch the kernel on a step's leaves."""
        ...

    def compare(self, leaves: Leaves, got: torch.Tensor, right: torch.Tensor) -> tuple[int, int]:
        """Return how many defined elements of two outputs differ, and how many there are."""
        ...

    def microseconds(self, graph: Graph) -> float:
        """Return the median device time of one replay."""
        ...


@dataclass(frozen=True)
class _Captured:
    graph: Graph
    output: torch.Tensor


def measure(order: Order, limit_s: float, say: Reporter) -> None:
    """Report the software, then each step's result; before each replay say which one begins."""
    say.begin("import and JIT builds", START_S)
    engine = CudaGraphEngine()
    loaded = load(None, engine.device)
    with loaded.calls(case_of(order[0][1]).geometry):
        cuda.build_kernels(loaded.seams)
    say.result({"software": _software(loaded), "device": torch.cuda.get_device_name(engine.device)})
    for number, scenario, steps in order:
        say.begin(f"scenario {number} capture", START_S)
        case = case_of(scenario)
        sut = SglangSut(case, engine, _no_span, (case.bucket,), loaded)
        try:
            bench = _bench(scenario, case, loaded, engine)
            measure_steps(number, scenario, case, steps, sut, bench, say, limit_s)
        finally:
            sut.close()
    say.end()


def measure_steps(
    number: int,
    scenario: Scenario,
    case: Case,
    steps: tuple[int, ...],
    sut: SglangSut,
    bench: Bench,
    say: Reporter,
    limit_s: float,
) -> None:
    """Capture each step's kernel twice, refresh at other lengths, report what is stale and the figures."""
    engine, derived = bench.engine, DERIVED[scenario.kernel]
    sut.init_graph_state()
    sut.stage(inputs_of(case, scenario.captured))
    sut.prepare_capture(case.bucket)
    leaves = {step: leaf_tensors(sut.roots()[step].metadata[case.bucket]) for step in steps}
    fresh = {step: bench.fresh(leaves[step]) for step in steps}
    own = {step: _capture(bench, leaves[step], leaves[step][derived]) for step in steps}
    twin = {step: _capture(bench, leaves[step], fresh[step]) for step in steps}
    say.begin(f"scenario {number} refresh", START_S)
    sut.stage(inputs_of(case, scenario.replayed))
    sut.refresh(case.bucket)
    engine.synchronize()
    for step in steps:
        fresh[step].copy_(bench.fresh(leaves[step]))
    stale = [step for step in steps if not bench.same_derived(leaves[step][derived], fresh[step])]
    say.result({"scenario": number, "stale": stale})
    for step in steps:
        say.begin(stage(number, step, own=False), limit_s)
        right = _replayed(engine, twin[step])
        fresh_us = bench.microseconds(twin[step].graph)
        say.begin(stage(number, step, own=True), limit_s)
        differing, compared = bench.compare(leaves[step], _replayed(engine, own[step]), right)
        own_us = bench.microseconds(own[step].graph)
        say.result(
            {
                "scenario": number, "step": step, "differing": differing, "compared": compared,
                "fresh_us": round(fresh_us, 1), "own_us": round(own_us, 1),
            }
        )  # fmt: skip


def case_of(scenario: Scenario) -> Case:
    """Return the case that a scenario drives: decode, S steps, no fusion."""
    model = load_models(locate.cases_dir(None))[MODEL]
    variant = next(variant for variant in model.variants if variant.steps == scenario.speculative_steps)
    return Case(
        sut="sglang", engine=EngineKind.CUDA_GRAPH, model=model, path=scenario.path, fusion=False,
        variant=variant, mode=Mode.DECODE, bucket=len(scenario.captured), drill=Drill.PLAIN,
    )  # fmt: skip


def inputs_of(case: Case, lengths: tuple[int, ...]) -> Inputs:
    """Return a full batch of these lengths: request i + 1 in row i, pages scattered over the pool."""
    pool = PagePool(case.model, case.geometry, np.random.default_rng(len(lengths)))
    requests = np.arange(1, len(lengths) + 1, dtype=np.int64)
    for request, length in zip(requests.tolist(), lengths, strict=True):
        pool.cover(request, -(-length // case.model.page_tokens))
    return Inputs(
        bucket=len(lengths),
        live=len(lengths),
        lengths=np.array(lengths, np.int64),
        requests=requests,
        accepted=np.full(len(lengths), case.variant.draft_tokens, np.int32),
        table=expand_table(pool.snapshot(), case.model.page_tokens),
    )


class _OnCuda:
    """Times graphs by CUDA events."""

    def __init__(self, engine: CudaGraphEngine) -> None:
        self.engine: Engine = engine

    def microseconds(self, graph: Graph) -> float:
        """Return the median device time of one replay, its launches queued behind a spinning kernel."""
        event: Callable[..., Any] = torch.cuda.Event
        samples = []
        for _ in range(SAMPLES):
            begin, end = event(enable_timing=True), event(enable_timing=True)
            torch.cuda._sleep(SPIN_CYCLES)  # type: ignore[no-untyped-call]
            begin.record()
            self.engine.launch(graph)
            end.record()
            self.engine.synchronize()
            samples.append(begin.elapsed_time(end) * 1000)
        return float(statistics.median(samples))


class _Logits(_OnCuda):
    """`deep_gemm.fp8_paged_mqa_logits` over one batch of random keys and queries."""

    def __init__(self, case: Case, loaded: Loaded, engine: CudaGraphEngine) -> None:
        super().__init__(engine)
        device = engine.device
        self._gemm: Any = importlib.import_module("deep_gemm")
        self._width, self._workers = case.geometry.width, case.geometry.num_sms
        rows, heads = case.bucket, case.model.heads
        torch.manual_seed(0)
        query = torch.randn((rows, 1, heads, HEAD_DIM), device=device)
        self._query = query.to(torch.float8_e4m3fn)
        self._weights = torch.randn((rows, heads), device=device)
        self._cache = _index_keys(pool_pages(case.model, case.geometry), device)

    def fresh(self, leaves: Leaves) -> torch.Tensor:
        """Return DeepGEMM's schedule of a step's lengths."""
        lengths = leaves["paged_mqa_ctx_lens_2d"]
        return self._gemm.get_paged_mqa_logits_metadata(lengths, PHYSICAL_PAGE, self._workers)  # type: ignore[no-any-return]

    def same_derived(self, one: torch.Tensor, other: torch.Tensor) -> bool:
        """Compare two schedules, every element of which is defined."""
        return torch.equal(one, other)

    def run(self, leaves: Leaves, derived: torch.Tensor) -> torch.Tensor:
        """Launch the kernel; logits float32 `[rows, W]`, dead columns undefined."""
        lengths = leaves["paged_mqa_ctx_lens_2d"]
        return self._gemm.fp8_paged_mqa_logits(  # type: ignore[no-any-return]
            self._query, self._cache, self._weights, lengths, leaves["real_page_table"], derived, self._width,
            clean_logits=False,
        )  # fmt: skip

    def compare(self, leaves: Leaves, got: torch.Tensor, right: torch.Tensor) -> tuple[int, int]:
        """Return how many live logits differ in any bit, and how many were compared."""
        columns = torch.arange(self._width, dtype=torch.int32, device=got.device)
        live = columns[None] < leaves["paged_mqa_ctx_lens_2d"].view(-1, 1)
        different = (got.view(torch.int32) != right.view(torch.int32)) & live
        return int(different.sum()), int(live.sum())


class _Topk(_OnCuda):
    """SGLang's top-k v2 over one batch of random scores; dead columns hold scores too, as a server's do."""

    def __init__(self, case: Case, loaded: Loaded, engine: CudaGraphEngine) -> None:
        super().__init__(engine)
        self._topk: Any = loaded.seams.topk
        torch.manual_seed(0)
        self._scores = torch.randn((case.bucket, case.geometry.width), device=engine.device)
        self._count = case.geometry.topk

    def fresh(self, leaves: Leaves) -> torch.Tensor:
        """Return the plan of a step's lengths."""
        return self._topk.plan_topk_v2(leaves["cache_seqlens_int32"])  # type: ignore[no-any-return]

    def same_derived(self, one: torch.Tensor, other: torch.Tensor) -> bool:
        """Compare two plans: threshold and count, then that many rows in any order."""
        count = int(other[0, 1])
        rows = (sorted(map(tuple, plan[1 : count + 1].tolist())) for plan in (one, other))
        return torch.equal(one[0], other[0]) and next(rows) == next(rows)

    def run(self, leaves: Leaves, derived: torch.Tensor) -> torch.Tensor:
        """Launch the kernel; selected columns int32 `[rows, K]`, in any order, -1 where a row is short."""
        out = self._scores.new_empty((self._scores.shape[0], self._count), dtype=torch.int32)
        self._topk.topk_transform_paged_v2(self._scores, leaves["cache_seqlens_int32"], None, out, 1, derived)
        return out

    def compare(self, leaves: Leaves, got: torch.Tensor, right: torch.Tensor) -> tuple[int, int]:
        """Return how many of the selected columns, in ascending order, differ, and how many were compared."""
        different = torch.sort(got, 1).values != torch.sort(right, 1).values
        return int(different.sum()), right.numel()


def _bench(scenario: Scenario, case: Case, loaded: Loaded, engine: CudaGraphEngine) -> Bench:
    make = _Logits if scenario.kernel is Kernel.LOGITS else _Topk
    return make(case, loaded, engine)


def _index_keys(pages: int, device: torch.device) -> torch.Tensor:
    """Return an index-key cache, uint8 `[pages, 64, 1, 132]`: by page 64 fp8 keys, then 64 float32 scales."""
    keys = PHYSICAL_PAGE * HEAD_DIM
    cache = torch.empty((pages, keys + PHYSICAL_PAGE * 4), dtype=torch.uint8, device=device)
    cache[:, keys:] = torch.ones(PHYSICAL_PAGE, device=device).view(torch.uint8)
    for first in range(0, pages, 4096):
        part = cache[first : first + 4096]
        values = torch.randn((part.shape[0], keys), device=device)
        part[:, :keys] = values.to(torch.float8_e4m3fn).view(torch.uint8)
    return cache.view(pages, PHYSICAL_PAGE, 1, HEAD_DIM + 4)


def _capture(bench: Bench, leaves: Leaves, derived: torch.Tensor) -> _Captured:
    graph, output = bench.engine.capture(lambda: bench.run(leaves, derived))
    return _Captured(graph, output)


def _replayed(engine: Engine, captured: _Captured) -> torch.Tensor:
    engine.launch(captured.graph)
    engine.synchronize()
    return captured.output.clone()


def _software(loaded: Loaded) -> dict[str, str]:
    gemm: Any = importlib.import_module("deep_gemm")
    return {**loaded.facts, "torch": str(torch.__version__), "deep_gemm": str(gemm.__version__)}


@contextmanager
def _no_span(name: str, step: int = -1) -> Iterator[None]:
    yield


def main(arguments: list[str]) -> int:
    """Measure what the parent asks for and report through its pipe."""
    text, descriptor = arguments
    order, limit_s = msgspec.json.decode(text, type=tuple[Order, float])
    measure(order, limit_s, Reporter(int(descriptor)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
