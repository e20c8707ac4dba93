"""What ranks agree on, judged on vectors that no collective carried."""

from __future__ import annotations

from itertools import islice

import pytest

from harness.child import End, Ended
from harness.errors import UsageError
from harness.fields import Dims
from harness.fuzz.sequence import Capture, Replay, Setting, case_of
from harness.ranks import report
from harness.ranks.agree import FINDINGS, HEAD, Layout, Parallel, disagreements, number_of
from harness.ranks.launch import Fate, Together
from harness.ranks.order import Order, Trial, trial_of
from harness.ranks.traffic import batches
from harness.soak.lean import Seen
from harness.types import Path
from tests.trace.samples import CASES, MODELS

SETTING = Setting(model="tiny-p1", path=Path.SHARED, steps=3, buckets=(1, 4))
CASE = case_of(SETTING, MODELS["tiny-p1"], (1, 4))
LAYOUT = Layout.of(Dims.of(CASE, 4), 2)
FIELD = "cu_seqlens_k"


def seen(value: str = "same", *, refreshes: int = 2, live: int = 3, bucket: int = 4) -> Seen:
    digests = {(step, FIELD): value for step in (0, 1)}
    return Seen(17, bucket, live, "shared", refreshes, digests, 1, ())


def messages(*ranks: Seen, parallel: Parallel = Parallel.TP) -> list[str]:
    vectors = [LAYOUT.vector(one) for one in ranks]
    return [finding.message for finding in disagreements(vectors, LAYOUT, parallel, "case")]


def test_ranks_that_agree() -> None:
    assert messages(seen(), seen(), seen(), seen()) == []


def test_a_skewed_rank_is_named_with_round_and_field() -> None:
    (message,) = messages(seen(), seen(), seen("other"), seen())
    assert message == "rank 2 differs from the others in cu_seqlens_k of step 0, 1 in round b4.17"


def test_two_ranks_that_differ_blame_both() -> None:
    (message,) = messages(seen(), seen("other"))
    assert message.startswith("ranks 0, 1 disagree about cu_seqlens_k")


def test_data_parallel_ranks_have_batches_of_their_own() -> None:
    idle = seen("other", live=0)
    assert messages(seen(), idle, parallel=Parallel.DP) == []
    assert messages(seen(), idle) != []


def test_an_idle_rank_that_refreshes_less_is_named() -> None:
    (message,) = messages(seen(), seen("x", live=0, refreshes=0), seen("y"), parallel=Parallel.DP)
    assert message == (
        "rank 1 differs from the others in refreshes in round b4.17: rank 0: 2, rank 1: 0, rank 2: 2"
    )


def test_a_rank_that_lacks_a_leaf_differs() -> None:
    lacking = Seen(17, 4, 3, "shared", 2, {(0, FIELD): "same"}, 1, ())
    (message,) = messages(seen(), lacking, seen())
    assert "rank 1 differs from the others in cu_seqlens_k of step 1" in message


def test_own_findings_are_told_and_not_compared() -> None:
    vector = LAYOUT.vector(seen())
    other = [*vector]
    other[FINDINGS] = 3
    assert list(disagreements([vector, other, vector], LAYOUT, Parallel.TP, "case")) == []


def test_numbers_of_texts() -> None:
    assert number_of("") == 0
    assert 0 < number_of("a") < 1 << 63
    assert number_of("a") != number_of("b")
    assert len(LAYOUT.names) == len(set(LAYOUT.names))
    assert LAYOUT.names[: len(HEAD)] == HEAD


def order(**others: object) -> Order:
    values = {
        "cases_dir": str(CASES), "setting": SETTING, "world": 3, "parallel": Parallel.TP, "replays": 5,
        "load": "dp",
    }  # fmt: skip
    return Order(**{**values, **others})  # type: ignore[arg-type]


def fate(rank: int, end: End, stage: str) -> Fate:
    return Fate(rank, Ended(end, stage, (), "signal SIGKILL; nothing printed", 1.0))


def test_a_dead_rank_is_blamed_and_those_that_waited_are_not() -> None:
    together = Together(
        order(),
        (
            fate(0, End.CRASHED, "gather after round b4.17"),
            fate(1, End.CRASHED, "round b4.17"),
            fate(2, End.HUNG, "gather after round b4.17"),
        ),
    )
    assert together.findings == (
        "ranks: rank 1 died; its last record: round b4.17 (signal SIGKILL; nothing printed)",
        "ranks: rank 0, 2 waited for it and ended with it",
    )
    assert list(report.lines(together))[-1] == "FAILED: 2 findings over 3 ranks"


def test_trials() -> None:
    assert trial_of("kill:1@20", 4) == Trial("kill", 1, 20)
    for text in ("kill:4@20", "kill", "eat:1@2", "kill:x@2"):
        with pytest.raises(UsageError, match="give WHAT:RANK@ROUND"):
            trial_of(text, 4)


def test_tensor_parallel_ranks_have_the_same_traffic() -> None:
    first, second = (list(islice(batches(order(), CASE, rank), 40)) for rank in (0, 1))
    assert first == second


def test_data_parallel_ranks_share_buckets_only() -> None:
    ranks = [list(islice(batches(order(parallel=Parallel.DP), CASE, rank), 60)) for rank in range(3)]
    idle = 0
    for together in zip(*ranks, strict=True):
        replays = [one for one in together if isinstance(one, Replay)]
        captures = [one for one in together if isinstance(one, Capture)]
        assert len({one.bucket for one in replays} | {one.bucket for one in captures}) == 1
        idle += any(not one.lengths for one in replays) and any(one.lengths for one in replays)
    assert idle > 5
