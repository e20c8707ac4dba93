"""Who owns which bytes: shared steps, separate steps, and the overlaps that the specification declares."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch

from harness.fields import COUNTER, Dims, Sharing, fields_for
from harness.sut.embedded.metadata import named_leaves
from harness.sut.protocol import StepRoots
from harness.types import Kernel, Mode, Path
from tests.helpers import make_case, tiny_model
from tests.sut.embedded.support import built, random_inputs

BUCKETS = (8, 4)


def span_of(tensor: torch.Tensor) -> tuple[int, int, int]:
    """Return (storage, first byte, end) of a contiguous tensor."""
    assert tensor.is_contiguous()
    start = int(tensor.storage_offset()) * tensor.element_size()
    return tensor.untyped_storage().data_ptr(), start, start + int(tensor.numel()) * tensor.element_size()


def overlap(one: torch.Tensor, other: torch.Tensor) -> bool:
    (storage, start, end), (other_storage, other_start, other_end) = span_of(one), span_of(other)
    return storage == other_storage and start < other_end and other_start < end


def leaves(root: StepRoots, bucket: int) -> Mapping[str, torch.Tensor]:
    return dict(named_leaves(root.metadata[bucket]))


@pytest.mark.parametrize("path", [Path.SHARED, Path.SHARED_IN_GRAPH])
@pytest.mark.parametrize(("pool", "kernel"), [(1, Kernel.FLASHMLA_KV), (4, Kernel.TRTLLM), (4, Kernel.FA3)])
def test_sharing_steps_hold_step_0s_objects_and_own_a_counter_at_most(
    path: Path, pool: int, kernel: Kernel
) -> None:
    case = make_case(tiny_model(pool), path=path, steps=5, kernel=kernel)
    first, *others = built(case, buckets=BUCKETS).roots()
    for root in others:
        for bucket in BUCKETS:
            assert root.metadata[bucket] is first.metadata[bucket]
        assert set(root.state) == ({COUNTER} if kernel is Kernel.TRTLLM else set())
    counters = {root.state[COUNTER].data_ptr() for root in (first, *others) if COUNTER in root.state}
    assert len(counters) == (4 if kernel is Kernel.TRTLLM else 0)


@pytest.mark.parametrize("path", [Path.INDEPENDENT, Path.SIBLING_COPY, Path.MULTI_DESTINATION_COPY])
def test_separate_steps_have_no_byte_in_common(path: Path) -> None:
    roots = built(make_case(path=path, steps=4), buckets=BUCKETS).roots()
    storages = [
        {leaf.untyped_storage().data_ptr() for bucket in BUCKETS for leaf in leaves(root, bucket).values()}
        for root in roots
    ]
    assert storages[0].isdisjoint(storages[1] | storages[2])
    assert storages[1].isdisjoint(storages[2])


@pytest.mark.parametrize("mode", list(Mode))
@pytest.mark.parametrize(("pool", "kernel"), [(1, Kernel.FLASHMLA_KV), (4, Kernel.FA3)])
def test_overlaps_are_those_declared(mode: Mode, pool: int, kernel: Kernel) -> None:
    case = make_case(tiny_model(pool), mode=mode, kernel=kernel)
    (root, *_) = built(case, buckets=BUCKETS).roots()
    specs = fields_for(Dims.of(case, 4))
    bases = {
        Sharing.VIEW_OF_LENGTHS: "cache_seqlens_int32",
        Sharing.VIEW_OF_EXPANDED: "dsa_seqlens_expanded",
    }
    owner = {name: bases.get(field.sharing(Dims.of(case, 4)), name) for name, field in specs.items()}
    small, large = leaves(root, 4), leaves(root, 8)
    for name in specs:
        for other in specs:
            if name != other:
                assert overlap(small[name], small[other]) == (owner[name] == owner[other]), (name, other)
            sliced = name == other and specs[name].sharing(Dims.of(case, 4)) is Sharing.BUCKET_SLICE
            assert overlap(small[name], large[other]) == sliced, (name, other)


def test_refresh_binds_nothing_and_moves_nothing() -> None:
    case = make_case(path=Path.INDEPENDENT, steps=4)
    sut = built(case)
    before = [
        (root.metadata[4], {n: t.data_ptr() for n, t in leaves(root, 4).items()}) for root in sut.roots()
    ]
    sut.stage(random_inputs(case, 4, 3, 5))
    sut.refresh(4)
    after = [
        (root.metadata[4], {n: t.data_ptr() for n, t in leaves(root, 4).items()}) for root in sut.roots()
    ]
    assert before == after


@pytest.mark.parametrize("path", [Path.INDEPENDENT, Path.SHARED, Path.SHARED_IN_GRAPH])
def test_active_metadata_follows_the_bucket(path: Path) -> None:
    case = make_case(path=path)
    sut = built(case, buckets=BUCKETS)
    for bucket in (8, 4, 8):
        sut.stage(random_inputs(case, bucket, bucket, bucket))
        sut.refresh(bucket)
        assert all(root.active is root.metadata[bucket] for root in sut.roots())


def test_a_second_capture_makes_new_metadata_for_every_step() -> None:
    sut = built(make_case(path=Path.SHARED), buckets=BUCKETS)
    before = [root.metadata[4] for root in sut.roots()]
    sut.prepare_capture(4)
    after = [root.metadata[4] for root in sut.roots()]
    assert after[0] is not before[0]
    assert all(metadata is after[0] for metadata in after)
