"""Systems, inputs and comparisons that the embedded system's tests share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial

import numpy as np
import torch

from harness.case import Case, Model
from harness.engine.protocol import Engine
from harness.engine.tape import TapeEngine
from harness.fields import Dims, FieldSpec, Live, canonical, fields_for, plan_is_written
from harness.oracle import expected
from harness.rounds import Inputs, expand_table, length_fill
from harness.sut.embedded.sut import EmbeddedSut, make_sut
from harness.types import Mode, Path
from tests.helpers import page_map

PATHS = (
    Path.INDEPENDENT,
    Path.SIBLING_COPY,
    Path.MULTI_DESTINATION_COPY,
    Path.SHARED,
    Path.SHARED_IN_GRAPH,
)
"""The paths that the embedded system has."""
STALE_BY_DESIGN = ("paged_mqa_schedule_metadata", "topk_v2_plan")


@contextmanager
def no_span(name: str, step: int = -1) -> Iterator[None]:
    """Record nothing."""
    yield


def built(case: Case, *, buckets: tuple[int, ...] = (4,), seed: int = 0) -> EmbeddedSut:
    """Return a system with these buckets' metadata made from full batches."""
    sut = make_sut(case, TapeEngine(), no_span)
    sut.init_graph_state()
    for bucket in buckets:
        sut.stage(random_inputs(case, bucket, bucket, seed))
        sut.prepare_capture(bucket)
    return sut


def random_inputs(case: Case, bucket: int, live: int, seed: int) -> Inputs:
    """Return a round with random legal lengths, requests, accepted tokens and table, padded to its bucket."""
    rng = np.random.default_rng([seed, bucket, live])
    tokens = case.variant.draft_tokens
    low, high = tokens + case.model.index_kpool, case.geometry.width - tokens
    lengths = rng.integers(low, high, live, endpoint=True)
    requests = rng.permutation(np.arange(1, case.geometry.requests))[:live]
    accepted = rng.integers(1, tokens, live, endpoint=True)
    return inputs_of(case, bucket, lengths.tolist(), requests.tolist(), accepted.tolist(), seed)


def inputs_of(
    case: Case,
    bucket: int,
    lengths: list[int],
    requests: list[int],
    accepted: list[int] | None = None,
    table_seed: int = 0,
) -> Inputs:
    """Return a round's inputs, padded to its bucket, over a shuffled table."""
    tokens, padding = case.variant.draft_tokens, bucket - len(lengths)
    fill = length_fill(case.mode, case.model.index_kpool, tokens)
    taken = accepted if accepted is not None else [tokens] * len(lengths)
    return Inputs(
        bucket=bucket,
        live=len(lengths),
        lengths=np.array([*lengths, *[fill] * padding], np.int64),
        requests=np.array([*requests, *[0] * padding], np.int64),
        accepted=np.array([*taken, *[tokens] * padding], np.int32),
        table=table_of(case.model, table_seed),
    )


def table_of(model: Model, seed: int) -> np.ndarray:
    """Return a request table over a shuffled page map."""
    return expand_table(page_map(model, seed), model.page_tokens)


def refreshed(sut: EmbeddedSut, inputs: Inputs) -> None:
    """Stage a round and refresh; an in-graph refresh runs as part of an eager forward."""
    sut.stage(inputs)
    sut.refresh(inputs.bucket)
    if sut.expectation(inputs.bucket).route == Path.SHARED_IN_GRAPH:
        sut.forward(inputs.bucket)


def reference_values(case: Case, inputs: Inputs, sut: EmbeddedSut) -> dict[str, np.ndarray]:
    """Return every leaf's defined elements, by the oracle or else by the planner on right lengths."""
    dims = Dims.of(case, inputs.bucket)
    right = expected(dims, inputs)
    values = {}
    for name, field in fields_for(dims).items():
        value = right.get(name)
        if value is None:
            planned = sut.reference(name, inputs)
            assert planned is not None
            value = planned.cpu().numpy()
        values[name] = canonical(field, dims, inputs, value)
    return values


def wrong_leaves(
    case: Case, inputs: Inputs, leaves: Mapping[str, torch.Tensor], right: Mapping[str, np.ndarray]
) -> set[str]:
    """Return the names of leaves whose defined elements differ from `right`; dtype and shape are asserted."""
    dims = Dims.of(case, inputs.bucket)
    wrong = set()
    for name, field in fields_for(dims).items():
        got = leaves[name].cpu().numpy()
        assert got.shape == field.shape(dims)
        assert str(got.dtype) == field.dtype
        if not np.array_equal(canonical(field, dims, inputs, got), right[name]):
            wrong.add(name)
    return wrong


def known_stale(case: Case, step: int, dims: Dims) -> set[str]:
    """Return the leaves that the multi-destination fault leaves stale in a step."""
    if case.path is not Path.MULTI_DESTINATION_COPY or case.backends < 3 or step > 2:
        return set()
    written = plan_is_written(dims)
    return {name for name in STALE_BY_DESIGN if name != "topk_v2_plan" or written}


def is_read(field: FieldSpec, dims: Dims) -> bool:
    """Return whether results depend on a leaf: schedules, plans and tile plans only steer workers."""
    worker_plans = "schedule" in field.name or field.live in (Live.PLAN, Live.ELSEWHERE)
    return not worker_plans and not (
        dims.pool > 1 and field.name == "paged_mqa_ctx_lens_2d" and dims.mode is Mode.DECODE
    )


CAPTURE_ROUNDS = ((4, 4, 1), (8, 5, 2), (4, 2, 3))
"""(bucket, live, seed) of the rounds that captured systems replay."""

Results = list[dict[str, torch.Tensor]]
"""What each step computed in each round, on the CPU."""


def replayed(case: Case, engine: Engine) -> Results:
    """Return what graphs captured by `engine` compute in `CAPTURE_ROUNDS`."""
    sut = make_sut(case, engine, no_span)
    sut.init_graph_state()
    graphs = {}
    for bucket in (8, 4):
        sut.stage(random_inputs(case, bucket, bucket, 0))
        sut.prepare_capture(bucket)
        graphs[bucket] = engine.capture(partial(sut.forward, bucket))
    results: Results = []
    for bucket, live, seed in CAPTURE_ROUNDS:
        sut.stage(random_inputs(case, bucket, live, seed))
        sut.refresh(bucket)
        graph, outputs = graphs[bucket]
        engine.launch(graph)
        engine.synchronize()
        results += [{name: one.clone().cpu() for name, one in step.computed.items()} for step in outputs]
    return results


def eager_results(case: Case) -> Results:
    """Return what the same rounds give without graphs, on the CPU."""
    sut = built(case, buckets=(8, 4))
    results: Results = []
    for bucket, live, seed in CAPTURE_ROUNDS:
        sut.stage(random_inputs(case, bucket, live, seed))
        sut.refresh(bucket)
        results += [dict(step.computed) for step in sut.forward(bucket)]
    return results
