"""What `bench gpu` measures: points (model, fusion, S, bs, W), the lengths at each, and the sweeps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path as FilePath

import msgspec
import numpy as np

from harness.case import Case, Geometry, Model, Variant
from harness.casefile import load_models
from harness.errors import UsageError
from harness.pages import PagePool
from harness.rounds import Inputs, expand_table
from harness.types import Drill, EngineKind, Mode, Path

WIDTH = 131072
"""Tokens, the width that lengths are stated for."""
FEW = (63, 129, 65539, 100001)
"""Lengths of a batch of four; others are spread evenly over `MANY`."""
MANY = (2000, 95000)
SWEPT_STEPS = (2, 3, 4, 5, 6, 7, 8)
SWEPT_BUCKETS = (1, 4, 8, 16, 32, 64, 128)
SWEPT_WIDTHS = (16384, 65536, 131072, 262144, 524288, 1048576)


@dataclass(frozen=True)
class Point:
    """One setting at which all subjects are measured side by side."""

    model: str
    pool: int
    """`P`."""
    fusion: bool
    steps: int
    """`S`; there are S - 1 draft steps."""
    bucket: int
    width: int
    """`W`, tokens."""

    def __str__(self) -> str:
        fusion = "on" if self.fusion else "off"
        return f"P={self.pool} fusion {fusion}, S={self.steps}, bs {self.bucket}, W={self.width}"

    def lengths(self) -> tuple[int, ...]:
        """Return tokens per request: some short, the longest three quarters of the width."""
        if self.bucket == len(FEW):
            stated: Sequence[float] = FEW
        else:
            stated = np.linspace(*MANY, self.bucket).tolist()
        return tuple(max(1, round(length * self.width / WIDTH)) for length in stated)


@dataclass(frozen=True)
class Effort:
    """How often everything is repeated."""

    rounds: int = 10
    """Turns that every subject takes, one after the other, in alternating order."""
    host: int = 12
    """Host times per turn."""
    spans: int = 6
    """Device spans per turn."""
    gaps: int = 6
    """Gaps between graphs per turn."""
    warmup: int = 5
    """Calls before the first turn."""


def models_of(cases_dir: FilePath, names: Sequence[str]) -> dict[str, Model]:
    """Return the named models, or one for each P of the default matrix, the largest P first.

    Raises UsageError for a name that no case file has.
    """
    known = load_models(cases_dir)
    for name in names:
        if name not in known:
            raise UsageError(f"no model is called {name!r}; there are {', '.join(sorted(known))}")
    if names:
        return {name: known[name] for name in names}
    by_pool = {model.index_kpool: model for model in reversed(known.values()) if model.matrix}
    return {by_pool[pool].name: by_pool[pool] for pool in sorted(by_pool, reverse=True)}


def points(
    models: Sequence[Model],
    fusion: Sequence[bool],
    steps: Sequence[int],
    buckets: Sequence[int],
    widths: Sequence[int],
) -> tuple[Point, ...]:
    """Return the cross product; where fusion does not apply (P = 1) it is off.

    Raises UsageError for a width that is no multiple of a model's page.
    """
    chosen = [
        Point(model.name, model.index_kpool, on and model.index_kpool > 1, S, bucket, width)
        for model, on, S, bucket, width in product(models, fusion, steps, buckets, widths)
    ]
    page_tokens = {model.name: model.page_tokens for model in models}
    for point in chosen:
        if point.width % page_tokens[point.model]:
            raise UsageError(
                f"--width {point.width} is not a multiple of {page_tokens[point.model]}, {point.model}'s page"
            )
    return tuple(dict.fromkeys(chosen))


def sweeps(point: Point) -> tuple[Point, ...]:
    """Return points that differ from one in S, in bs or in W."""
    steps = [replace(point, steps=S) for S in SWEPT_STEPS]
    buckets = [replace(point, bucket=bucket) for bucket in SWEPT_BUCKETS]
    widths = [replace(point, width=width) for width in SWEPT_WIDTHS]
    return tuple(one for one in (*steps, *buckets, *widths) if one != point)


def case_at(point: Point, model: Model, sut: str, path: Path) -> Case:
    """Return the decode case of a system at a point, in a geometry of just this bucket and width."""
    engine = EngineKind.CUDA_GRAPH
    given = model.geometries[engine.value]
    geometry = msgspec.structs.replace(given, width=point.width, requests=point.bucket + 1)
    variant = Variant(steps=point.steps, topk=1, draft_tokens=point.steps + 1)
    own = msgspec.structs.replace(model, buckets=(point.bucket,), geometries={engine.value: geometry})
    return Case(
        sut=sut, engine=engine, model=own, path=path, fusion=point.fusion, variant=variant,
        mode=Mode.DECODE, bucket=point.bucket, drill=Drill.PLAIN,
    )  # fmt: skip


def inputs_at(case: Case, lengths: Sequence[int]) -> Inputs:
    """Return a full batch of these lengths over scattered pages, requests in descending rows."""
    model, geometry = case.model, _roomy(case.geometry)
    pool = PagePool(model, geometry, np.random.default_rng(len(lengths)))
    requests = np.arange(len(lengths), 0, -1, dtype=np.int64)
    for request, length in zip(requests.tolist(), lengths, strict=True):
        pool.cover(request, -(-length // model.page_tokens))
    return Inputs(
        bucket=len(lengths),
        live=len(lengths),
        lengths=np.array(lengths, np.int64),
        requests=requests,
        accepted=np.full(len(lengths), case.variant.draft_tokens, np.int32),
        table=expand_table(pool.snapshot()[: case.geometry.requests], model.page_tokens),
    )


def _roomy(geometry: Geometry) -> Geometry:
    """Return a geometry whose page pool holds any lengths of this one's requests."""
    return msgspec.structs.replace(geometry, requests=3 * geometry.requests + 1)
