"""The evidence check: a run that proved too little says so."""

from __future__ import annotations

from dataclasses import replace

import pytest

from harness.checks import evidence
from harness.checks.subject import Subject
from harness.observation import Observation, PauseFact
from harness.rounds import Program
from harness.truth import Truth
from harness.types import Drill
from tests.faulty import Bends, bent_subject
from tests.helpers import make_case, make_program, tiny_model

MODEL = tiny_model()
CASE = make_case(MODEL)
BATCHES = (
    ((65, 257, 900, 13), (3, 1, 4, 2)),
    ((600, 700, 10), (5, 6, 7)),
    ((999, 700, 64, 2), (8, 6, 7, 1)),
)


@pytest.fixture(scope="module")
def good() -> Subject:
    return bent_subject(CASE, make_program(MODEL, 4, BATCHES), Bends())


def kinds(observation: Observation) -> set[str]:
    """Judge an altered observation, goldens and ordinary path left aside."""
    subject = Subject.of(observation, Truth(), golden_checked=False)
    return {finding.kind for finding in evidence.check(subject).findings}


def program_kinds(batches: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]) -> set[str]:
    subject = bent_subject(CASE, make_program(MODEL, 4, batches), Bends())
    return {finding.kind for finding in evidence.check(subject).findings}


def test_a_good_run_is_enough(good: Subject) -> None:
    outcome = evidence.check(good)
    assert outcome.findings == ()
    assert outcome.elements > 100


def test_replays_of_the_captured_batch_alone_prove_nothing() -> None:
    captured = ((1, 1, 1, 1), (1, 2, 3, 4))
    found = program_kinds((captured, captured))
    assert {"only_capture_batch", "lengths_constant", "plan_empty", "no_padding"} <= found


def test_full_batches_alone_leave_padding_unproved() -> None:
    assert program_kinds((BATCHES[0], BATCHES[2])) == {"no_padding"}


def test_equal_lengths_hide_mixed_up_rows() -> None:
    assert "lengths_equal" in program_kinds((((300,) * 4, (1, 2, 3, 4)), ((500,) * 3, (3, 1, 2))))


def test_lengths_below_the_threshold_leave_plans_empty() -> None:
    assert program_kinds((((9, 8, 7, 6), (1, 2, 3, 4)), ((5, 4, 3), (3, 1, 2)))) == {"plan_empty"}


def test_one_round_is_too_few() -> None:
    assert program_kinds(BATCHES[:1]) == {"too_few_rounds"}


def test_a_sentinel_that_did_not_land_is_reported(good: Subject) -> None:
    record = good.observation.rounds[1]
    refresh = record.refreshes[0]
    facts = tuple(replace(fact, landed=False) for fact in refresh.poison)
    rounds = (
        good.observation.rounds[0],
        replace(record, refreshes=(replace(refresh, poison=facts),)),
        good.observation.rounds[2],
    )
    assert kinds(replace(good.observation, rounds=rounds)) == {"poison_missed"}


def test_a_leaf_that_was_never_poisoned_is_reported(good: Subject) -> None:
    record = good.observation.rounds[1]
    refresh = record.refreshes[0]
    cells = tuple(
        replace(cell, poisoned=None) if cell.name == "cu_seqlens_k" else cell for cell in refresh.cells
    )
    rounds = list(good.observation.rounds)
    rounds[1] = replace(record, refreshes=(replace(refresh, cells=cells),))
    assert kinds(replace(good.observation, rounds=tuple(rounds))) == {"not_poisoned"}


def test_a_pause_that_released_nothing_is_reported(good: Subject) -> None:
    facts = [PauseFact(1, 4, 0, "cache_seqlens_int32", zeroed) for zeroed in (True, False)]
    emptied, kept = (replace(good.observation, pauses=(fact,)) for fact in facts)
    assert not evidence.check(replace(good, observation=emptied)).findings
    (finding,) = evidence.check(replace(good, observation=kept)).findings
    assert (finding.kind, finding.field) == ("pause_missed", "cache_seqlens_int32")


def test_a_missing_field_and_a_missing_replay_are_reported(good: Subject) -> None:
    record = good.observation.rounds[1]
    refresh = record.refreshes[0]
    cells = tuple(cell for cell in refresh.cells if cell.name != "topk_v2_plan")
    rounds = list(good.observation.rounds)
    rounds[1] = replace(record, refreshes=(replace(refresh, cells=cells),), replay=None, skipped="poison")
    assert kinds(replace(good.observation, rounds=tuple(rounds))) == {"field_missing", "not_replayed"}


def test_rounds_that_did_not_run_are_reported(good: Subject) -> None:
    assert kinds(replace(good.observation, rounds=good.observation.rounds[:2])) == {"rounds_missing"}


def test_outputs_that_never_change_are_reported(good: Subject) -> None:
    first = good.observation.rounds[0].replay
    assert first is not None
    rounds = tuple(
        replace(record, replay=replace(record.replay, outputs=first.outputs))
        for record in good.observation.rounds
        if record.replay is not None
    )
    assert kinds(replace(good.observation, rounds=rounds)) == {"outputs_constant"}


def test_a_switch_drill_that_never_switches_is_reported(good: Subject) -> None:
    observation: Observation = replace(good.observation, case=replace(CASE, drill=Drill.BUCKET_SWITCH))
    assert kinds(observation) == {"no_switch"}


def test_an_uncaptured_bucket_is_reported(good: Subject) -> None:
    program: Program = replace(good.observation.program, buckets=(4, 2))
    assert kinds(replace(good.observation, program=program)) == {"not_captured"}


def test_an_empty_run_is_no_pass(good: Subject) -> None:
    assert kinds(replace(good.observation, rounds=())) == {"too_few_rounds"}
