"""From operations to a program: rounds, what happens between them, pages."""

from __future__ import annotations

import numpy as np
import pytest

from harness import rounds
from harness.errors import CaseError
from harness.fuzz.expand import expand, undisturbed
from harness.fuzz.sequence import Capture, Churn, Eager, Pause, Replay, Setting
from harness.rounds import Captured
from harness.types import Drill, Mode, Path
from tests.fuzz.samples import EXTEND, MODELS, captured, replayed, sequence_of


def test_operations_between_replays_come_before_the_round_that_follows() -> None:
    early, late = (captured(2), Eager(rows=3), replayed(5)), (captured(4), Pause(), replayed(6), Churn())
    case, program = expand(sequence_of(*early, Churn(), *late), MODELS)
    assert [one.name for one in program.rounds] == ["b2.03", "b2.07"]
    first, second, last = (program.before[index] for index in range(3))
    assert isinstance(first[0], Captured)
    assert first[1] == rounds.Eager(3)
    assert [type(one) for one in second] == [rounds.Churn, Captured, rounds.Pause]
    assert last == (rounds.Churn(),)
    assert program.buckets == ()
    assert set(program.capture) == {2, 4}
    assert case.bucket == 4
    assert case.drill is Drill.PLAIN


def test_a_bucket_captured_again_keeps_its_first_capture_as_the_captured_batch() -> None:
    again = Capture(bucket=2, lengths=(40,), requests=(3,))
    _, program = expand(sequence_of(captured(2), replayed(5), again, replayed(6)), MODELS)
    assert program.capture[2].lengths == (7, 7)
    between = program.before[1][0]
    assert isinstance(between, Captured)
    assert between.round.lengths == (40,)


def test_a_replay_is_held_back_only_where_another_follows_directly() -> None:
    held = [replayed(length, delayed=True) for length in (5, 6, 7)]
    case, program = expand(sequence_of(captured(2), *held[:2], Churn(), held[2]), MODELS)
    assert program.delayed == frozenset({0})
    assert case.drill is Drill.DELAYED


def test_requests_keep_their_pages_under_one_seed_and_lie_elsewhere_under_another() -> None:
    def batch(pages: int, *lengths: int) -> Replay:
        return Replay(bucket=4, lengths=lengths, requests=(3, 1)[: len(lengths)], pages=pages)

    _, program = expand(
        sequence_of(Capture(bucket=4), batch(1, 300, 20), batch(1, 900), batch(2, 300, 20)), MODELS
    )
    one, grown, other = (program.tables[round_.table] for round_ in program.rounds)
    assert np.array_equal(one[3, :2], grown[3, :2])
    assert not np.array_equal(one[3, :2], other[3, :2])
    used = [page for request, columns in ((3, 4), (1, 1)) for page in one[request, :columns].tolist()]
    assert len(set(used)) == len(used)
    assert 0 not in used


def test_given_pages_are_taken_as_they_are() -> None:
    given = Replay(bucket=2, lengths=(300, 5), requests=(4, 9), pages=((8, 3), (5,)))
    _, program = expand(sequence_of(captured(2), given), MODELS)
    table = program.tables[program.rounds[0].table]
    assert table[4, :2].tolist() == [8, 3]
    assert table[9, 0] == 5


def test_two_pages_of_one_request_change_places() -> None:
    plain = Replay(bucket=2, lengths=(900, 700), requests=(4, 2), pages=1)
    other = Replay(bucket=2, lengths=(900, 700), requests=(4, 2), pages=1, exchange=(1, 0, 2))
    _, program = expand(sequence_of(captured(2), plain, other), MODELS)
    one, exchanged = (program.tables[round_.table] for round_ in program.rounds)
    assert exchanged[2, :3].tolist() == [one[2, 2], one[2, 1], one[2, 0]]
    assert np.array_equal(one[4], exchanged[4])


def test_junk_changes_dead_columns_only() -> None:
    plain = Replay(bucket=2, lengths=(300,), requests=(4,), pages=1)
    junked = Replay(bucket=2, lengths=(300,), requests=(4,), pages=1, junk=1)
    _, program = expand(sequence_of(captured(2), plain, junked), MODELS)
    one, other = (program.tables[round_.table] for round_ in program.rounds)
    assert np.array_equal(one[4, :2], other[4, :2])
    assert not np.array_equal(one[4, 2:], other[4, 2:])
    assert not other[0].any()


def test_accepted_tokens_are_all_of_them_where_none_are_given() -> None:
    batch = Replay(bucket=2, lengths=(30, 40), requests=(4, 2))
    _, program = expand(sequence_of(Capture(bucket=2), batch, setting=EXTEND), MODELS)
    assert program.rounds[0].accepted == (4, 4)
    _, program = expand(sequence_of(captured(2), replayed(5)), MODELS)
    assert program.rounds[0].accepted == ()


def test_the_reference_runs_the_same_rounds_undisturbed() -> None:
    case, program = expand(
        sequence_of(captured(2), Churn(), replayed(5, delayed=True), replayed(6), captured(4)), MODELS
    )
    ordinary, plain = undisturbed(case, program)
    assert ordinary.path is Path.INDEPENDENT
    assert ordinary.variant == case.variant
    assert ordinary.drill is Drill.PLAIN
    assert plain.rounds == program.rounds
    assert plain.buckets == (2, 4)
    assert not plain.before
    assert plain.delayed is None


def test_too_many_pages_under_one_seed_are_refused() -> None:
    wide = {"narrow": MODELS["unit-p1"]}
    batches = [
        Replay(bucket=8, lengths=(1023,) * 8, requests=tuple(range(first, first + 8))) for first in (1, 4)
    ]
    setting = Setting(model="narrow", path=Path.SHARED, steps=3, mode=Mode.DECODE)
    with pytest.raises(CaseError, match="pages = 0: the page pool has"):
        expand(sequence_of(Capture(bucket=8), *batches, setting=setting), wide)
