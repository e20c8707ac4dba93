"""Saved observations come back whole, and judging them again gives the same result."""

from __future__ import annotations

from pathlib import Path as FilePath

import pytest

from harness.archive import ORDINARY, load_observation, observations, save_observation
from harness.checks.subject import Subject
from harness.errors import UsageError
from harness.judge import judge
from harness.truth import Truth
from tests.faulty import Bends, BentSut, bent_subject
from tests.helpers import make_case, make_program, tiny_model

MODEL = tiny_model()
BATCHES = (((65, 257, 900, 13), (3, 1, 4, 2)), ((600, 700, 10), (5, 6, 7)))


def wrong_row(sut: BentSut, bucket: int) -> None:
    sut.plain_refresh(bucket)
    table = sut.metadata(0, bucket).real_page_table
    table[1, 0] = table[0, 0]


@pytest.fixture(scope="module")
def subject() -> Subject:
    return bent_subject(make_case(MODEL), make_program(MODEL, 4, BATCHES), Bends(refresh=wrong_row))


def test_a_saved_observation_is_judged_the_same(tmp_path: FilePath, subject: Subject) -> None:
    assert subject.ordinary is not None
    save_observation(tmp_path, ORDINARY + "x", subject.ordinary)
    save_observation(tmp_path, "x", subject.observation, ORDINARY + "x")
    (file,) = observations(tmp_path)
    loaded, name = load_observation(file)
    ordinary, _ = load_observation(tmp_path / f"{name}.json")
    assert loaded.rounds == subject.observation.rounds
    assert loaded.walks == subject.observation.walks
    assert loaded.case == subject.observation.case
    again = judge(Subject.of(loaded, Truth(), ordinary, golden_checked=False))
    first = judge(subject)
    assert again.checks == first.checks
    assert any(check.findings for check in again.checks)


def test_saving_twice_gives_the_same_bytes(tmp_path: FilePath, subject: Subject) -> None:
    one = save_observation(tmp_path / "a", "x", subject.observation)
    two = save_observation(tmp_path / "b", "x", subject.observation)
    assert one.read_bytes() == two.read_bytes()
    assert one.with_suffix(".safetensors").read_bytes() == two.with_suffix(".safetensors").read_bytes()


@pytest.mark.parametrize("damage", ["truncated", "tensors", "schema", "missing"])
def test_a_damaged_file_is_one_line(tmp_path: FilePath, subject: Subject, damage: str) -> None:
    file = save_observation(tmp_path, "x", subject.observation)
    tensors = file.with_suffix(".safetensors")
    if damage == "truncated":
        file.write_bytes(file.read_bytes()[:100])
    elif damage == "tensors":
        tensors.write_bytes(tensors.read_bytes()[:100])
    elif damage == "schema":
        file.write_bytes(file.read_bytes().replace(b'"schema":1', b'"schema":9', 1))
    else:
        tensors.unlink()
    with pytest.raises(UsageError) as caught:
        load_observation(file)
    assert "\n" not in str(caught.value)
    assert str(file) in str(caught.value)


def test_a_folder_that_is_not_there_is_one_line(tmp_path: FilePath) -> None:
    with pytest.raises(UsageError, match="no such folder"):
        list(observations(tmp_path / "none"))
