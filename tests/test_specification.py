"""Metadata that is not DSA's: which specification is in force, its axes, masks, and what cannot show."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path as FilePath

import numpy as np
import pytest

from harness.axes import axes_of
from harness.checks.evidence import check
from harness.checks.subject import Subject
from harness.errors import UsageError
from harness.fields import Dims, FieldSpec, Live, canonical, fields_for, position
from harness.observation import Expectation, Observation, RoundRecord
from harness.oracle import expected
from harness.rounds import Inputs
from harness.specification import Specification, specification_of
from harness.truth import Truth
from harness.types import Kernel, Mode, Path, Role
from tests.helpers import make_case, make_dims, make_inputs, make_program, tiny_model


def ragged(dims: Dims, inputs: Inputs) -> np.ndarray:
    """The first half of the elements is defined."""
    return np.arange(8) < 4


OWN = Specification(
    fields=(
        FieldSpec("lengths", "int32", lambda dims: (dims.bucket,)),
        FieldSpec("ids", "int32", lambda dims: (8,), live=Live.MASKED, mask=ragged),
        FieldSpec("constant", "int32", lambda dims: (2,)),
        FieldSpec("kept", "int32", lambda dims: (2,), role=Role.INIT_ONCE),
        FieldSpec("never", "int32", lambda dims: (1,), exists=lambda dims: False),
    ),
    expected=lambda dims, inputs: {
        "lengths": inputs.lengths,
        "ids": np.arange(8) + inputs.lengths[0],
        "constant": np.array([3, 4]),
        "kept": np.array([5, 6]),
    },
    axes={"path": (Path.SHARED,), "mode": (Mode.DECODE,), "kernel": (Kernel.FA3, Kernel.TRTLLM)},
)
NOT_ONE = {"fields": ()}


@pytest.fixture
def _registered(tmp_path: FilePath, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    info = tmp_path / "own-0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: own\nVersion: 0\n")
    targets = f"own = {__name__}:OWN\nwrong = {__name__}:NOT_ONE\n"
    (info / "entry_points.txt").write_text(f"[replay_harness.specifications]\n{targets}")
    monkeypatch.syspath_prepend(str(tmp_path))
    specification_of.cache_clear()
    yield
    specification_of.cache_clear()


def test_a_system_without_one_has_the_metadata_of_dsa() -> None:
    for sut in ("embedded", "sglang"):
        assert specification_of(sut) is None
        assert "topk_v2_plan" in fields_for(Dims.of(make_case(sut=sut), 4))


@pytest.mark.usefixtures("_registered")
def test_a_registered_one_gives_fields_and_values() -> None:
    dims = Dims.of(make_case(sut="own"), 4)
    assert list(fields_for(dims)) == ["lengths", "ids", "constant", "kept"]
    values = expected(dims, make_inputs(dims, [7, 5, 3, 2]))
    assert {value.dtype.name for value in values.values()} == {"int32"}
    assert values["ids"].tolist() == list(range(7, 15))


@pytest.mark.usefixtures("_registered")
def test_an_entry_that_is_none_is_one_line() -> None:
    with pytest.raises(
        UsageError, match=r"test_specification:NOT_ONE in the group .* is no Specification but dict"
    ):
        specification_of("wrong")


@pytest.mark.usefixtures("_registered")
def test_only_its_own_axis_values_are_combined() -> None:
    axes = axes_of([tiny_model(1)], "own")
    assert axes.values["path"] == (Path.SHARED,)
    assert axes.values["kernel"] == (Kernel.FA3, Kernel.TRTLLM)
    assert axes.musts
    assert all(value in axes.values[name] for must in axes.musts for name, value in must.items())


def test_an_axis_that_is_left_with_nothing_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.axes.specification_of", lambda sut: replace(OWN, axes={"path": ("quick",)}))
    with pytest.raises(UsageError, match="of own leaves nothing of axis path: there are released, shared"):
        axes_of([tiny_model(1)], "own")


def test_a_mask_says_what_is_defined() -> None:
    dims = make_dims()
    assert isinstance(OWN.fields, tuple)
    spec = OWN.fields[1]
    inputs = make_inputs(dims, [1, 2, 3, 4])
    assert canonical(spec, dims, inputs, np.arange(8)).tolist() == [0, 1, 2, 3]
    assert position(spec, dims, inputs, 3) == (3, 0)


def test_a_refreshed_field_that_no_round_changes_proves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.fields.specification_of", lambda sut: OWN)
    case = make_case(tiny_model(1), path=Path.RELEASED, sut="own")
    program = make_program(case.model, 4, (((5, 6, 7, 8), (1, 2, 3, 4)), ((6, 7, 8, 9), (1, 2, 3, 4))))
    records = tuple(RoundRecord(n, one.name, (), None) for n, one in enumerate(program.rounds))
    observation = Observation(
        case, program, Expectation("released", (), {}, False, ()), {}, (), (), records, "released", {}
    )
    found = check(Subject.of(observation, Truth(), golden_checked=False)).findings
    assert [one.field for one in found if one.kind == "field_constant"] == ["constant"]
