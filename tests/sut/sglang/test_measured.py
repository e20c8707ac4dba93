"""What the effect's child measures, on a CPU: the protocol over SGLang's own refresh, with a small kernel."""

from __future__ import annotations

import json
import os
from typing import Any

import numpy as np
import pytest
import torch

from harness.child import Reporter
from harness.engine.protocol import Engine, Graph
from harness.engine.tape import TapeEngine
from harness.sut.deepgemm import paged_mqa_schedule
from harness.sut.sglang.benches import Leaves, LogitsBench, TopkBench
from harness.sut.sglang.measured import measure_steps
from harness.sut.sglang.scenarios import Kernel, Scenario
from harness.sut.sglang.sut import SglangSut
from harness.types import Path

from .support import GEOMETRY, Spans, case, loaded


class Bench:
    """Sums lengths and schedule: an output that shows which schedule was read, unlike real logits."""

    def __init__(self) -> None:
        self.engine: Engine = TapeEngine()

    def fresh(self, leaves: Leaves) -> torch.Tensor:
        return paged_mqa_schedule(leaves["paged_mqa_ctx_lens_2d"], 64, GEOMETRY.num_sms)

    def same_derived(self, one: torch.Tensor, other: torch.Tensor) -> bool:
        return torch.equal(one, other)

    def run(self, leaves: Leaves, derived: torch.Tensor) -> torch.Tensor:
        return derived.sum() * 1000 + leaves["cache_seqlens_int32"].sum()

    def compare(self, leaves: Leaves, got: torch.Tensor, right: torch.Tensor) -> tuple[int, int]:
        return int(got != right), 1

    def microseconds(self, graph: Graph) -> float:
        self.engine.launch(graph)
        self.engine.synchronize()
        return 1.0


@pytest.mark.sglang
@pytest.mark.parametrize(("path", "stale"), [(Path.RELEASED, [0, 1, 2]), (Path.SHARED, [])])
def test_a_step_reads_its_own_derived_field_and_the_twin_a_fresh_one(path: Path, stale: list[int]) -> None:
    scenario = Scenario(Kernel.LOGITS, path, (1, 1, 1, 1), (500, 60, 300, 7), "why")
    of, bench = case(1, path), Bench()
    sut = SglangSut(of, bench.engine, Spans(), (4,), loaded())
    reading, writing = os.pipe()
    say = Reporter(writing)
    measure_steps(0, scenario, of, (0, 1, 2, 3), sut, bench, say, 9.0)
    say.end()
    with os.fdopen(reading) as file:
        said = [json.loads(line) for line in file.read().splitlines()]
    results: list[dict[str, Any]] = [message["result"] for message in said if "result" in message]
    assert results[0] == {"scenario": 0, "stale": stale}
    fresh, whole = results[1::2], results[2::2]
    assert fresh == [{"scenario": 0, "step": step, "fresh": 1.0} for step in range(4)]
    assert {one["step"]: one["differing"] for one in whole} == {s: int(s in stale) for s in range(4)}
    assert [message["begin"] for message in said if "begin" in message][1:3] == [
        "scenario 0 step 0 reading a fresh derived field",
        "scenario 0 step 0 reading its own derived field",
    ]


def test_logits_are_compared_bit_for_bit_where_they_are_live() -> None:
    bench = object.__new__(LogitsBench)
    bench._width = 6
    leaves = {"paged_mqa_ctx_lens_2d": torch.tensor([[2], [6]], dtype=torch.int32)}
    right = torch.zeros((2, 6))
    got = right.clone()
    assert bench.compare(leaves, got, right) == (0, 8)
    got[0, 4] = 1.0  # dead
    assert bench.compare(leaves, got, right) == (0, 8)
    got[1, 5] = -0.0
    assert bench.compare(leaves, got, right) == (1, 8)


def test_plans_are_equal_in_any_order_and_beyond_their_count() -> None:
    bench = object.__new__(TopkBench)
    one = torch.tensor([[64, 2], [3, 90], [1, 80], [7, 7]])
    other = torch.tensor([[64, 2], [1, 80], [3, 90], [0, 0]])
    assert bench.same_derived(one, other)
    assert not bench.same_derived(one, torch.tensor([[64, 2], [1, 81], [3, 90], [0, 0]]))
    assert not bench.same_derived(one, torch.tensor([[64, 1], [3, 90], [1, 80], [7, 7]]))


def test_selected_slots_are_compared_in_any_order() -> None:
    bench = object.__new__(TopkBench)
    right = torch.tensor([[5, 2, -1], [7, 8, 9]], dtype=torch.int32)
    shuffled = torch.tensor(np.array([[-1, 5, 2], [9, 7, 8]]), dtype=torch.int32)
    assert bench.compare({}, shuffled, right) == (0, 6)
    assert bench.compare({}, shuffled + 1, right)[0] > 0
