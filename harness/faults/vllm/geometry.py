"""The small models that the catalogue drives vLLM with, and a short way to write a case of them."""

from __future__ import annotations

from harness.case import Case, Geometry, Model, PlanRule, Variant
from harness.types import Drill, EngineKind, Mode, Path

_PLAN = PlanRule(candidates=((32, 1), (512, 48)), min_rows=2, max_rows=64)


def _geometry(num_sms: int) -> Geometry:
    """Return a small geometry; blocks lie where 16 bits hold neither their ids nor their slots."""
    return Geometry(width=1024, requests=16, topk=64, num_sms=num_sms, plan=_PLAN, first_page=(1 << 16) + 1)


def _model(pool: int) -> Model:
    variants = tuple(Variant(steps=steps, topk=1, draft_tokens=steps + 1) for steps in (2, 3, 5))
    return Model(
        name=f"vllm-tiny-p{pool}", index_kpool=pool, page_size=64 * pool, heads=64,
        default_variant=variants[1], variants=variants, buckets=(2, 4), matrix=False, systems=("vllm",),
        geometries={EngineKind.TAPE.value: _geometry(8), EngineKind.CUDA_GRAPH.value: _geometry(132)},
    )  # fmt: skip


P1, P4 = _model(1), _model(4)
"""Plain index keys, and pooled ones with a tail ring."""


def at(
    path: Path = Path.FUSED_REPAIRED,
    model: Model = P4,
    *,
    steps: int = 3,
    bucket: int = 2,
    drill: Drill = Drill.PLAIN,
) -> Case:
    """Return a case of vLLM on the tape; `steps` is S: 3 is decoded natively, 2 and 5 are flattened."""
    variant = next(one for one in model.variants if one.steps == steps)
    return Case("vllm", EngineKind.TAPE, model, path, False, variant, Mode.DECODE, bucket, drill)
