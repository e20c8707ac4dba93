"""The small models that the catalogue drives SGLang with, and a short way to write a case of them.

Widths are what Triton's interpreter can do in time: the pooled schedule of P = 4 has two segments, and page
ids lie where neither 16 bits nor a float32 hold them.
"""

from __future__ import annotations

from dataclasses import replace

import msgspec

from harness.case import Case, Model
from harness.faults import geometry as embedded
from harness.types import Drill, EngineKind, Kernel, Mode, Path

_FIRST_PAGE = 262145
_NARROW = msgspec.structs.replace(
    embedded.P4.geometries[EngineKind.TAPE.value], topk=512, first_page=_FIRST_PAGE
)
_WIDER = msgspec.structs.replace(_NARROW, width=1280)
_HEADS = 64
"""Heads for which SGLang plans pooled logits."""

P4 = msgspec.structs.replace(
    embedded.P4, name="sglang-tiny", heads=_HEADS, geometries={kind.value: _WIDER for kind in EngineKind}
)
"""Pooled index keys, P = 4."""
P1 = msgspec.structs.replace(
    embedded.P1, name="sglang-tiny-p1", heads=_HEADS, geometries={kind.value: _NARROW for kind in EngineKind}
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
