"""The settings that exist for a system, filtered, and the batch sizes that each is built for."""

from __future__ import annotations

import pytest

from harness.errors import UsageError
from harness.fuzz.sequence import case_of, setting_of
from harness.fuzz.space import space_of
from harness.matrix import Selection, full_matrix
from harness.types import Drill, EngineKind, Kernel, Mode, Path
from tests.fuzz.samples import MODELS


def test_settings_are_those_of_the_whole_matrix() -> None:
    selection = Selection(kernels=(Kernel.FA3, Kernel.FLASHMLA_KV))
    models = {"unit-p1": MODELS["unit-p1"]}
    space = space_of(models, "embedded", EngineKind.TAPE, selection)
    matrix = full_matrix(models, "embedded", EngineKind.TAPE, selection)
    expected = {setting_of(case) for case in matrix.cases}
    assert {one for settings in space.settings.values() for one in settings} == expected
    assert space.count == len(expected)


def test_filters_leave_what_they_name() -> None:
    selection = Selection(
        models=("unit-p1",), paths=(Path.SHARED,), steps=(4,), fusion=(False,), kernels=(Kernel.TRTLLM,)
    )
    space = space_of(MODELS, "embedded", EngineKind.TAPE, selection)
    assert set(space.settings) == {Mode.DECODE}
    assert {(one.model, one.path, one.steps, one.kernel) for one in space.settings[Mode.DECODE]} == {
        ("unit-p1", Path.SHARED, 4, Kernel.TRTLLM)
    }


def test_a_package_is_built_for_two_neighbouring_batch_sizes() -> None:
    space = space_of(MODELS, "package", EngineKind.TAPE, Selection(modes=(Mode.DECODE,)))
    sizes = {one.buckets for one in space.settings[Mode.DECODE]}
    assert sizes == {(1, 2), (2, 4), (4, 8)}
    paths = {one.path for one in space.settings[Mode.DECODE]}
    assert paths == {Path.RELEASED, Path.SHARED, Path.SHARED_IN_GRAPH}
    setting = space.settings[Mode.DECODE][0]
    assert space.room(setting).buckets == setting.buckets


def test_what_does_not_exist_is_refused() -> None:
    with pytest.raises(UsageError, match="--model other: no such model"):
        space_of(MODELS, "embedded", EngineKind.TAPE, Selection(models=("other",)))
    with pytest.raises(UsageError, match="no setting of embedded is selected"):
        space_of(MODELS, "embedded", EngineKind.TAPE, Selection(paths=(Path.RELEASED,)))


def test_a_setting_stands_for_its_case() -> None:
    for settings in space_of(MODELS, "embedded", EngineKind.TAPE, Selection()).settings.values():
        for setting in settings[::17]:
            case = case_of(setting, MODELS[setting.model], (2, 4), delayed=True)
            assert setting_of(case) == setting
            assert case.bucket == 4
            assert case.drill is Drill.DELAYED
