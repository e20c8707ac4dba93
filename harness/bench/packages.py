"""The released SGLang as a subject: its own refresh, and the drop-in that shares, with nothing watching."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

from harness.bench.meter import Call
from harness.bench.settings import Point, case_at
from harness.bench.subjects import SGLANG, Grapher, Staging, Subject, graphs
from harness.case import Model
from harness.engine.protocol import Engine
from harness.sut.protocol import StepRoots
from harness.sut.sglang import shared
from harness.sut.sglang.backend import Batches, make_multi
from harness.sut.sglang.loader import Loaded
from harness.types import Path


def sglang(
    path: Path, point: Point, model: Model, staging: Staging, engine: Engine, grapher: Grapher, loaded: Loaded
) -> Subject:
    """Build SGLang's multi-step backend on a path; on those that share, with the drop-in in force."""
    case = case_at(point, model, SGLANG, path)
    alone = None if path is Path.RELEASED else shared.Options()

    @contextmanager
    def calls(options: shared.Options | None) -> Iterator[None]:
        with loaded.calls(case.geometry, declared=False) as patches:
            if options is not None:
                shared.install(options)
                patches.callback(shared.uninstall)
            yield

    with calls(alone):
        batches = Batches(case, loaded.seams, (point.bucket,), engine.device)
        multi = make_multi(case, loaded.seams, batches, point.bucket)
        multi.init_cuda_graph_state(point.bucket, point.bucket)
        batches.stage(staging.captured)
        batch = batches[point.bucket]
        multi.init_forward_metadata_out_graph(batch, in_capture=True)
        batches.stage(staging.inputs)
        # Bound now: the class has the drop-in's method only while it is installed.
        refresh: Call = partial(multi.init_forward_metadata_out_graph, batch)
        following = None
        if path is Path.SHARED_IN_GRAPH:
            refresh, following = graphs(grapher, refresh)
    roots = partial(_roots, multi)
    if following is None:
        return Subject(SGLANG, path, refresh, refresh, roots, ready=partial(calls, alone))
    outside = partial(calls, shared.Options(in_graph=True))
    with outside():
        eager: Call = partial(multi.init_forward_metadata_out_graph, batch)
    return Subject(SGLANG, path, refresh, eager, roots, following, outside)


def _roots(multi: Any) -> tuple[StepRoots, ...]:
    return tuple(_step_roots(backend) for backend in multi.attn_backends)


def _step_roots(backend: Any) -> StepRoots:
    entries: Mapping[Any, Any] = backend.decode_cuda_graph_metadata
    return StepRoots(
        metadata={key: value for key, value in entries.items() if isinstance(key, int)},
        active=backend.forward_metadata,
        state={key: value for key, value in entries.items() if isinstance(key, str) and value is not None},
    )
