"""Systems as subjects of measurement: one refresh as a call, and the leaves that it leaves behind."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import torch

from harness.bench.meter import Call
from harness.bench.settings import Point, case_at
from harness.case import Case, Model
from harness.engine.protocol import Engine
from harness.rounds import Inputs
from harness.sut.embedded.forward import Model as Weights
from harness.sut.embedded.sut import EmbeddedSut
from harness.sut.embedded.weights import Caches
from harness.sut.embedded.weights import Weights as Queries
from harness.sut.protocol import StepRoots
from harness.types import Path

EMBEDDED, FUSED, SGLANG = "embedded", "embedded-fused", "sglang"
PATHS: Mapping[str, tuple[Path, ...]] = {
    EMBEDDED: (
        Path.INDEPENDENT,
        Path.SIBLING_COPY,
        Path.MULTI_DESTINATION_COPY,
        Path.SHARED,
        Path.SHARED_IN_GRAPH,
    ),
    FUSED: (Path.SHARED, Path.SHARED_IN_GRAPH),
    SGLANG: (Path.RELEASED, Path.SHARED, Path.SHARED_IN_GRAPH),
}
"""What can be measured, by system."""


@dataclass(frozen=True, eq=False)
class Subject:
    """One system on one path at one point, built, captured and staged."""

    system: str
    path: str
    refresh: Call
    """Refreshes all steps; for a refresh inside a graph, replays a graph of nothing else."""
    eager: Call
    """What the system does outside graphs before a replay: the refresh itself, or next to nothing."""
    roots: Callable[[], tuple[StepRoots, ...]]
    following: Call | None = None
    """For a refresh inside a graph: replays a graph of the refresh and one small kernel after it."""
    ready: Callable[[], AbstractContextManager[None]] = nullcontext
    """Within it both calls may be made."""


@dataclass(frozen=True, eq=False)
class Staging:
    """What a system is given at a point."""

    captured: Inputs
    """In place while metadata is made: what a refresh leaves out then keeps these values."""
    inputs: Inputs
    """In place while it is measured."""


class Grapher(Protocol):
    """What captures calls in graphs."""

    def capture(self, call: Call) -> Call:
        """Return what replays a graph of the call."""
        ...

    def launch_one(self) -> None:
        """Launch one small kernel."""
        ...


def embedded(
    system: str, path: Path, point: Point, model: Model, staging: Staging, engine: Engine, grapher: Grapher
) -> Subject:
    """Build the embedded system, fused or not, on a path."""

    def built(on: Path) -> EmbeddedSut:
        case = case_at(point, model, system, on)
        sut = EmbeddedSut(
            case, engine, no_span, without_forward(case, engine.device), one_launch=system == FUSED
        )
        sut.init_graph_state()
        sut.stage(staging.captured)
        sut.prepare_capture(point.bucket)
        sut.stage(staging.inputs)
        return sut

    sut = built(path)
    outside = partial(sut.refresh, point.bucket)
    if path is not Path.SHARED_IN_GRAPH:
        return Subject(system, path, outside, outside, sut.roots)
    alone = built(Path.SHARED)  # the same refresh without the draft forward around it
    refresh, following = graphs(grapher, partial(alone.refresh, point.bucket))
    return Subject(system, path, refresh, outside, alone.roots, following)


def graphs(grapher: Grapher, refresh: Call) -> tuple[Call, Call]:
    """Return what replays a graph of a refresh alone, and one of the refresh and a small kernel after it."""

    def both() -> None:
        refresh()
        grapher.launch_one()

    return grapher.capture(refresh), grapher.capture(both)


def no_span(name: str, step: int = -1) -> AbstractContextManager[None]:
    """Record nothing."""
    return nullcontext()


def without_forward(case: Case, device: torch.device) -> Weights:
    """Return weights and caches too small for any forward: none runs here."""
    caches = Caches.seeded(
        case.seed, 2 * case.model.page_tokens, case.model.index_kpool, case.precision, device
    )
    return Weights(Queries.seeded(case.seed, device), caches)
