"""Recorded ids and lengths on a model's own geometry."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.errors import UsageError
from harness.fuzz.sequence import Capture, Replay, Sequence, Setting, case_of
from harness.fuzz.store import problems
from harness.trace.mapping import Mapping, Names, operations
from harness.trace.reader import Moment
from harness.types import Path
from tests.trace.samples import MODELS

SETTING = Setting(model="tiny-p1", path=Path.SHARED, steps=3)
CASE = case_of(SETTING, MODELS["tiny-p1"])


def moment(lengths: tuple[int, ...], requests: tuple[int, ...], first: int = 1, n: int = 0) -> Moment:
    pages = tuple(
        tuple(range(first + 40 * row, first + 40 * row + -(-length // 64)))
        for row, length in enumerate(lengths)
    )
    return Moment(n, n, False, "decode", 4, 2, lengths, requests, pages)


@given(st.lists(st.lists(st.integers(0, 30), min_size=1, max_size=4), max_size=30))
def test_names_keep_what_is_equal_and_what_differs(batches: list[list[int]]) -> None:
    names = Names(5, 8)
    for batch in batches:
        renamed = names.rename(batch)
        assert all(5 <= one <= 8 for one in renamed)
        assert len(set(renamed)) == len(set(batch))
        assert [batch.index(one) for one in batch] == [renamed.index(one) for one in renamed]


def test_an_id_that_fits_keeps_its_name() -> None:
    names = Names(1, 100)
    assert names.rename([7, 3]) == (7, 3)
    assert names.rename([7_000_000, 7]) == (1, 7)
    assert names.rename([7_000_000]) == (1,)


def test_too_many_ids_at_once() -> None:
    with pytest.raises(ValueError, match="5 are used at once, there are 4"):
        Names(1, 4).rename([1, 2, 3, 4, 5])


def test_large_ids_of_a_server_are_made_to_fit() -> None:
    made = Mapping(CASE).operation(moment((100, 700), (2048, 1), first=9_000_000))
    assert made.requests == (2, 1)
    capture = Capture(bucket=4)
    sequence = Sequence(setting=SETTING, operations=(capture, made))
    assert list(problems(sequence, MODELS)) == []


def test_long_lengths_are_refused_or_folded() -> None:
    long = moment((70_001,), (1,))
    with pytest.raises(
        UsageError, match="record 0: length 70001 is out of range for tiny-p1 on tape: 1 to 1023"
    ):
        Mapping(CASE).operation(long)
    mapping = Mapping(CASE, fit=True)
    made = mapping.operation(long)
    assert mapping.folded == 1
    assert made.lengths[0] <= 1023
    assert made.lengths[0] % 256 == 70_001 % 256
    assert isinstance(made.pages, tuple)
    assert len(made.pages[0]) == -(-made.lengths[0] // 64)


def test_a_bucket_without_a_recorded_capture_is_captured_by_its_first_batch() -> None:
    moments = [moment((5,), (1,), n=0), moment((6,), (1,), n=1)]
    made = list(operations(moments, Mapping(CASE), "decode"))
    assert [type(one) for one in made] == [Capture, Replay, Replay]
    assert list(operations(moments, Mapping(CASE), "target_verify")) == []
