"""The recorder on a GPU: nothing waits for the device, what arrives is what was there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from harness.record import install
from harness.trace.reader import Trace
from tests.record import server

pytestmark = pytest.mark.gpu


@contextmanager
def no_synchronisation() -> Iterator[None]:
    """Raise where torch would wait for the device."""
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def on_device(batch: SimpleNamespace) -> SimpleNamespace:
    batch.seq_lens = batch.seq_lens.cuda()
    batch.req_pool_indices = batch.req_pool_indices.cuda()
    return batch


def test_what_is_read_is_what_was_there_and_nothing_waits(tmp_path: Path) -> None:
    backend = server.DeepseekSparseAttnMultiStepBackend(server.table().cuda())
    installed = install(backend, tmp_path / "run")
    backend.init_forward_metadata_out_graph(
        on_device(server.batch(4, [1] * 4, [1, 2, 3, 4])), in_capture=True
    )
    batches = [on_device(server.batch(4, [60 + index, 200, 300], [5, 2, 7])) for index in range(200)]
    backend.init_forward_metadata_out_graph(batches[0])  # the views of this bucket are made once
    torch.cuda.synchronize()
    with no_synchronisation():
        for batch in batches[1:]:
            torch.cuda._sleep(200_000)  # type: ignore[no-untyped-call]
            backend.init_forward_metadata_out_graph(batch)
            batch.seq_lens.zero_()  # later work of the stream does not reach into what was copied
    torch.cuda.synchronize()
    installed.uninstall()
    assert installed.problem == ""
    assert installed.recorder is not None
    moments = list(Trace(installed.recorder.path).moments())
    lost = installed.recorder.cost().lost
    assert len(moments) + lost == 201
    for moment in moments[2:]:
        assert moment.lengths == (60 + moment.n - 1, 200, 300)
        assert moment.pages[1:] == ((200, 201, 202, 203), (700, 701, 702, 703, 704))


def test_calls_within_a_capture_are_left_out(tmp_path: Path) -> None:
    backend = server.DeepseekSparseAttnMultiStepBackend(server.table().cuda())
    installed = install(backend, tmp_path / "run")
    batch = on_device(server.batch(2, [60, 70], [5, 2]))
    backend.init_forward_metadata_out_graph(batch, in_capture=True)
    graph = torch.cuda.CUDAGraph()
    token = torch.zeros(1, device="cuda")
    with torch.cuda.graph(graph):
        backend.init_forward_metadata_out_graph(batch)
        token.add_(1)
    graph.replay()
    backend.init_forward_metadata_out_graph(batch)
    torch.cuda.synchronize()
    installed.uninstall()
    assert installed.problem == ""
    assert installed.recorder is not None
    assert [moment.capture for moment in Trace(installed.recorder.path).moments()] == [True, False]
