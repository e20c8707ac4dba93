"""The whole field table, as `field_table.txt` shows it: what exists where, of which shape, shared with what.

After a change that is meant, `python -m tests.test_field_table` writes the page anew: review how it differs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from harness.fields import Dims, FieldSpec, Live, Sharing, fields_for, plan_is_written
from harness.specification import Specification, specification_of
from harness.types import Kernel, Mode, Role
from tests.helpers import make_case, make_dims, tiny_model

PAGE = Path(__file__).with_name("field_table.txt")


def line(field: FieldSpec, dims: Dims) -> str:
    said = [field.name, f"{field.dtype}{list(field.shape(dims))}"]
    if field.role is not Role.REFRESHED:
        said.append(field.role.value)
    if field.live is not Live.ALL:
        said.append(f"live={field.live.value}")
    if field.sharing(dims) is not Sharing.OWN:
        said.append(field.sharing(dims).value)
    if field.plan_lengths:
        said.append(f"plans {field.plan_lengths}")
    said += [flag for flag in ("init_once_first", "derived") if getattr(field, flag)]
    return "  ".join(said)


def page() -> Iterator[str]:
    for mode in Mode:
        for pool in (1, 4):
            for kernel in (Kernel.FA3, Kernel.FLASHMLA_KV):
                dims = replace(make_dims(mode, pool, bucket=3, width=960), kernel=kernel)
                written = "written" if plan_is_written(dims) else "not written"
                yield f"{mode.value}, P = {pool}, {kernel.value}, bucket 3, N = 5, plans {written}"
                yield from (f"    {line(field, dims)}" for field in fields_for(dims).values())


def test_the_table_is_the_one_shown() -> None:
    assert list(page()) == PAGE.read_text(encoding="utf-8").splitlines()


@pytest.mark.parametrize("mode", list(Mode))
def test_dimensions_of_a_case(mode: Mode) -> None:
    model = tiny_model()
    case = make_case(model, mode=mode, kernel=Kernel.TRTLLM, steps=3)
    dims = Dims.of(case, 2)
    geometry = model.geometries["tape"]
    assert dims == Dims(
        mode=mode, kernel=Kernel.TRTLLM, pool=4, topk=64, width=1024, bucket=2,
        draft_tokens=case.metadata_tokens, num_sms=8, plan=geometry.plan, own=specification_of("embedded"),
    )  # fmt: skip
    each = 1 if mode is Mode.DECODE else case.metadata_tokens
    assert (dims.expanded, dims.rows, dims.written, dims.pages) == (
        mode is not Mode.DECODE,
        2 * each,
        each,
        16,
    )
    assert replace(dims, width=65).pages == 2


def test_a_specification_of_its_own_says_what_else_matters(monkeypatch: pytest.MonkeyPatch) -> None:
    case = make_case(steps=3)
    own = Specification(
        fields=lambda dims: (FieldSpec(f"of {dims.steps} steps", "int32", lambda dims: (dims.bucket,)),),
        expected=lambda dims, inputs: {},
        matters=lambda case: {"steps": case.variant.steps, "path": case.path},
    )
    plain = Dims.of(case, 2)
    monkeypatch.setattr("harness.fields.specification_of", {case.sut: own}.get)
    dims = Dims.of(case, 2)
    assert dims == replace(plain, own=own, steps=3, path=case.path)
    assert list(fields_for(dims)) == ["of 3 steps"]


@pytest.mark.parametrize("mode", list(Mode))
def test_two_is_a_pool(mode: Mode) -> None:
    assert fields_for(make_dims(mode, pool=2)).keys() == fields_for(make_dims(mode, pool=4)).keys()


@pytest.mark.parametrize(("bucket", "written"), [(1, False), (2, True), (64, True), (65, False)])
def test_plans_are_written_within_their_bounds(bucket: int, written: bool) -> None:
    assert plan_is_written(make_dims(bucket=bucket)) is written


if __name__ == "__main__":
    PAGE.write_text("\n".join(page()) + "\n", encoding="utf-8")
