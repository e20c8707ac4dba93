"""The real kernels that `effect` measures, one launch a call, on random keys, queries and scores."""

from __future__ import annotations

import importlib
import statistics
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import torch

from harness.case import PHYSICAL_PAGE, Case
from harness.engine.cuda_graph import CudaGraphEngine
from harness.engine.protocol import Engine, Graph
from harness.pages import pool_pages
from harness.sut.sglang.loader import Loaded
from harness.sut.sglang.scenarios import Kernel, Scenario

HEAD_DIM = 128
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


def make_bench(scenario: Scenario, case: Case, loaded: Loaded, engine: CudaGraphEngine) -> Bench:
    """Return the bench of a scenario's kernel."""
    make = LogitsBench if scenario.kernel is Kernel.LOGITS else TopkBench
    return make(case, loaded, engine)


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


class LogitsBench(_OnCuda):
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


class TopkBench(_OnCuda):
    """SGLang's top-k v2 over one batch of random scores; dead columns hold scores too, as a server's do.

    Called as SGLang's own `_topk_transform_v2_paged` does, with the step's page table: it selects columns
    and turns them into slots of the KV cache.
    """

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
        """Launch the kernel; selected slots int32 `[rows, K]`, in any order, -1 where a row is short."""
        out = self._scores.new_empty((self._scores.shape[0], self._count), dtype=torch.int32)
        lengths, table = leaves["cache_seqlens_int32"], leaves["real_page_table"]
        self._topk.topk_transform_paged_v2(self._scores, lengths, table, out, PHYSICAL_PAGE, derived)
        return out

    def compare(self, leaves: Leaves, got: torch.Tensor, right: torch.Tensor) -> tuple[int, int]:
        """Return how many of the selected slots, in ascending order, differ, and how many were compared."""
        different = torch.sort(got, 1).values != torch.sort(right, 1).values
        return int(different.sum()), right.numel()


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
