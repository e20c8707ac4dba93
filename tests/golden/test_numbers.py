import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.golden.model import Stored
from harness.golden.numbers import apart, ulps


def whole(values: list[float], dtype: str = "int32") -> Stored:
    return Stored.of(np.array(values, dtype), full=True, samples=0)


def test_integers_say_how_many_the_first_and_the_largest() -> None:
    text = apart(whole([1, 2, 3, 4]), whole([1, 5, 3, 104]))
    assert text == "2 differ, first element 1: 2 -> 5; largest difference 100 at element 3"


def test_floats_say_their_distance_in_units_of_the_last_place() -> None:
    old = np.array([1.0, -2.0], np.float32)
    new = np.nextafter(old, np.float32(9))
    text = apart(Stored.of(old, full=True, samples=0), Stored.of(new, full=True, samples=0))
    assert text.startswith("2 differ, first element 0: 1 -> 1; largest difference 1.19209e-07 at element")
    assert text.endswith("1 ulp at most")


def test_raw_bfloat16_is_shown_as_its_values() -> None:
    one, three = np.array([0x3F80, 0], np.uint16), np.array([0x4040, 0], np.uint16)
    old, new = (Stored.of(bits, full=True, samples=0) for bits in (one, three))
    text = apart(old, new, "bfloat16")
    assert text.startswith("1 differ, first element 0: 1 -> 3; largest difference 2 at element 0")


def test_samples_and_digests_say_what_they_can() -> None:
    old, new = np.arange(100, dtype=np.int32), np.arange(100, dtype=np.int32)
    new[99] += 7
    kept = Stored.of(old, full=False, samples=4)
    assert apart(kept, Stored.of(new, full=False, samples=4)) == (
        "1 of 4 samples differ, first element 99: 99 -> 106; largest difference 7 at element 99"
    )
    bare = Stored.of(old, full=False, samples=0)
    assert apart(bare, Stored.of(new, full=False, samples=0)).startswith("kept as digests only")
    new[99], new[1] = 99, 0
    assert apart(kept, Stored.of(new, full=False, samples=4)) == "equal at all 4 samples, another digest"


def test_other_dtypes_and_sizes_are_words() -> None:
    assert apart(whole([1]), whole([1], "int64")) == "dtype int32 -> int64"
    assert apart(whole([1]), whole([1, 2])) == "1 elements -> 2 elements"


def test_not_a_number_is_named() -> None:
    text = apart(whole([1, 2], "float32"), whole([1, float("nan")], "float32"))
    assert text.endswith("not a number at element 1")


@given(st.floats(width=32, min_value=-(2.0**127), max_value=2.0**127))
def test_a_neighbour_is_one_unit_away_and_a_value_none(value: float) -> None:
    one = np.array([value], np.float32)
    assert ulps(one, one.copy()) == 0
    neighbour = np.nextafter(one, np.float32(np.inf))
    assert ulps(one, neighbour) == 1


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_plus_and_minus_zero_are_no_units_apart(dtype: str) -> None:
    assert ulps(np.array([0.0], dtype), np.array([-0.0], dtype)) == 0
