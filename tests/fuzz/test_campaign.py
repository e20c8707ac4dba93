"""Fuzzing finds planted faults, shrinks them to few operations, and finds nothing on a clean system."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path as FilePath

import pytest

from harness.fuzz.campaign import Campaign, Found, Limits
from harness.fuzz.reduce import size_of
from harness.fuzz.sequence import Capture, Eager, Replay, Sequence, Setting
from harness.fuzz.store import dump_sequence, load_sequence
from tests.faulty import Bends
from tests.fuzz.samples import (
    COUNTED,
    EXTEND,
    GROWN,
    MODELS,
    SHARED,
    SKIPPED,
    STALE,
    SWITCHED,
    UNPOOLED,
    VERIFY,
    Recorder,
    bench,
    bent,
    fuzzed,
    space_of_one,
)

PLANTED = {
    "stale-while-longest-stays": (SHARED, STALE, "freshness", (Capture, Replay)),
    "old-bucket-after-a-switch": (UNPOOLED, SWITCHED, "aliasing", (Capture, Capture, Replay, Replay)),
    "grown-counter": (COUNTED, GROWN, "address", (Capture, Eager, Replay)),
}
"""By name: where it is planted, the check that has to speak, the operations that it takes."""


@dataclass(frozen=True)
class Fuzzed:
    """One planted fault and what was found."""

    name: str
    setting: Setting
    bends: Bends
    found: Found


@pytest.fixture(scope="module", params=PLANTED)
def planted(request: pytest.FixtureRequest) -> Fuzzed:
    setting, bends, _, _ = PLANTED[request.param]
    found = fuzzed(setting, bent(bends)).found
    assert found is not None
    return Fuzzed(request.param, setting, bends, found)


def test_a_planted_fault_is_found_and_shrunk(planted: Fuzzed) -> None:
    _, _, check, kinds = PLANTED[planted.name]
    found = planted.found
    assert check in {finding.check for finding in found.findings}
    assert found.steady
    assert Counter(type(one) for one in found.trial.sequence.operations) == Counter(kinds)
    assert size_of(found.trial.sequence) < size_of(found.first)


def test_its_file_shows_it_again_and_nothing_on_a_clean_system(planted: Fuzzed, tmp_path: FilePath) -> None:
    file = tmp_path / "found.toml"
    file.write_text(dump_sequence(planted.found.trial.sequence))
    kept = load_sequence(file, MODELS)
    assert bench(bent(planted.bends)).run(kept).unexpected == planted.found.findings
    assert not bench().run(kept).unexpected


@pytest.mark.parametrize("setting", [SHARED, COUNTED, EXTEND, VERIFY], ids=lambda one: str(one.mode))
def test_nothing_is_found_on_a_clean_system(setting: Setting) -> None:
    outcome = fuzzed(setting, sequences=3)
    assert outcome.found is None
    assert outcome.tally.sequences == 3
    assert outcome.tally.replays > 3
    assert outcome.tally.checks["freshness"] == 3
    assert not outcome.tally.skipped


def drawn(seed: int, sequences: int = 10) -> list[Sequence]:
    recorder = Recorder()
    limits = Limits(3600.0, sequences, steps=6, examples=sequences)
    Campaign(recorder, space_of_one(SHARED), limits, seed=seed).run()
    return recorder.seen


def test_a_seed_decides_what_is_drawn() -> None:
    first = drawn(11)
    assert len(first) == 10
    assert drawn(11) == first
    assert drawn(12) != first


def test_a_seed_decides_what_is_found() -> None:
    first, again = (fuzzed(UNPOOLED, bent(SKIPPED), seed=11, shrinking=(1, 3)).found for _ in range(2))
    assert first is not None
    assert again is not None
    assert again.first == first.first
    assert again.trial.sequence == first.trial.sequence


def test_an_example_that_failed_is_tried_first_in_the_next_run(tmp_path: FilePath) -> None:
    limits = Limits(3600.0, 60, steps=6, hypothesis_runs=3, reducer_runs=0)
    faulty, space = bench(bent(SKIPPED)), space_of_one(SHARED)
    first = Campaign(faulty, space, limits, seed=3, database=tmp_path).run()
    assert first.found is not None
    again = Campaign(faulty, space, limits, seed=4, database=tmp_path, reuse=True).run()
    assert again.found is not None
    assert again.found.sequences == 1


def test_a_fault_that_shows_once_is_reported_as_it_was_drawn() -> None:
    shown: list[int] = []

    def once(sut: object, bucket: int) -> None:
        shown.append(bucket)
        if len(shown) == 4:
            raise ValueError("only once")

    found = fuzzed(SHARED, bent(Bends(before=once)), shrinking=(2, 2)).found
    assert found is not None
    assert not found.steady
    assert found.trial.sequence == found.first
    assert "only once" in found.findings[0].message


def test_the_time_ends_a_run() -> None:
    recorder = Recorder()
    outcome = Campaign(recorder, space_of_one(SHARED), Limits(1e-6), seed=0).run()
    assert outcome.found is None
    assert len(recorder.seen) == 1


def test_what_cannot_be_driven_is_counted_with_the_reason() -> None:
    outcome = Campaign(Recorder(), space_of_one(SHARED), Limits(3600.0, 5), seed=0).run()
    assert outcome.tally.skipped == {"only recorded": 5}
    assert outcome.tally.sequences == 0


def test_stretches_of_a_load_model_are_drawn() -> None:
    space = replace(space_of_one(SHARED), load="bursty")
    recorder = Recorder()
    Campaign(recorder, space, Limits(3600.0, 12, steps=8), seed=2).run()
    served = [
        one
        for sequence in recorder.seen
        for one in sequence.operations
        if isinstance(one, Replay) and isinstance(one.pages, tuple)
    ]
    assert len(served) > 5
