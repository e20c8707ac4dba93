"""The child of `effect`: real kernels in CUDA graphs, on the metadata of SGLang's draft steps.

`python -m harness.sut.sglang.measured ORDER PIPE`; ORDER is JSON. Each draft step's kernel is captured
reading that step's own tables, lengths and schedule (or plan), and a twin reading a schedule made afresh
after the refresh. The twin is replayed first: what the step's own graph does differently is the effect.
Nothing is poisoned.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import torch

from harness import locate
from harness.case import Case
from harness.casefile import load_models
from harness.child import Reporter
from harness.engine.cuda_graph import CudaGraphEngine
from harness.engine.protocol import Engine, Graph
from harness.pages import PagePool
from harness.probe.leaves import leaf_tensors
from harness.rounds import Inputs, expand_table
from harness.sut.sglang import cuda
from harness.sut.sglang.benches import Bench, Leaves, make_bench
from harness.sut.sglang.loader import Loaded, load
from harness.sut.sglang.scenarios import DERIVED, Order, Scenario, stage
from harness.sut.sglang.sut import SglangSut
from harness.types import Drill, EngineKind, Mode

MODEL = "glm-5.3"
"""P = 1: its draft steps read the schedule that the multi-destination copy forgets."""
START_S = 240.0
"""Import and first JIT builds."""


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
            bench = make_bench(scenario, case, loaded, engine)
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
        say.result({"scenario": number, "step": step, "fresh": round(fresh_us, 1)})  # for a step that hangs
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


def _capture(bench: Bench, leaves: Leaves, derived: torch.Tensor) -> _Captured:
    graph, output = bench.engine.capture(lambda: bench.run(leaves, derived))
    return _Captured(graph, output)


def _replayed(engine: Engine, captured: _Captured) -> torch.Tensor:
    """Replay over outputs of -1: what the kernel leaves out shows, and top-k takes -1 for no column."""
    captured.output.fill_(-1)
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
