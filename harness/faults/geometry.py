"""The small models that the catalogue's cases are made of, and a short way to write such a case."""

from __future__ import annotations

import msgspec

from harness.case import Case, Geometry, Model, PlanRule, Variant
from harness.types import Drill, EngineKind, Kernel, Mode, Path, Precision

_PLAN = PlanRule(candidates=((32, 1), (64, 8), (128, 16), (512, 48)), min_rows=2, max_rows=64)
_GEOMETRY = Geometry(width=1024, requests=16, topk=64, num_sms=8, plan=_PLAN)
_VARIANTS = tuple(Variant(steps=steps, topk=1, draft_tokens=steps + 1) for steps in (2, 3, 4, 5, 6))

P4 = Model(
    name="tiny",
    index_kpool=4,
    page_size=256,
    heads=2,
    default_variant=_VARIANTS[2],
    variants=_VARIANTS,
    buckets=(1, 2, 4, 8),
    geometries={kind.value: _GEOMETRY for kind in EngineKind},
    matrix=False,
)
"""Pooled index keys, P = 4; the model of `cases/tiny.toml` (a test holds the two together)."""
P1 = msgspec.structs.replace(P4, name="tiny-p1", index_kpool=1, page_size=64)
"""The same with P = 1; the model of `cases/tiny-p1.toml`."""
_WIDE = msgspec.structs.replace(_GEOMETRY, width=4096, topk=512)
WIDE = msgspec.structs.replace(P4, name="wide", geometries={kind.value: _WIDE for kind in EngineKind})
"""P = 4 on a table that is wide enough for pooled schedules to depend on the lengths."""
WIDE1 = msgspec.structs.replace(WIDE, name="wide-p1", index_kpool=1, page_size=64)
"""P = 1 with a top-k that is large enough for FlashMLA's tile plan to depend on the lengths."""


def at(
    path: Path = Path.SHARED,
    model: Model = P4,
    *,
    fusion: bool = False,
    steps: int = 3,
    mode: Mode = Mode.DECODE,
    bucket: int = 4,
    drill: Drill = Drill.PLAIN,
    kernel: Kernel = Kernel.FA3,
) -> Case:
    """Return a case of the embedded system on the tape; `steps` is S."""
    tokens = next(variant for variant in model.variants if variant.steps == steps)
    return Case(
        sut="embedded",
        engine=EngineKind.TAPE,
        model=model,
        path=path,
        fusion=fusion,
        variant=tokens,
        mode=mode,
        bucket=bucket,
        drill=drill,
        kernel=kernel,
        precision=Precision.FP32,
    )
