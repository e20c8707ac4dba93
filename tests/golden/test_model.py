from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from harness.compare import Mismatch, tolerance_of
from harness.digest import value_digest
from harness.fields import FIELDS
from harness.golden.codec import Inconsistent, decode, encode
from harness.golden.model import Policy, Stored, difference, output_difference, spaced

Array = NDArray[Any]
SAMPLES = 4
POLICY = Policy(tier="tensors", full_draft_tokens=6)
SPECS = {field.name: field for field in FIELDS}
vectors = hnp.arrays("int32", st.integers(0, 30), elements=st.integers(-3, 3))


def stored(value: Array, full: bool = False) -> Stored:
    return Stored.of(value, full=full, samples=SAMPLES)


@given(st.integers(0, 500), st.integers(0, 40))
def test_spaced_indices_are_distinct_and_reach_both_ends(size: int, count: int) -> None:
    indices = spaced(size, count)
    assert indices.size == min(size, count)
    assert np.all(np.diff(indices) > 0)
    if indices.size > 1:
        assert (indices[0], indices[-1]) == (0, size - 1)


@given(vectors, vectors, st.booleans(), st.booleans())
def test_difference_is_none_exactly_for_equal_values(
    one: Array, other: Array, one_full: bool, other_full: bool
) -> None:
    mismatch = difference(stored(one, one_full), stored(other, other_full))
    assert (mismatch is None) == np.array_equal(one, other)
    if mismatch is None or mismatch.kind == "shape":
        assert mismatch is None or one.size != other.size
        return
    if one_full and other_full:
        assert mismatch.index == int(np.flatnonzero(one != other)[0])
    if mismatch.index >= 0:
        found = (mismatch.expected, mismatch.got)
        assert found == (str(one[mismatch.index]), str(other[mismatch.index]))
        assert found[0] != found[1]
    else:
        assert mismatch.count == one.size


def test_where_samples_agree_the_digests_tell() -> None:
    one = np.zeros(30, np.int32)
    other = one.copy()
    other[1] = 7
    mismatch = difference(stored(one), stored(other))
    assert mismatch is not None
    assert (mismatch.kind, mismatch.count, mismatch.index) == ("value", 30, -1)
    assert mismatch.expected == f"sha256 {value_digest(one)[:12]}.."


def test_dtype_and_size() -> None:
    one = stored(np.zeros(3, np.int32))
    assert difference(one, stored(np.zeros(3, np.int64))) == Mismatch("dtype", 3, -1, "int32", "int64")
    assert difference(one, stored(np.zeros(4, np.int32))) == Mismatch(
        "shape", 4, -1, "3 elements", "4 elements"
    )


@pytest.mark.parametrize("full", [False, True])
def test_nan_never_equals(full: bool) -> None:
    value = np.array([1.0, np.nan], np.float32)
    for mismatch in (
        difference(stored(value, full), stored(value, full)),
        difference(stored(value, full), stored(value, full), tolerance=tolerance_of("float32")),
        output_difference(stored(value, full), stored(value, full), "fp32"),
    ):
        assert mismatch is not None
        assert mismatch.index == 1


def test_outputs_use_the_tolerance_of_their_precision() -> None:
    one = np.array([1.0, 2.0], np.float32)
    near, far = one * np.float32(1.00005), one * np.float32(1.01)
    assert output_difference(stored(one, True), stored(near, True), "fp32") is None
    assert output_difference(stored(one, True), stored(far, True), "fp32") is not None
    assert output_difference(stored(one, True), stored(far, True), "bf16") is None
    bits = np.array([0x3F80], np.uint16)
    assert output_difference(stored(bits, True), stored(bits + np.uint16(1), True), "bf16") is None
    assert output_difference(stored(bits, True), stored(bits + np.uint16(1), True), "fp32") is not None
    tokens = np.array([5, 6], np.int64)
    assert output_difference(stored(tokens, True), stored(tokens + 1, True), "bf16") is not None


def test_a_stored_value_is_a_copy() -> None:
    value = np.arange(5, dtype=np.int32)
    one = stored(value, True)
    value[0] = 9
    assert one.full is not None
    assert one.full[0] == 0


@pytest.mark.parametrize(
    ("field", "elements", "draft_tokens", "bucket", "full"),
    [
        ("cache_seqlens_int32", 8, 6, 8, True),
        ("cache_seqlens_int32", 8, 3, 32, True),  # no longer than its digest
        ("cache_seqlens_int32", 9, 3, 8, False),
        ("cache_seqlens_int32", 32, 6, 32, False),
        ("paged_mqa_schedule_metadata", 256, 6, 8, True),
        ("paged_mqa_schedule_metadata", 257, 6, 8, False),
        ("page_table_1", 64, 6, 8, True),
        ("page_table_1", 65, 6, 8, False),
        ("pooled_real_page_table", 65, 6, 1, False),
    ],
)
def test_what_is_kept_in_full(field: str, elements: int, draft_tokens: int, bucket: int, full: bool) -> None:
    value = np.zeros(elements, np.int32)
    assert POLICY.full(SPECS[field], value, draft_tokens, bucket) is full
    digests = Policy(tier="digests", full_draft_tokens=6)
    assert digests.full(SPECS[field], value, draft_tokens, bucket) is False


def test_which_rounds_are_kept() -> None:
    assert POLICY.kept(4, 6) == {0, 1, 2, 3}
    assert POLICY.kept(21, 6) == {0, 4, 8, 12, 16, 20}
    assert POLICY.kept(21, 3) == {0, 7, 13, 20}
    assert POLICY.kept_outputs(21, 6) == {0, 20}
    assert POLICY.kept_outputs(21, 3) == {0}


rows = st.lists(
    st.dictionaries(
        st.sampled_from(["a", "b.c", "d"]),
        st.tuples(
            st.one_of(
                vectors,
                hnp.arrays("float32", st.integers(0, 9), elements=st.integers(0, 3)),
                hnp.arrays("uint16", st.integers(0, 9)),
            ),
            st.booleans(),
        ),
    ),
    max_size=6,
)


@settings(max_examples=50)
@given(rows)
def test_a_table_comes_back_from_its_tensors(table: list[dict[str, tuple[Array, bool]]]) -> None:
    given_rows = [{name: stored(*pair) for name, pair in row.items()} for row in table]
    tensors = encode("t", given_rows)
    found = decode("t", tensors, len(given_rows))
    assert len(found) == len(given_rows)
    for before, after in zip(given_rows, found, strict=True):
        assert before.keys() == after.keys()
        for name in before:
            one, other = before[name], after[name]
            assert (one.digest, one.size, one.dtype) == (other.digest, other.size, other.dtype)
            assert (one.full is None) == (other.full is None)
            assert np.array_equal(one.samples, other.samples)
            if one.full is not None and other.full is not None:
                assert np.array_equal(one.full, other.full)


def test_equal_values_are_kept_once() -> None:
    value = np.arange(100, dtype=np.int32)
    tensors = encode("t", [{"a": stored(value, True)}] * 50)
    assert tensors["t/a:int32/values"].size == 100


def break_index(tensors: dict[str, Array]) -> None:
    tensors["t/a:int32/index"][0] = 9


def break_sizes(tensors: dict[str, Array]) -> None:
    tensors["t/a:int32/size"][0] += 1


def break_samples(tensors: dict[str, Array]) -> None:
    tensors["t/a:int32/samples"] = tensors["t/a:int32/samples"][1:]


def break_dtype(tensors: dict[str, Array]) -> None:
    tensors["t/a:int32/values"] = tensors["t/a:int32/values"].astype(np.int64)


def break_part(tensors: dict[str, Array]) -> None:
    del tensors["t/a:int32/digest"]


def break_twice(tensors: dict[str, Array]) -> None:
    for part in ("index", "size", "full", "digest", "sampled"):
        tensors[f"t/a:int64/{part}"] = tensors[f"t/a:int32/{part}"]
    for part in ("values", "samples"):
        tensors[f"t/a:int64/{part}"] = tensors[f"t/a:int32/{part}"].astype(np.int64)


@pytest.mark.parametrize(
    ("damage", "text"),
    [
        (break_index, "points beyond its 2 values"),
        (break_sizes, "its sizes say"),
        (break_samples, "samples has 3 elements"),
        (break_dtype, "is int64, its name says int32"),
        (break_part, "no tensor 't/a:int32/digest'"),
        (break_twice, "in two dtypes"),
    ],
)
def test_tensors_that_do_not_fit(damage: Any, text: str) -> None:
    tensors = encode("t", [{"a": stored(np.arange(9, dtype=np.int32), full)} for full in (True, False)])
    decode("t", tensors, 2)
    with pytest.raises(Inconsistent, match="index has 2 entries, the manifest lists 3"):
        decode("t", tensors, 3)
    damage(tensors)
    with pytest.raises(Inconsistent, match=text):
        decode("t", tensors, 2)
