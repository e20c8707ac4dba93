from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from harness.probe.extent import Extent

DTYPES = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@st.composite
def extents(draw: st.DrawFn) -> Extent:
    itemsize = draw(st.sampled_from([1, 2, 4, 8]))
    start = draw(st.integers(0, 24))
    rank = draw(st.integers(0, 3))
    shape = tuple(draw(st.integers(0 if rank > 2 else 1, 3)) for _ in range(rank))
    stride = tuple(draw(st.integers(0, 5)) for _ in range(rank))
    return Extent(start, shape, stride, itemsize)


def occupied(extent: Extent) -> set[int]:
    """The bytes, found by looping over every index."""
    found: set[int] = set()
    for index in np.ndindex(*extent.shape):
        first = extent.start + extent.itemsize * sum(i * s for i, s in zip(index, extent.stride, strict=True))
        found.update(range(first, first + extent.itemsize))
    return found


@given(extents(), extents())
def test_touches_means_a_common_byte(a: Extent, b: Extent) -> None:
    assert a.touches(b) == b.touches(a) == bool(occupied(a) & occupied(b))


@given(extents())
def test_span_and_dense_describe_the_bytes(extent: Extent) -> None:
    found = occupied(extent)
    start, stop = extent.span
    assert (start, stop) == ((min(found), max(found) + 1) if found else (extent.start, extent.start))
    if extent.dense and found:
        assert found == set(range(start, stop))


@given(extents(), st.integers(0, 40), st.integers(0, 40))
def test_painted_marks_each_byte_of_the_window(extent: Extent, low: int, size: int) -> None:
    expected = [byte in occupied(extent) for byte in range(low, low + size)]
    assert extent.painted(low, low + size, 1).tolist() == expected


@given(st.sets(st.integers(0, 20)), st.sampled_from([1, 2, 4, 8]))
def test_elements_are_exact(elements: set[int], itemsize: int) -> None:
    tensor = torch.zeros(21, dtype=DTYPES[itemsize])
    extent = Extent.of_elements(tensor, torch.tensor(sorted(elements), dtype=torch.int32))
    for index in range(21):
        assert extent.touches(Extent.of_tensor(tensor[index : index + 1])) == (index in elements)


def test_elements_are_painted_byte_by_byte() -> None:
    tensor = torch.zeros(8, dtype=torch.int32)
    extent = Extent.of_elements(tensor, torch.tensor([2, 4], dtype=torch.int32))
    assert extent.elements is not None
    assert extent.elements.dtype == np.int64
    assert extent.painted(0, 32, 1).tolist() == [byte // 4 in (2, 4) for byte in range(32)]
    assert extent.painted(0, 32, 4).tolist() == [element in (2, 4) for element in range(8)]
    nothing = Extent.of_elements(tensor, torch.tensor([], dtype=torch.int64))
    assert nothing.span == (0, 0)
    assert not nothing.painted(0, 32, 4).any()


@given(extents(), st.integers(0, 9))
def test_moved_are_the_same_bytes_further_on(extent: Extent, offset: int) -> None:
    assert occupied(extent.moved(offset)) == {byte + offset for byte in occupied(extent)}
    assert extent.moved(0) is extent


def test_elements_move_as_well() -> None:
    extent = Extent.of_elements(torch.zeros(8, dtype=torch.int32), torch.tensor([2, 4])).moved(3)
    assert extent.span == (11, 23)
    assert extent.painted(0, 40, 1).tolist() == [(byte - 3) // 4 in (2, 4) for byte in range(40)]


def test_extents_that_are_not_aligned_to_each_other() -> None:
    one, other = Extent(1, (2,), (3,), 4), Extent(7, (2,), (3,), 4)
    assert occupied(one).isdisjoint(occupied(other))
    assert not one.touches(other)
    assert one.touches(Extent(16, (2,), (3,), 4))


def test_a_contiguous_view_is_dense_and_a_column_is_not() -> None:
    table = torch.zeros(4, 8, dtype=torch.int32)
    assert Extent.of_tensor(table).dense
    assert Extent.of_tensor(table[1:3]).dense
    assert Extent.of_tensor(table.T).dense
    assert Extent.of_tensor(table[0].expand(3, 8)).dense
    assert not Extent.of_tensor(table[:, :3]).dense
