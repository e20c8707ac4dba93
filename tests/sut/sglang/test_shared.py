"""The drop-in itself, on the classes of the SGLang that is loaded."""

from collections.abc import Iterator

import numpy as np
import pytest

from harness.errors import HarnessError, UsageError
from harness.fields import Dims, canonical, fields_for
from harness.probe.leaves import leaf_tensors
from harness.sut.patches import Patches
from harness.sut.sglang import shared
from harness.sut.sglang.backend import Batches, make_multi

from .support import CPU, GEOMETRY, batch, case, loaded

pytestmark = pytest.mark.sglang


@pytest.fixture
def calls() -> Iterator[Patches]:
    """Be where SGLang may be called."""
    with loaded().calls(GEOMETRY) as patches:
        yield patches


def test_uninstalling_leaves_the_classes_as_they_were(calls: Patches) -> None:
    classes = (loaded().seams.step_backend, loaded().seams.multi_backend)
    before = [dict(vars(one)) for one in classes]
    shared.install()
    assert shared.is_installed()
    assert [dict(vars(one)) for one in classes] != before
    shared.uninstall()
    assert [dict(vars(one)) for one in classes] == before
    assert not shared.is_installed()


def test_installing_twice_says_so(calls: Patches) -> None:
    shared.install()
    try:
        with pytest.raises(HarnessError, match="installed already"):
            shared.install()
    finally:
        shared.uninstall()
    with pytest.raises(HarnessError, match="not installed"):
        shared.uninstall()


def test_an_sglang_that_shares_by_itself_is_left_alone(calls: Patches) -> None:
    calls.attribute(loaded().seams.step_backend, "_share_cuda_graph_metadata", lambda *args: None)
    assert shared.shares_by_itself()
    with pytest.raises(UsageError, match="by itself"):
        shared.install()


@pytest.mark.parametrize(("pool", "fusion"), [(1, False), (4, False), (4, True)])
def test_staged_and_direct_refresh_agree(calls: Patches, pool: int, fusion: bool) -> None:
    of = case(pool, fusion=fusion)
    results = []
    for options in (shared.Options(), shared.Options(staged=True)):
        batches = Batches(of, loaded().seams, (4,), CPU)
        shared.install(options)
        try:
            multi = make_multi(of, loaded().seams, batches, 4)
            multi.init_cuda_graph_state(4, 4)
            batches.stage(batch(of, 0))
            multi.init_forward_metadata_out_graph(batches[4], in_capture=True)
            inputs = batch(of, 1)
            batches.stage(inputs)
            multi.init_forward_metadata_out_graph(batches[4])
        finally:
            shared.uninstall()
        first = multi.attn_backends[0].forward_metadata
        assert all(backend.forward_metadata is first for backend in multi.attn_backends)
        results.append(leaf_tensors(first))
    dims = Dims.of(of, 4)
    for name, spec in fields_for(dims).items():
        direct, staged = (canonical(spec, dims, inputs, leaves[name].numpy()) for leaves in results)
        assert np.array_equal(direct, staged), name


def test_steps_that_share_allocate_no_table(calls: Patches) -> None:
    of = case(1)
    batches = Batches(of, loaded().seams, (4,), CPU)
    shared.install()
    try:
        multi = make_multi(of, loaded().seams, batches, 4)
        multi.init_cuda_graph_state(4, 4)
    finally:
        shared.uninstall()
    first, *others = multi.attn_backends
    assert first.decode_cuda_graph_metadata["page_table"].shape == (4, GEOMETRY.width)
    assert all(backend.decode_cuda_graph_metadata == {} for backend in others)
