from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from harness.compare import BLOCK, Mismatch, Tolerance, close, compare, decode, tolerance_of
from harness.errors import HarnessError

Array = NDArray[Any]
DTYPES = ("bool", "int8", "uint8", "int16", "uint16", "int32", "int64", "float16", "float32", "float64")
arrays = st.sampled_from(DTYPES).flatmap(
    lambda dtype: hnp.arrays(dtype, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=6))
)
EXACT = Tolerance(0.0, 0.0)


@settings(max_examples=50)
@given(arrays)
def test_a_copy_is_equal_unless_it_holds_nan(array: Array) -> None:
    nans = int(np.isnan(array).sum()) if array.dtype.kind == "f" else 0
    mismatch = compare(array, array.copy())
    assert (mismatch.count if mismatch else 0) == nans


@settings(max_examples=50)
@given(arrays)
def test_allowed_nans_compare_by_their_bits(array: Array) -> None:
    assert compare(array, array.copy(), allow_nan=True) is None


def test_allowed_nans_are_equal_and_others_are_not() -> None:
    array = np.array([np.nan, 1.0], np.float32)
    assert compare(array, array.copy(), allow_nan=True) is None
    mismatch = compare(array, array.copy())
    assert mismatch is not None
    assert (mismatch.count, mismatch.index) == (1, 0)
    assert compare(array[1:], array[1:].copy()) is None


@settings(max_examples=50)
@given(arrays.filter(lambda array: array.size > 0), st.data())
def test_a_flipped_bit_is_found_where_it_is(array: Array, data: st.DataObject) -> None:
    array = np.zeros_like(array) if array.dtype.kind in "fb" else array
    index = data.draw(st.integers(0, array.size - 1))
    changed = array.copy()
    flat = changed.reshape(-1).view(f"u{array.dtype.itemsize}")
    flat[index] ^= 1 if array.dtype == bool else 1 << data.draw(st.integers(0, 8 * array.dtype.itemsize - 1))
    mismatch = compare(array, changed, allow_nan=True)
    assert mismatch is not None
    assert (mismatch.kind, mismatch.count, mismatch.index) == ("value", 1, index)


@settings(max_examples=50)
@given(st.integers(1, 200_000), st.data())
def test_count_and_first_index_over_many_blocks(size: int, data: st.DataObject) -> None:
    array = np.arange(size, dtype=np.int32)
    where = data.draw(st.lists(st.integers(0, size - 1), unique=True, min_size=1, max_size=5))
    changed = array.copy()
    changed[where] += 1
    assert compare(array, changed) == Mismatch(
        "value", len(where), min(where), str(min(where)), str(min(where) + 1)
    )


def test_the_first_difference_is_the_first_of_all_blocks() -> None:
    array = np.zeros(3 * BLOCK, np.int32)
    changed = array.copy()
    changed[[0, BLOCK - 1, BLOCK, 2 * BLOCK + 5]] = 7
    assert compare(array, changed) == Mismatch("value", 4, 0, "0", "7")
    assert compare(array[1:], changed[1:]) == Mismatch("value", 3, BLOCK - 2, "0", "7")


def test_the_sign_of_zero_is_a_difference() -> None:
    mismatch = compare(np.zeros(3), np.array([0.0, -0.0, 0.0]))
    assert mismatch == Mismatch("value", 1, 1, "0.0", "-0.0")


def test_nan_text_shows_the_bits() -> None:
    mismatch = compare(np.array([np.nan], np.float32), np.array([np.nan], np.float32))
    assert mismatch is not None
    assert mismatch.expected == "nan (0x7fc00000)"


@pytest.mark.parametrize(
    ("expected", "got", "mismatch"),
    [
        (np.zeros(2, np.int32), np.zeros(2, np.int64), Mismatch("dtype", 2, -1, "int32", "int64")),
        (np.zeros((2, 1)), np.zeros((1, 2)), Mismatch("shape", 2, -1, "(2, 1)", "(1, 2)")),
        (np.zeros((2, 2)), np.zeros(2), Mismatch("shape", 4, -1, "(2, 2)", "(2,)")),
        (np.zeros(()), np.zeros(1), Mismatch("shape", 1, -1, "()", "(1,)")),
    ],
)
def test_dtype_and_shape_come_first(expected: Array, got: Array, mismatch: Mismatch) -> None:
    assert compare(expected, got) == mismatch
    assert close(expected, got, EXACT) == mismatch


def test_strides_only_if_asked_for() -> None:
    expected, got = np.zeros((3, 2)), np.zeros((2, 3)).T
    assert compare(expected, got) is None
    assert compare(expected, got, strides=True) == Mismatch("strides", 6, -1, "(16, 8)", "(8, 24)")


def test_views_are_compared_in_c_order() -> None:
    base = np.arange(12, dtype=np.int32).reshape(3, 4)
    other = base.copy().T
    assert compare(base.T, other) is None
    changed = other.copy()
    changed[2, 1] = -1
    assert compare(base.T, changed) == Mismatch("value", 1, 7, "6", "-1")


@pytest.mark.parametrize("other", [slice(None), slice(2, None), slice(None, None, 2)])
def test_shared_memory_is_refused(other: slice) -> None:
    array = np.arange(8, dtype=np.int32)
    with pytest.raises(HarnessError) as caught:
        compare(array[: array[other].size], array[other])
    assert str(caught.value) == (
        "the two arrays share memory: comparing them proves nothing; copy one of them"
    )


def test_interleaved_views_share_nothing() -> None:
    array = np.zeros(8, np.int32)
    assert compare(array[::2], array[1::2]) is None


def test_views_that_are_too_hard_to_tell_apart_count_as_shared() -> None:
    steps = np.random.default_rng(1).integers(1_000_000, 2_000_000, 18)
    memory = np.zeros(int(steps.sum()) + 1, np.int8)
    sums = np.lib.stride_tricks.as_strided(memory, (2,) * 18, tuple(map(int, steps)))
    middle = int(steps.sum()) // 2
    assert not np.shares_memory(sums, memory[middle : middle + 1]), "no sum of some steps is there"
    with pytest.raises(HarnessError, match="share memory"):
        compare(sums, memory[middle : middle + 1])


def test_objects_are_refused() -> None:
    with pytest.raises(HarnessError) as caught:
        compare(np.array([None]), np.array([None]))
    assert str(caught.value) == "cannot compare object: only booleans, integers and floats to 64 bits"
    with pytest.raises(HarnessError, match="cannot compare"):
        compare(np.zeros(1, np.longdouble), np.zeros(1, np.longdouble))


RAW = {
    "bfloat16": torch.bfloat16,
    "float8_e4m3fn": torch.float8_e4m3fn,
    "float8_e5m2": torch.float8_e5m2,
    "float8_e4m3fnuz": torch.float8_e4m3fnuz,
    "float8_e5m2fnuz": torch.float8_e5m2fnuz,
}


@pytest.mark.parametrize("name", RAW)
def test_raw_bits_decode_as_torch_reads_them(name: str) -> None:
    codes = np.arange(65536, dtype=np.uint16) if name == "bfloat16" else np.arange(256, dtype=np.uint8)
    theirs = torch.from_numpy(codes.copy()).view(RAW[name]).to(torch.float32).numpy()
    ours = decode(codes, name)
    nan = np.isnan(theirs)
    np.testing.assert_array_equal(np.isnan(ours), nan)
    assert compare(theirs[~nan], ours[~nan]) is None


@pytest.mark.parametrize("name", RAW)
def test_raw_nans_never_equal(name: str) -> None:
    codes = np.arange(256, dtype=np.uint8)
    if name == "bfloat16":
        codes = np.array([0x7FC0, 0xFF81, 0x7F80, 0x3F80], np.uint16)
    nans = int(np.isnan(decode(codes, name)).sum())
    mismatch = compare(codes, codes.copy(), dtype=name)
    assert mismatch is not None
    assert mismatch.count == nans > 0
    assert compare(codes, codes.copy()) is None


def test_raw_bits_of_another_width_are_refused() -> None:
    with pytest.raises(HarnessError) as caught:
        decode(np.zeros(2, np.uint8), "bfloat16")
    assert str(caught.value) == "bfloat16 comes as uint16, not as uint8"
    with pytest.raises(HarnessError) as caught:
        compare(np.zeros(2, np.uint8), np.zeros(2, np.uint8), dtype="float4")
    assert str(caught.value) == f"raw dtype 'float4' is none of {', '.join(RAW)}"


def test_raw_differences_are_shown_as_numbers() -> None:
    bits = np.array([0x3F80, 0x4000], np.uint16)
    assert compare(bits, bits + np.array([0, 1], np.uint16), dtype="bfloat16") == Mismatch(
        "value", 1, 1, "2.0", "2.015625"
    )
    assert compare(bits, bits + np.array([0, 1], np.uint16)) == Mismatch("value", 1, 1, "16384", "16385")
    mismatch = compare(bits, np.array([0x7FC1, 0x4000], np.uint16), dtype="bfloat16")
    assert mismatch == Mismatch("value", 1, 0, "1.0", "nan (0x7fc1)")


def test_floats_that_are_no_raw_bits_are_read_as_they_are() -> None:
    array = np.array([1.0, np.nan])
    assert compare(array[:1], array[:1].copy(), dtype="bfloat16") is None
    assert compare(array, array.copy(), dtype="bfloat16") == Mismatch(
        "value", 1, 1, "nan (0x7ff8000000000000)", "nan (0x7ff8000000000000)"
    )
    assert close(array[:1], array[:1] + 1e-9, tolerance_of("float32"), dtype="bfloat16") is None


@settings(max_examples=50)
@given(hnp.arrays("float32", 20), hnp.arrays("float32", 20), st.floats(0, 0.1), st.floats(0, 0.1))
def test_close_agrees_with_its_definition(expected: Array, got: Array, rtol: float, atol: float) -> None:
    def near(wanted: float, found: float) -> bool:
        if not np.isfinite(wanted) or not np.isfinite(found):
            return wanted == found
        return abs(found - wanted) <= atol + rtol * abs(wanted)

    far = [i for i in range(20) if not near(float(expected[i]), float(got[i]))]
    mismatch = close(expected, got, Tolerance(rtol, atol))
    assert (mismatch.count, mismatch.index) == (len(far), far[0]) if mismatch else not far


@pytest.mark.parametrize(
    ("expected", "got"),
    [(np.nan, np.nan), (np.inf, -np.inf), (np.inf, 1e38), (1.0, np.nan), (1.0, 1.1)],
)
def test_close_fails(expected: float, got: float) -> None:
    found = close(
        np.array([0.0, expected], np.float32), np.array([0.0, got], np.float32), tolerance_of("float32")
    )
    assert found is not None
    assert (found.count, found.index) == (1, 1)


def test_close_passes_equal_infinities_and_small_differences() -> None:
    expected = np.array([np.inf, -np.inf, 1.0, 0.0], np.float32)
    got = np.array([np.inf, -np.inf, 1.00009, 0.000009], np.float32)
    assert close(expected, got, tolerance_of("float32")) is None


def test_close_looks_at_no_strides() -> None:
    assert close(np.ones((3, 2)), np.ones((2, 3)).T, EXACT) is None


def test_tolerances() -> None:
    assert tolerance_of("float32") == Tolerance(rtol=1e-4, atol=1e-5)
    assert tolerance_of("bfloat16") == Tolerance(rtol=2e-2, atol=2e-2)


def test_close_reads_bf16_bits() -> None:
    bits = np.array([0x3F80, 0x4000], np.uint16)  # 1.0, 2.0
    off = bits + np.uint16(1)  # 1.0078, 2.0156
    assert close(bits, off, tolerance_of("bfloat16"), dtype="bfloat16") is None
    mismatch = close(bits, off, tolerance_of("float32"), dtype="bfloat16")
    assert mismatch == Mismatch("value", 2, 0, "1.0", "1.0078125")


def test_a_tolerance_for_integers_is_refused() -> None:
    with pytest.raises(HarnessError) as caught:
        close(np.zeros(2, np.int32), np.zeros(2, np.int32), EXACT)
    assert str(caught.value) == "a tolerance needs floats, not int32; compare integers exactly"
    with pytest.raises(HarnessError) as caught:
        tolerance_of("float16")
    assert str(caught.value) == "no tolerance is agreed for float16; outputs are float32 or bfloat16"
