"""The runner: grouping by reference, entry points, names of saved observations."""

from __future__ import annotations

from pathlib import Path as FilePath

import pytest

from harness.archive import observation_name
from harness.case import Case
from harness.casefile import load_models
from harness.errors import UsageError
from harness.matrix import Selection, covering_array
from harness.options import RunOptions, factory_of
from harness.ordinary import is_reference, ordinary_of, reference_key
from harness.rounds import OWN_INPUTS
from harness.runner import LARGEST_GROUP, groups, plan
from harness.types import EngineKind, Kernel, Mode, Path

ROOT = FilePath(__file__).parent.parent
OPTIONS = RunOptions(cases_dir=ROOT / "cases", golden_dir=ROOT / "golden")


@pytest.fixture(scope="module")
def cases() -> tuple[Case, ...]:
    return covering_array(load_models(ROOT / "cases"), "embedded", EngineKind.TAPE).cases


def test_groups_hold_every_case_once_and_share_a_reference(cases: tuple[Case, ...]) -> None:
    gathered = groups(cases)
    assert sorted(case.id for group in gathered for case in group) == sorted(case.id for case in cases)
    for group in gathered:
        assert len({reference_key(case) for case in group}) == 1
        assert len(group) <= LARGEST_GROUP


def test_a_reference_is_the_ordinary_path_over_the_same_rounds(cases: tuple[Case, ...]) -> None:
    for case in cases:
        other = ordinary_of(case)
        assert other.path is Path.INDEPENDENT
        assert not other.fusion
        assert (other.model, other.mode, other.bucket) == (case.model, case.mode, case.bucket)
        assert other.kernel is (Kernel.FA3 if case.kernel is Kernel.TRTLLM else case.kernel)
        assert other.backends >= case.backends
        assert (other.drill in OWN_INPUTS) == (case.drill in OWN_INPUTS)
        assert is_reference(other)
    assert any(is_reference(case) for case in cases)
    assert {case.mode for case in cases if is_reference(case)} == set(Mode)


def test_a_package_is_held_against_its_own_single_backend(cases: tuple[Case, ...]) -> None:
    models = load_models(ROOT / "cases")
    for case in covering_array(models, "sglang", EngineKind.TAPE).cases:
        other = ordinary_of(case)
        assert other.path is Path.RELEASED
        assert other.backends == 1
        assert is_reference(other)


def test_the_selection_reaches_the_plan() -> None:
    chosen = Selection(models=("glm-5",), modes=(Mode.DECODE,))
    planned = plan(RunOptions(OPTIONS.cases_dir, OPTIONS.golden_dir, selection=chosen))
    assert planned.cases
    assert {(case.model.name, case.mode) for case in planned.cases} == {("glm-5", Mode.DECODE)}


def test_an_unknown_system_is_one_line_that_names_the_installed_ones() -> None:
    with pytest.raises(UsageError, match=r"no system under test is called 'nobody'.*embedded"):
        factory_of(RunOptions(OPTIONS.cases_dir, OPTIONS.golden_dir, sut="nobody"))


def test_saved_names_are_unique_and_fit_a_file_system(cases: tuple[Case, ...]) -> None:
    names = [observation_name(case) for case in cases]
    assert len(set(names)) == len(names)
    assert max(map(len, names)) < 180
    assert not any("/" in name for name in names)
