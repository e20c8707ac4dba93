"""Snapshots read the same elements on a device as the field table does in NumPy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from harness.fields import canonical, fields_for
from harness.oracle import expected
from harness.probe.snapshot import SMALL, Snapshot, Values, to_numpy
from harness.truth import RoundTruth, Truth
from harness.types import Mode
from tests.helpers import make_case, make_program, tiny_model


def round_truth(mode: Mode, lengths: tuple[int, ...]) -> RoundTruth:
    model = tiny_model()
    case = make_case(model, mode=mode, bucket=3)
    program = make_program(model, 3, ((lengths, (2, 5, 3)),))
    return Truth().of(case, program, program.rounds[0])


@given(st.lists(st.integers(6, 1000), min_size=3, max_size=3), st.sampled_from(list(Mode)))
def test_device_mask_equals_the_field_table(lengths: list[int], mode: Mode) -> None:
    truth = round_truth(mode, tuple(lengths))
    values = Values()
    snapshot = Snapshot(truth, values)
    full = expected(truth.dims, truth.inputs)
    for name, field in fields_for(truth.dims).items():
        cell = snapshot.cell(0, name, torch.from_numpy(full[name].copy()))
        assert cell is not None
        assert cell.value == truth.expected[name].digest
        want = canonical(field, truth.dims, truth.inputs, full[name])
        on_device = snapshot.on_device(field, torch.from_numpy(full[name].copy()))
        assert np.array_equal(to_numpy(on_device), want)
        assert np.array_equal(values.by_digest[cell.value], want)


def test_equal_leaves_are_kept_once_and_different_ones_apart() -> None:
    truth = round_truth(Mode.DECODE, (10, 20, 30))
    values = Values()
    snapshot = Snapshot(truth, values)
    one = torch.tensor([10, 20, 30], dtype=torch.int32)
    cells = [snapshot.cell(step, "cache_seqlens_int32", one.clone()) for step in range(3)]
    other = snapshot.cell(3, "cache_seqlens_int32", one + 1)
    assert len({cell.value for cell in cells if cell}) == 1
    assert other is not None
    assert cells[0] is not None
    assert other.value != cells[0].value
    assert len(values.by_digest) == 2


def test_the_sentinel_is_counted_in_defined_elements_only() -> None:
    truth = round_truth(Mode.DECODE, (64, 64, 65))
    table = torch.full((3, 16), 7, dtype=torch.int32)
    table[:, 1:] = 9
    cell = Snapshot(truth, Values()).cell(0, "real_page_table", table, sentinel=9)
    assert cell is not None
    assert cell.poisoned == 1


def test_a_leaf_of_another_shape_is_kept_whole() -> None:
    truth = round_truth(Mode.DECODE, (10, 20, 30))
    cell = Snapshot(truth, Values()).cell(0, "cache_seqlens_int32", torch.zeros(4, dtype=torch.int64))
    assert cell is not None
    assert cell.value != truth.expected["cache_seqlens_int32"].digest


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.int64])
def test_to_numpy_keeps_the_bits(dtype: torch.dtype) -> None:
    tensor = torch.tensor([1.5, -0.0, 3.0]).to(dtype)
    got = to_numpy(tensor)
    assert got.tobytes() == tensor.view(torch.uint8).numpy().tobytes()


@pytest.mark.parametrize("size", [SMALL // 4, SMALL])
def test_kept_values_are_copies_and_told_apart_by_every_byte(size: int) -> None:
    values = Values()
    array = np.zeros(size, np.int32)
    first = values.add_copy(array)
    assert values.add_copy(array.copy()) == first
    array[-1] = 1
    second = values.add_copy(array)
    assert second != first
    assert values.by_digest[first][-1] == 0
    assert values.add_copy(array.view(np.uint32)) not in {first, second}


def test_equal_floats_of_other_bytes_are_told_apart() -> None:
    values = Values()
    zeros = np.zeros(SMALL, np.float32)
    assert values.add_copy(zeros) != values.add_copy(-zeros)
