"""A short soak of real graphs, and ranks over NCCL."""

from __future__ import annotations

import pytest
import torch

from harness.fuzz.sequence import Setting
from harness.ranks.agree import Parallel
from harness.ranks.launch import run_together
from harness.ranks.order import Order, Trial
from harness.soak import report
from harness.soak.run import Soak
from harness.soak.state import SCHEMA, Plan, State
from harness.trace.setup import stage_for
from harness.types import EngineKind, Path
from tests.trace.samples import CASES, MODELS, wanted

SETTING = Setting(model="tiny", engine=EngineKind.CUDA_GRAPH, path=Path.SHARED, steps=3, buckets=(1, 2, 4))


@pytest.mark.gpu
def test_a_healthy_system_passes() -> None:
    state = State(schema=SCHEMA, plan=Plan(setting=SETTING, load="mixed", seed=1))
    soak = Soak(stage_for(SETTING, wanted(), MODELS), state, None, lambda state: None)
    soak.run(300)
    assert not report.failed(soak)
    assert state.replays == 300
    assert all(sample.device for sample in soak.samples.kept)


@pytest.mark.parametrize(
    "world", [pytest.param(2, id="gpu_each", marks=pytest.mark.multigpu), pytest.param(4, id="shared_gpus")]
)
@pytest.mark.parametrize("what", ["", "skew", "kill"])
@pytest.mark.gpu
def test_ranks(what: str, world: int) -> None:
    """Over NCCL where every rank has a GPU of its own, over gloo where some share one."""
    if world == 4 and torch.cuda.device_count() >= world:
        pytest.skip("no rank has to share a GPU here")
    trials = (Trial(what, 1, 5),) if what else ()
    order = Order(
        cases_dir=str(CASES), setting=SETTING, world=world, parallel=Parallel.TP, replays=12, load="long",
        seed=3, limit_s=10.0, trials=trials,
    )  # fmt: skip
    findings = run_together(order).findings
    assert bool(findings) == bool(what)
    assert all("rank" in line for line in findings)
