"""Real processes over gloo: agreement, a skewed rank, a killed one, one that hangs."""

from __future__ import annotations

import pytest

from harness.fuzz.sequence import Setting
from harness.ranks.agree import Parallel
from harness.ranks.launch import run_together
from harness.ranks.order import Order, Trial
from harness.types import Path
from tests.trace.samples import CASES

SETTING = Setting(model="tiny-p1", path=Path.SHARED, steps=3, buckets=(1, 2))


def order(world: int, *trials: Trial, parallel: Parallel = Parallel.TP, limit_s: float = 60.0) -> Order:
    return Order(
        cases_dir=str(CASES), setting=SETTING, world=world, parallel=parallel, replays=8, load="long",
        seed=3, limit_s=limit_s, trials=trials,
    )  # fmt: skip


@pytest.mark.slow
def test_four_ranks_agree() -> None:
    together = run_together(order(4, parallel=Parallel.DP))
    assert together.findings == ()
    assert [fate.summary["replays"] for fate in together.fates] == [8] * 4
    assert len({fate.summary["refreshes"] for fate in together.fates}) == 1


def test_a_skewed_rank_is_named() -> None:
    together = run_together(order(3, Trial("skew", 1, 5)))
    assert together.findings
    assert all("rank 1 differs from the others in" in line for line in together.findings)
    assert any("cache_seqlens_int32 of step 0, 1" in line for line in together.findings)


@pytest.mark.slow
def test_a_killed_rank_is_named_with_its_last_record() -> None:
    dead, *waited = run_together(order(2, Trial("kill", 1, 4))).findings
    assert dead.startswith("ranks: rank 1 died; its last record: round b")
    assert waited == ["ranks: rank 0 waited for it and ended with it"]


@pytest.mark.slow
def test_a_hung_rank_ends_the_run_within_its_limit() -> None:
    hung, *_ = run_together(order(2, Trial("hang", 0, 4), limit_s=3.0)).findings
    assert hung.startswith("ranks: rank 0 hung; its last record: round b")
