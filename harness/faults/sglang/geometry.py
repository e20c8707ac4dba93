"""The small models that the catalogue drives SGLang with, and a short way to write a case of them.

Widths are what Triton's interpreter can do in time: the pooled schedule of P = 4 has two segments, and page
ids lie where neither 16 bits nor a float32 hold them.
"""

from __future__ import annotations

from dataclasses import replace

import msgspec

from harness.case import Case, Geometry, Model, PlanRule
from harness.faults import geometry as embedded
from harness.types import Drill, EngineKind, Kernel, Mode, Path

_FIRST_PAGE = (1 << 24) + 1
"""Lowest physical page: neither it nor its first token is held by 16 bits or by a float32."""
_NARROW = msgspec.structs.replace(
    embedded.P4.geometries[EngineKind.TAPE.value], topk=512, first_page=_FIRST_PAGE
)
_HOPPER = PlanRule(
    candidates=((65536, 30), (98304, 45), (131072, 60), (196608, 80), (262144, 112), (393216, 128)),
    min_rows=31,
    max_rows=512,
)
"""When an H200 writes plans: not in batches as small as these, so faults of plans show on a CPU only."""


def _geometries(tape: Geometry) -> dict[str, Geometry]:
    """Return the geometry by engine: on a GPU the number of workers and the plan rule are the device's."""
    gpu = msgspec.structs.replace(tape, num_sms=132, plan=_HOPPER)
    return {EngineKind.TAPE.value: tape, EngineKind.CUDA_GRAPH.value: gpu}


_WIDER = msgspec.structs.replace(_NARROW, width=1536, first_page=(_FIRST_PAGE >> 2) + 1)
_HEADS = 64
"""Heads for which SGLang plans pooled logits."""

P4 = msgspec.structs.replace(embedded.P4, name="sglang-tiny", heads=_HEADS, geometries=_geometries(_WIDER))
"""Pooled index keys, P = 4."""
P1 = msgspec.structs.replace(
    embedded.P1, name="sglang-tiny-p1", heads=_HEADS, geometries=_geometries(_NARROW)
)
"""The same with P = 1."""


def at(
    path: Path = Path.SHARED,
    model: Model = P1,
    *,
    fusion: bool = False,
    steps: int = 3,
    mode: Mode = Mode.DECODE,
    bucket: int = 2,
    drill: Drill = Drill.PLAIN,
    kernel: Kernel = Kernel.FA3,
) -> Case:
    """Return a case of SGLang on the tape; `steps` is S. Outside decode the path is `released`."""
    path = path if mode is Mode.DECODE else Path.RELEASED
    case = embedded.at(
        path, model, fusion=fusion, steps=steps, mode=mode, bucket=bucket, drill=drill, kernel=kernel
    )
    return replace(case, sut="sglang")
