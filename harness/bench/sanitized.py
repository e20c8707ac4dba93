"""What `sanitizer` runs under a checking tool: the fused refresh in every mode, compared with the oracle.

`PYTORCH_NO_CUDA_MEMORY_CACHING=1` gives every tensor an allocation of its own, so that an access beyond a
tensor is one beyond an allocation, which tools can see.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace

from harness import locate
from harness.bench.settings import Point, case_at, inputs_at, models_of
from harness.bench.subjects import FUSED, Subject, no_span, without_forward
from harness.bench.weigh import wrong_fields
from harness.case import Case
from harness.engine.cuda_graph import CudaGraphEngine
from harness.fields import Dims
from harness.sut.embedded.sut import EmbeddedSut
from harness.types import Kernel, Mode, Path

BUCKET = 33
"""Rows for which plans are written."""
WIDTH = 4096
ROUNDS = ((1, 4000), (700, 65))
"""Shortest and longest length of each round."""


def cases() -> Iterator[Case]:
    """Yield a case for each mode, pool size and kernel that makes the fused refresh another program."""
    for model in models_of(locate.cases_dir(None), ()).values():
        point = Point(model.name, model.index_kpool, False, 5, BUCKET, WIDTH)
        kernels = (Kernel.FA3,) if model.index_kpool > 1 else (Kernel.FA3, Kernel.FLASHMLA_KV)
        for mode in Mode:
            for kernel in kernels:
                yield replace(case_at(point, model, FUSED, Path.SHARED), mode=mode, kernel=kernel)


def main() -> int:
    """Refresh each case in two rounds; return 1 if a leaf was not the oracle's."""
    engine = CudaGraphEngine()
    status = 0
    for case in cases():
        dims = Dims.of(case, BUCKET)
        sut = EmbeddedSut(case, engine, no_span, without_forward(case, engine.device), one_launch=True)
        sut.init_graph_state()
        rounds = [inputs_at(case, _lengths(dims, *ends)) for ends in ROUNDS]
        sut.stage(rounds[0])
        sut.prepare_capture(BUCKET)
        for inputs in rounds:
            sut.stage(inputs)
            sut.refresh(BUCKET)
            engine.synchronize()
            subject = Subject(FUSED, case.path, _nothing, _nothing, sut.roots)
            wrong = wrong_fields(subject, dims, inputs)
            status |= bool(wrong)
            print(case.id, f"longest {inputs.lengths.max()}:", ", ".join(wrong) or "right", flush=True)
        sut.close()
    return status


def _lengths(dims: Dims, first: int, last: int) -> list[int]:
    least = dims.draft_tokens + dims.pool
    return [max(least, first + (last - first) * row // (dims.bucket - 1)) for row in range(dims.bucket)]


def _nothing() -> None:
    pass


if __name__ == "__main__":
    sys.exit(main())
