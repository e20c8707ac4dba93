"""Sequences kept under `cases/sequences/`: none has a finding, and their form stays readable."""

from __future__ import annotations

from pathlib import Path as FilePath

import pytest

from harness import locate
from harness.casefile import load_models
from harness.engine.tape import TapeEngine
from harness.fuzz.sequence import Capture, Churn, Eager, Pause, Replay
from harness.fuzz.store import dump_sequence, load_sequence
from harness.fuzz.trial import Bench
from harness.options import RunOptions, factory_of
from tests.sut.sglang.support import loaded

FOLDER = locate.CHECKOUT / "cases" / "sequences"
FILES = sorted(FOLDER.glob("*.toml"))
MODELS = load_models(FOLDER.parent)
SEQUENCES = [load_sequence(file, MODELS) for file in FILES]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_kept_sequence_has_no_finding(file: FilePath) -> None:
    sequence = SEQUENCES[FILES.index(file)]
    assert sequence.why, "a kept sequence says why it is kept"
    if sequence.setting.sut == "sglang":
        loaded()  # skips where no release is at hand
    run = RunOptions(FOLDER.parent, FOLDER, sut=sequence.setting.sut)
    trial = Bench(MODELS, factory_of(run), TapeEngine()).run(sequence)
    assert not [finding.message for finding in trial.unexpected]
    assert trial.result.replays == sum(isinstance(one, Replay) for one in sequence.operations)


def test_what_is_kept_shows_every_operation() -> None:
    kinds = {type(one) for sequence in SEQUENCES for one in sequence.operations}
    assert kinds == {Capture, Replay, Eager, Churn, Pause}


def test_kept_sequences_can_be_written_again(tmp_path: FilePath) -> None:
    file = tmp_path / "again.toml"
    for sequence in SEQUENCES:
        file.write_text(dump_sequence(sequence))
        assert load_sequence(file, MODELS) == sequence
