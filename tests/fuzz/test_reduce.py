"""Shrinking on plain data: the smallest sequence that still shows a fault, within a number of runs."""

from __future__ import annotations

from harness.fuzz.reduce import Reducer, size_of
from harness.fuzz.sequence import Capture, Churn, Eager, Pause, Replay, Sequence, Setting
from harness.fuzz.store import problems
from harness.types import Kernel, Path, Precision
from tests.fuzz.samples import MODELS, captured, replayed, sequence_of

FULL = Setting(
    model="unit-p4", path=Path.SHARED, fusion=True, steps=5, kernel=Kernel.TRTLLM, precision=Precision.BF16
)
LONG = sequence_of(
    captured(8),
    Churn(),
    captured(4),
    replayed(300, 5, 700, bucket=4),
    Eager(rows=16384),
    replayed(301, 6, 701, bucket=4, delayed=True),
    replayed(5, 6, 7, 8, 9, 300, bucket=8),
    Pause(),
    Replay(bucket=4, lengths=(257, 3, 999, 1), requests=(9, 2, 5, 1), pages=3, junk=2),
    Churn(),
    setting=FULL,
    ordinary=True,
)


def reduced(shows: object, most: int = 500) -> tuple[Sequence, Reducer]:
    reducer = Reducer(MODELS, shows, most)  # type: ignore[arg-type]
    return reducer.reduce(LONG), reducer


def test_one_long_request_is_left_of_a_fault_of_long_requests() -> None:
    def shows(sequence: Sequence) -> bool:
        return any(
            isinstance(one, Replay) and max(one.lengths, default=0) > 256 for one in sequence.operations
        )

    assert shows(LONG)
    smallest, _ = reduced(shows)
    assert smallest == sequence_of(
        Capture(bucket=1, lengths=(1,), requests=(1,)),
        Replay(bucket=1, lengths=(257,), requests=(1,)),
        setting=Setting(model="unit-p4", path=Path.SHARED, steps=3),
    )


def test_what_the_fault_needs_is_kept() -> None:
    def shows(sequence: Sequence) -> bool:
        kinds = [type(one) for one in sequence.operations]
        eager = [one.rows for one in sequence.operations if isinstance(one, Eager)]
        late = (
            Replay in kinds
            and Eager in kinds
            and kinds.index(Eager) < len(kinds) - 1 - kinds[::-1].index(Replay)
        )
        return late and max(eager) > 8192 and sequence.setting.kernel is Kernel.TRTLLM and sequence.ordinary

    smallest, _ = reduced(shows)
    assert [type(one) for one in smallest.operations] == [Capture, Eager, Replay]
    assert smallest.operations[1] == Eager(rows=8193)
    assert smallest.setting.kernel is Kernel.TRTLLM
    assert smallest.setting.steps == 3
    assert smallest.ordinary


def test_two_buckets_stay_two() -> None:
    smallest, _ = reduced(lambda sequence: len(sequence.captured) == 2)
    assert sorted(smallest.captured) == [1, 2]
    assert len(smallest.operations) == 2


def test_only_what_can_be_run_is_tried_and_nothing_twice() -> None:
    tried: list[Sequence] = []

    def shows(sequence: Sequence) -> bool:
        tried.append(sequence)
        return len(sequence.operations) >= 3

    smallest, reducer = reduced(shows)
    assert len(smallest.operations) == 3
    assert reducer.runs == len(tried)
    assert all(not list(problems(sequence, MODELS)) for sequence in tried)
    assert size_of(smallest) < size_of(LONG)


def test_an_exchange_follows_its_row() -> None:
    batch = Replay(bucket=4, lengths=(300, 5, 900, 7), requests=(4, 3, 2, 1), exchange=(2, 0, 2))

    def shows(sequence: Sequence) -> bool:
        return any(isinstance(one, Replay) and one.exchange for one in sequence.operations)

    smallest = Reducer(MODELS, shows, 300).reduce(sequence_of(Capture(bucket=4), batch))
    last = smallest.operations[-1]
    assert isinstance(last, Replay)
    assert last.exchange == (0, 0, 2)
    assert last.lengths == (513,)
    assert last.bucket == 1


def test_runs_are_bounded() -> None:
    smallest, reducer = reduced(lambda sequence: True, most=7)
    assert reducer.runs == 7
    assert size_of(smallest) < size_of(LONG)


def test_nothing_smaller_that_shows_leaves_the_sequence_as_it_is() -> None:
    smallest, _ = reduced(lambda sequence: False)
    assert smallest == LONG
