from __future__ import annotations

import torch

from harness.probe.regions import Regions


def test_numbers_follow_first_appearance_and_are_stable() -> None:
    regions = Regions()
    a, b = torch.zeros(4), torch.zeros(4)
    assert [regions.locate(t)[0] for t in (b, a, b, a[1:])] == [0, 1, 0, 1]
    assert len(regions) == 2


def test_keeps_nothing_alive_and_sees_the_end_of_a_region() -> None:
    regions = Regions()
    tensor = torch.zeros(1024)
    region, _ = regions.locate(tensor)
    view = tensor[3:]
    del tensor
    assert regions.alive(region)
    del view
    assert not regions.alive(region)


def test_reuse_of_an_address_is_a_new_region() -> None:
    regions = Regions()
    addresses: dict[int, int] = {}
    reused = 0
    for turn in range(400):
        tensor = torch.zeros(64 << turn % 4 * 4)  # one of these sizes comes from a list of free blocks
        region, base = regions.locate(tensor)
        reused += tensor.data_ptr() in addresses
        assert base == 0
        assert region not in addresses.values()
        addresses[tensor.data_ptr()] = region
        del tensor
    assert reused, "the allocator gave no address twice: the test shows nothing"


def test_foreign_storage_over_live_memory_joins_its_region_at_its_offset() -> None:
    regions = Regions()
    owner = torch.arange(64, dtype=torch.int32)
    region, _ = regions.locate(owner)
    foreign = torch.frombuffer(owner.numpy()[8:24], dtype=torch.int32)
    assert foreign.untyped_storage()._cdata != owner.untyped_storage()._cdata
    assert regions.locate(foreign) == (region, 32)


def test_the_larger_storage_may_be_seen_last() -> None:
    regions = Regions()
    owner = torch.arange(64, dtype=torch.int32)
    part = torch.frombuffer(owner.numpy()[8:24], dtype=torch.int32)
    other = torch.frombuffer(owner.numpy()[40:48], dtype=torch.int32)
    assert regions.locate(part) == (0, 0)
    assert regions.locate(other) == (1, 0)
    assert regions.locate(owner) == (0, -32)
    assert regions.locate(other) == (0, 128)
    assert regions.locate(part) == (0, 0)


def test_moved_memory_is_a_new_region_and_the_old_one_is_gone() -> None:
    regions = Regions()
    tensor = torch.zeros(4)
    keep = torch.zeros(4)
    region, _ = regions.locate(tensor)
    regions.locate(keep)
    tensor.resize_(1 << 20)
    assert regions.locate(tensor)[0] != region
    assert not regions.alive(region)


def test_find_makes_no_region() -> None:
    regions = Regions()
    tensor = torch.zeros(4)
    assert regions.find(tensor.untyped_storage()) is None
    assert len(regions) == 0
    regions.locate(tensor)
    assert regions.find(tensor[2:].untyped_storage()) == (0, 0)


def test_empty_tensors_share_nothing() -> None:
    regions = Regions()
    a, b = torch.empty(0), torch.empty(0)
    assert regions.locate(a) == (0, 0)
    assert regions.locate(b) == (1, 0)
