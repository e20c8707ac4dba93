"""Entries tried on a real run, and when a check could have spoken first."""

from dataclasses import replace

import pytest

from harness.engine.tape import TapeEngine
from harness.faults import trial
from harness.faults.catalogue import Entry
from harness.faults.embedded.frozen import FAULTS as FROZEN
from harness.faults.mechanisms.combined import Unchanged
from harness.faults.mechanisms.rounds import captured_batch_only, happening
from harness.faults.scene import Trace
from harness.faults.trial import Fate, Laboratory
from harness.findings import Finding
from harness.observation import Observation
from harness.rounds import Churn, Eager
from harness.traffic import build_program
from harness.types import EngineKind
from tests.faults import sample


@pytest.fixture(scope="module")
def laboratory() -> Laboratory:
    return Laboratory(sample.OPENER, TapeEngine(), EngineKind.TAPE)


@pytest.mark.parametrize(
    ("entry", "fate", "first"),
    [
        (sample.KILLED, Fate.KILLED, "freshness"),
        (sample.TWICE, Fate.KILLED, "refresh"),
        (sample.ELSEWHERE, Fate.ELSEWHERE, "refresh"),
        (sample.SURVIVES, Fate.SURVIVED, ""),
        (sample.UNREACHED, Fate.UNREACHED, ""),
        (sample.CHANGES_NOTHING, Fate.UNREACHED, ""),
        (sample.CLEAN, Fate.CLEAN, ""),
        (sample.FLAGGED, Fate.FLAGGED, "refresh"),
    ],
    ids=lambda value: getattr(value, "id", str(value)),
)
def test_what_becomes_of_an_entry(laboratory: Laboratory, entry: Entry, fate: Fate, first: str) -> None:
    (tried,) = laboratory.attempt(entry)
    assert (tried.fate, tried.first) == (fate, first)
    assert (tried.operations > 0) is bool(first)
    assert bool(tried.messages) is bool(tried.spoke)
    assert tried.fate.good is (fate in (Fate.KILLED, Fate.CLEAN))


def test_a_change_of_every_path_is_seen_by_the_golden_only(laboratory: Laboratory) -> None:
    fault = replace(next(fault for fault in FROZEN if fault.id == "C4b"), case=sample.CASE)
    (tried,) = laboratory.attempt(fault)
    assert set(tried.spoke) == {"golden"}
    (tried,) = laboratory.attempt(replace(fault, golden=False, everywhere=False))
    assert set(tried.spoke) == {"output"}


def test_rounds_are_changed_for_the_reference_as_well(laboratory: Laboratory) -> None:
    entry = replace(sample.CLEAN, rounds=captured_batch_only)
    (tried,) = laboratory.attempt(entry)
    assert set(tried.spoke) == {"evidence"}
    (tried,) = laboratory.attempt(sample.CLEAN)
    assert tried.fate is Fate.CLEAN


def test_rounds_of_the_captured_batch() -> None:
    program = build_program(sample.CASE)
    same = captured_batch_only(program)
    assert {(one.bucket, one.lengths) for one in same.rounds} == {
        (bucket, one.lengths) for bucket, one in program.capture.items()
    }
    assert len({one.name for one in same.rounds}) == len(same.rounds)


def test_events_are_added_before_rounds() -> None:
    program = build_program(sample.CASE)
    changed = happening(Churn(), 1)(happening(Eager(3), 1, 2)(replace(program, before={})))
    assert changed.before == {1: (Eager(3), Churn()), 2: (Eager(3),)}
    assert changed.rounds == program.rounds


def finding(check: str, *rounds: str) -> Finding:
    return Finding(check, "kind", "case", "", 0, (), rounds, "message")


def test_operations_until_a_check_could_speak(laboratory: Laboratory) -> None:
    observation: Observation
    observation, _ = laboratory.run(sample.CLEAN, sample.CASE, Trace())
    names = [record.name for record in observation.rounds]
    first, second = (len(record.refreshes) + (record.replay is not None) for record in observation.rounds[:2])
    everything = sum(len(r.refreshes) + (r.replay is not None) for r in observation.rounds)
    spoke = trial._spoke(
        observation,
        [
            finding("output", names[1]),
            finding("output", names[0]),
            finding("freshness", names[1], names[0]),
            finding("aliasing"),
            finding("evidence"),
        ],
    )
    assert spoke == {
        "output": first, "freshness": first + second, "aliasing": 0, "evidence": everything,
    }  # fmt: skip


def test_nothing_changed_is_nothing_found(laboratory: Laboratory) -> None:
    trace = Trace()
    _, result = laboratory.run(replace(sample.CLEAN, injection=Unchanged()), sample.CASE, trace)
    assert result.findings == ()
    assert (trace.reached, trace.changed) == (1, 1)
