"""Cases and inputs that the tests of the SGLang system share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache

import numpy as np
import pytest
import torch

from harness.case import Case, Geometry, Model, PlanRule, Variant
from harness.errors import UsageError
from harness.fields import Dims, canonical, fields_for
from harness.oracle import expected
from harness.pages import guard_page
from harness.probe.leaves import leaf_tensors
from harness.rounds import Inputs, expand_table, length_fill
from harness.sut.sglang.loader import Loaded, load
from harness.sut.sglang.sut import SglangSut
from harness.types import Drill, EngineKind, Kernel, Mode, Path

PLAN = PlanRule(candidates=((32, 1), (64, 2), (128, 3)), min_rows=2, max_rows=64)
GEOMETRY = Geometry(width=512, requests=12, topk=128, num_sms=8, plan=PLAN)
HOPPER = PlanRule(
    candidates=((65536, 30), (98304, 45), (131072, 60), (196608, 80), (262144, 112), (393216, 128)),
    min_rows=31,
    max_rows=512,
)
"""When an H200 writes plans, as measured."""
GPU_GEOMETRY = Geometry(width=131072, requests=40, topk=2048, num_sms=132, plan=HOPPER)
CPU = torch.device("cpu")


@cache
def model(pool: int) -> Model:
    """Return a model narrow enough for an interpreter; 64 heads, for which KPool schedules exist."""
    variants = tuple(Variant(steps=steps, topk=1, draft_tokens=steps + 1) for steps in (2, 3, 4, 5, 6))
    return Model(
        name=f"narrow-p{pool}", index_kpool=pool, page_size=64 * pool, heads=64, default_variant=variants[3],
        variants=variants, buckets=(2, 4), geometries={"tape": GEOMETRY, "cuda_graph": GPU_GEOMETRY},
    )  # fmt: skip


def case(
    pool: int = 1,
    path: Path = Path.RELEASED,
    *,
    fusion: bool = False,
    steps: int = 5,
    mode: Mode = Mode.DECODE,
    bucket: int = 4,
    kernel: Kernel = Kernel.FA3,
    engine: EngineKind = EngineKind.TAPE,
) -> Case:
    """Return a case of SGLang."""
    variant = next(variant for variant in model(pool).variants if variant.steps == steps)
    return Case(
        sut="sglang", engine=engine, model=model(pool), path=path, fusion=fusion, variant=variant,
        mode=mode, bucket=bucket, drill=Drill.PLAIN, kernel=kernel,
    )  # fmt: skip


def batch(of: Case, seed: int, *, live: int | None = None, bucket: int | None = None) -> Inputs:
    """Return random inputs: unequal lengths, permuted requests, pages shuffled by model page."""
    rng = np.random.default_rng(seed)
    geometry = of.geometry
    bucket = bucket or of.bucket
    live = live or bucket
    tokens = of.variant.draft_tokens
    lengths = np.full(bucket, length_fill(of.mode, of.model.index_kpool, tokens), np.int64)
    lengths[:live] = rng.choice(np.arange(tokens + 4, geometry.width - tokens), live, replace=False)
    requests = np.zeros(bucket, np.int64)
    requests[:live] = rng.permutation(np.arange(1, geometry.requests))[:live]
    columns = geometry.width // of.model.page_tokens
    pages = rng.integers(
        geometry.first_page, guard_page(of.model, geometry), (geometry.requests, columns)
    ).astype(np.int32)
    accepted = np.full(bucket, tokens, np.int32)
    accepted[:live] = rng.integers(1, tokens + 1, live)
    return Inputs(bucket, live, lengths, requests, accepted, expand_table(pages, of.model.page_tokens))


@dataclass
class Spans:
    """A span recorder that keeps (name, step)."""

    seen: list[tuple[str, int]] = field(default_factory=list)

    @contextmanager
    def __call__(self, name: str, step: int = -1) -> Iterator[None]:
        """Note the block."""
        self.seen.append((name, step))
        yield


class Cpu:
    """As much of an engine as a system needs to be built."""

    name = "none"
    device = CPU


class Gpu:
    """The same on the first CUDA device."""

    name = "none"
    device = torch.device("cuda")


@cache
def loaded(device: torch.device = CPU) -> Loaded:
    """Return the SGLang of this process, which is real or simulated for good."""
    try:
        return load(None, device)
    except UsageError as error:
        if "in this process" not in str(error):
            raise
        pytest.skip(f"{error}: run the tests marked gpu by themselves")


def build(of: Case, spans: Spans | None = None) -> SglangSut:
    """Build a system and capture its bucket's metadata at the inputs of seed 0."""
    engine = Gpu() if of.engine is EngineKind.CUDA_GRAPH else Cpu()
    release = loaded(engine.device)
    sut = SglangSut(of, engine, spans or Spans(), (of.bucket,), release)  # type: ignore[arg-type]
    sut.init_graph_state()
    sut.stage(batch(of, 0))
    sut.prepare_capture(of.bucket)
    return sut


def wrong_leaves(sut: SglangSut, of: Case, inputs: Inputs) -> dict[str, set[int]]:
    """Return the steps in which each leaf differs from the oracle, or is missing."""
    dims = Dims.of(of, inputs.bucket)
    values = expected(dims, inputs)
    wrong: dict[str, set[int]] = {}
    for step, root in enumerate(sut.roots()):
        leaves = leaf_tensors(root.metadata[inputs.bucket])
        for name, spec in fields_for(dims).items():
            if name not in leaves:
                wrong.setdefault(f"{name} missing", set()).add(step)
                continue
            got = leaves[name].cpu().numpy()
            if name in values:
                right, got = (canonical(spec, dims, inputs, value) for value in (values[name], got))
            else:
                reference = sut.reference(name, inputs)
                assert reference is not None
                right = reference.cpu().numpy()
            if got.dtype != right.dtype or not np.array_equal(got, right):
                wrong.setdefault(name, set()).add(step)
    return wrong
