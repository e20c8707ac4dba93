from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from harness.observation import HostFact, LeafFact
from harness.probe.leaves import leaf_tensors, span_bytes, walk_roots
from harness.probe.regions import Regions
from harness.sut.protocol import StepRoots


@dataclass(frozen=True)
class Inner:
    req: torch.Tensor
    extra: torch.Tensor | None = None


@dataclass(frozen=True)
class Outer:
    lengths: torch.Tensor
    inner: Inner
    rows: int = 3


class Slotted:
    __slots__ = ("a", "b", "unset")

    def __init__(self) -> None:
        self.a, self.b = torch.zeros(2), 5


class Pair(NamedTuple):
    left: torch.Tensor
    right: torch.Tensor


class Color(Enum):
    RED = 1


@dataclass
class Everything:
    items: list[Any] = field(
        default_factory=lambda: [torch.zeros(1), {"key": torch.zeros(1), 7: torch.ones(1)}]
    )
    pair: Pair = field(default_factory=lambda: Pair(torch.zeros(1), torch.zeros(1)))
    slotted: Slotted = field(default_factory=Slotted)
    color: Color = Color.RED
    dtype: torch.dtype = torch.int32


def outer() -> Outer:
    return Outer(torch.zeros(4, dtype=torch.int32), Inner(torch.zeros(4, dtype=torch.int64)))


def by_name(leaves: tuple[LeafFact, ...]) -> dict[str, LeafFact]:
    return {leaf.name: leaf for leaf in leaves}


def test_names_are_dotted_and_in_declared_order() -> None:
    assert list(leaf_tensors(Everything())) == [
        "items[0]",
        "items[1].key",
        "items[1][7]",
        "pair.left",
        "pair.right",
        "slotted.a",
    ]


def test_attributes_set_behind_a_frozen_dataclass_are_leaves_too() -> None:
    metadata = outer()
    object.__setattr__(metadata, "late", torch.zeros(2))
    object.__setattr__(metadata.inner, "later", [torch.zeros(2)])
    assert list(leaf_tensors(metadata)) == ["lengths", "inner.req", "inner.later[0]", "late"]


def test_host_values_are_facts() -> None:
    metadata = outer()
    walk = walk_roots((StepRoots({4: metadata}, metadata, {"all": Everything()}),), Regions())
    assert HostFact(0, 4, "inner.extra", "None") in walk.hosts
    assert HostFact(0, 4, "rows", "3") in walk.hosts
    assert HostFact(0, 0, "all.slotted.b", "5") in walk.hosts
    assert HostFact(0, 0, "all.color", "Color") in walk.hosts
    assert HostFact(0, 0, "all.dtype", "dtype") in walk.hosts


def test_cycles_end_and_aliases_are_reported_twice() -> None:
    tensor = torch.zeros(3)
    top: dict[str, Any] = {"a": tensor, "again": tensor}
    top["self"] = top
    top["list"] = [top, tensor]
    assert list(leaf_tensors(top)) == ["a", "again", "list[1]"]


def test_regions_and_bytes_of_views() -> None:
    base = torch.zeros(4, 10, dtype=torch.int32)
    metadata = {"whole": base, "columns": base[1:3, 2:5], "column": base.T[9], "scalar": base[3, 9]}
    leaves = by_name(walk_roots((StepRoots({2: metadata}, metadata),), Regions()).leaves)
    assert {leaf.region for leaf in leaves.values()} == {0}
    assert (leaves["columns"].start, leaves["columns"].stop) == (4 * 12, 4 * 25)
    assert (leaves["column"].start, leaves["column"].stop) == (4 * 9, 160)
    assert (leaves["scalar"].start, leaves["scalar"].stop) == (156, 160)
    assert leaves["columns"].stride == (10, 1)


def test_empty_leaves_occupy_nothing() -> None:
    metadata = {"none": torch.zeros(0, 5), "slice": torch.zeros(8)[4:4]}
    walk = walk_roots((StepRoots({1: metadata}, metadata),), Regions())
    assert all(leaf.start == leaf.stop for leaf in walk.leaves)


def test_shared_objects_have_the_same_region_in_every_step() -> None:
    regions, shared = Regions(), outer()
    roots = (StepRoots({4: shared}, shared), StepRoots({4: shared}, shared))
    leaves = walk_roots(roots, regions).leaves
    assert [leaf.step for leaf in leaves] == [0, 0, 1, 1]
    assert leaves[0].region == leaves[2].region
    assert leaves[0].region != leaves[1].region


def test_state_does_not_lead_to_the_metadata_of_buckets() -> None:
    four, eight = outer(), outer()
    backend = {
        "graphs": {4: four, 8: eight, 16: outer(), "wide": torch.zeros(9)},
        "now": four,
        "plain": {4: torch.zeros(2)},
    }
    walk = walk_roots((StepRoots({8: eight, 4: four}, four, backend),), Regions())
    assert [leaf.name for leaf in walk.leaves if leaf.bucket == 0] == ["graphs.wide", "plain[4]"]
    assert [leaf.bucket for leaf in walk.leaves] == [0, 0, 4, 4, 8, 8]
    assert walk.active == (4,)


@pytest.mark.parametrize("active", [None, "other"])
def test_a_foreign_active_object_belongs_to_no_bucket(active: object) -> None:
    assert walk_roots((StepRoots({4: outer()}, active),), Regions()).active == (-1,)


def test_freed_leaves_of_captured_graphs_are_named() -> None:
    regions = Regions()
    metadata = {"kept": torch.zeros(4), "dropped": torch.zeros(4)}
    roots = (StepRoots({4: metadata}, metadata),)
    captured = walk_roots(roots, regions).leaves
    assert walk_roots(roots, regions, captured).freed == ()
    metadata["dropped"] = torch.zeros(4)
    walk = walk_roots(roots, regions, captured)
    assert walk.freed == ((0, 4, "dropped"),)
    assert by_name(walk.leaves)["dropped"].region == 2


@given(
    st.lists(st.integers(0, 4), min_size=1, max_size=3).map(tuple),
    st.lists(st.integers(0, 7), min_size=3, max_size=3),
    st.sampled_from([1, 2, 4, 8]),
)
def test_span_covers_exactly_the_elements(shape: tuple[int, ...], strides: list[int], itemsize: int) -> None:
    stride = tuple(strides[: len(shape)])
    offsets = [
        sum(i * s for i, s in zip(index, stride, strict=True))
        for index in torch.ones(shape).nonzero().tolist()
    ]
    expected = (max(offsets) + 1) * itemsize if offsets else 0
    assert span_bytes(shape, stride, itemsize) == expected
