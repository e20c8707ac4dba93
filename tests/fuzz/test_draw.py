"""Whatever is drawn can be run: batches are legal, sequences have no problem."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import run_state_machine_as_test

from harness.fuzz.draw import Rows, any_rows, capture_rows, next_rows
from harness.fuzz.machine import machine_of
from harness.fuzz.sequence import Capture, Pause, Replay, Sequence, Setting, case_of
from harness.fuzz.space import Room, Space
from harness.fuzz.store import dump_sequence, exchangeable, problems
from harness.types import Mode
from tests.fuzz.samples import EXTEND, MODELS, SHARED, VERIFY

SETTINGS = (SHARED, VERIFY, EXTEND)


def room_of(setting: Setting) -> Room:
    return Room.of(case_of(setting, MODELS[setting.model]))


def legal(rows: Rows, room: Room, bucket: int) -> None:
    assert rows.live <= bucket
    assert all(room.scale.legal(length) for length in rows.lengths)
    assert len(set(rows.requests)) == len(rows.requests) == rows.live
    assert all(1 <= request <= room.requests for request in rows.requests)
    assert len(rows.accepted) == (rows.live if room.scale.mode is Mode.DRAFT_EXTEND else 0)
    assert all(1 <= count <= room.scale.draft_tokens for count in rows.accepted)
    assert not rows.exchange or exchangeable(rows.exchange, rows.lengths, room.scale)


@settings(max_examples=40, deadline=None)
@given(st.data(), st.sampled_from(SETTINGS), st.sampled_from((1, 2, 4, 8)))
def test_batches_are_legal_and_so_is_every_move_from_one_to_the_next(
    data: st.DataObject, setting: Setting, bucket: int
) -> None:
    room = room_of(setting)
    rows = data.draw(st.one_of(any_rows(room, bucket), capture_rows(room, bucket)))
    legal(rows, room, bucket)
    for _ in range(3):
        target = data.draw(st.sampled_from((bucket, 1, 8)))
        rows = data.draw(next_rows(room, target, rows))
        legal(rows, room, target)


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_a_move_keeps_most_of_the_batch(data: st.DataObject) -> None:
    room = room_of(SHARED)
    base = Rows((70, 300, 900), (3, 1, 2), (), 0)
    rows = data.draw(next_rows(room, 4, base))
    assert set(rows.lengths) & set(base.lengths) or set(rows.requests) & set(base.requests)


def test_borders_are_legal_and_ascending() -> None:
    for setting in SETTINGS:
        room = room_of(setting)
        assert list(room.lengths) == sorted(set(room.lengths))
        assert all(room.scale.legal(length) for length in room.lengths)
        assert {64, 256, 257} <= set(room.lengths)


def drawn(space: Space, examples: int = 12) -> list[Sequence]:
    sequences: list[Sequence] = []
    chosen = settings(
        max_examples=examples, stateful_step_count=10, deadline=None, database=None, derandomize=True
    )
    run_state_machine_as_test(machine_of(space, sequences.append), settings=chosen)
    return sequences


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda one: str(one.mode))
def test_drawn_sequences_can_be_run(setting: Setting) -> None:
    for sequence in drawn(Space(MODELS, {setting.mode: (setting,)}, pauses=True)):
        assert not list(problems(sequence, MODELS)), dump_sequence(sequence)


def test_all_that_can_happen_is_drawn() -> None:
    sequences = drawn(Space(MODELS, {one.mode: (one,) for one in SETTINGS}, pauses=True), 100)
    operations = [one for sequence in sequences for one in sequence.operations]
    replays = [one for one in operations if isinstance(one, Replay)]
    assert {sequence.setting.mode for sequence in sequences} == set(Mode)
    assert {type(one).__name__ for one in operations} == {"Capture", "Replay", "Eager", "Churn", "Pause"}
    assert {sequence.ordinary for sequence in sequences} == {True, False}
    assert any(not one.lengths for one in replays), "no idle batch"
    assert any(one.junk for one in replays)
    assert any(one.exchange for one in replays)
    assert any(len(one.lengths) < one.bucket for one in replays if one.lengths)
    assert any(
        sum(isinstance(one, Capture) and one.bucket == bucket for one in sequence.operations) > 1
        for sequence in sequences
        for bucket in sequence.captured
    ), "no recapture"
    assert any(
        sequence.held_back(index) for sequence in sequences for index in range(len(sequence.operations))
    )
    switches = [
        {one.bucket for one in sequence.operations if isinstance(one, Replay)} for sequence in sequences
    ]
    assert any(len(buckets) > 1 for buckets in switches)


def test_nothing_is_paused_where_the_system_cannot() -> None:
    space = replace(Space(MODELS, {SHARED.mode: (SHARED,)}), pauses=False)
    assert not any(isinstance(one, Pause) for sequence in drawn(space) for one in sequence.operations)
