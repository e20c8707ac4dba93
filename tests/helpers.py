"""Small models, cases and programs that tests share."""

from __future__ import annotations

import numpy as np

from harness.case import Case, Geometry, Model, PlanRule, Variant
from harness.fields import Dims
from harness.rounds import Inputs, Program, Round
from harness.types import Drill, EngineKind, Kernel, Mode, Path, Precision

PLAN = PlanRule(candidates=((60, 1), (150, 2), (400, 3)), min_rows=2, max_rows=64)


def tiny_model(pool: int = 4, width: int = 1024, topk: int = 64) -> Model:
    """Return a model with a narrow request table, the same for both engines."""
    geometry = Geometry(width=width, requests=12, topk=topk, num_sms=8, plan=PLAN)
    variants = tuple(Variant(steps=s, topk=1, draft_tokens=s + 1) for s in (2, 3, 4, 5, 6))
    return Model(
        name=f"unit-p{pool}",
        index_kpool=pool,
        page_size=64 * pool,
        heads=2,
        default_variant=variants[3],
        variants=variants,
        buckets=(1, 2, 4, 8),
        geometries={kind.value: geometry for kind in EngineKind},
    )


def make_case(
    model: Model | None = None,
    *,
    path: Path = Path.SHARED,
    fusion: bool = False,
    steps: int = 4,
    mode: Mode = Mode.DECODE,
    bucket: int = 4,
    drill: Drill = Drill.PLAIN,
    kernel: Kernel = Kernel.FA3,
    precision: Precision = Precision.FP32,
    sut: str = "embedded",
) -> Case:
    """Return a case on the tape engine with defaults that suit most tests."""
    model = model or tiny_model()
    variant = next(variant for variant in model.variants if variant.steps == steps)
    return Case(
        sut=sut, engine=EngineKind.TAPE, model=model, path=path, fusion=fusion, variant=variant,
        mode=mode, bucket=bucket, drill=drill, kernel=kernel, precision=precision,
    )  # fmt: skip


def make_dims(
    mode: Mode = Mode.DECODE, pool: int = 4, bucket: int = 4, draft_tokens: int = 5, width: int = 1024
) -> Dims:
    """Return dimensions without a case."""
    return Dims(
        mode=mode, kernel=Kernel.FA3, pool=pool, topk=64, width=width, bucket=bucket,
        draft_tokens=draft_tokens, num_sms=8, plan=PLAN,
    )  # fmt: skip


def page_map(model: Model, seed: int = 0) -> np.ndarray:
    """Return a shuffled page map `[requests, columns]`, int32; page 0 and the last page stay unused."""
    geometry = model.geometries["tape"]
    columns = geometry.width // model.page_tokens
    pages = np.random.default_rng(seed).permutation((geometry.requests - 1) * columns) + 1
    table = np.zeros((geometry.requests, columns), np.int32)
    table[1:] = pages.reshape(geometry.requests - 1, columns)
    return table


def make_program(
    model: Model, bucket: int, batches: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]
) -> Program:
    """Return a program of one bucket: a round per (lengths, requests), each with its own table."""
    tables = {f"t{index}": page_map(model, index) for index in range(len(batches) + 1)}
    rounds = tuple(
        Round(f"b{bucket}.{index:02d}", bucket, lengths, requests, f"t{index + 1}")
        for index, (lengths, requests) in enumerate(batches)
    )
    capture = Round(f"b{bucket}.capture", bucket, (1,) * bucket, tuple(range(1, bucket + 1)), "t0")
    return Program((bucket,), {bucket: capture}, rounds, tables)


def make_inputs(dims: Dims, lengths: list[int], requests: list[int] | None = None, seed: int = 0) -> Inputs:
    """Return a full batch's inputs over a random table of this width."""
    bucket = dims.bucket
    rows = requests or list(range(1, bucket + 1))
    columns = dims.width // (64 * dims.pool)
    pages = np.random.default_rng(seed).permutation((bucket + 1) * columns).reshape(bucket + 1, columns)
    tokens = pages[:, :, None] * (64 * dims.pool) + np.arange(64 * dims.pool)
    table = tokens.reshape(bucket + 1, -1).astype(np.int32)
    table[0] = 0
    return Inputs(
        bucket, bucket, np.array(lengths, np.int64), np.array(rows, np.int64),
        np.full(bucket, dims.draft_tokens, np.int32), table,
    )  # fmt: skip
