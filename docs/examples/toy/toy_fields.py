"""What the toy's metadata has to be: its fields, and the right value of each, in NumPy only."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from harness.fields import Dims, FieldSpec, Live
from harness.rounds import Inputs
from harness.specification import Specification
from harness.types import Drill, Kernel, Mode, Path

WORKERS = 4

FIELDS = (
    FieldSpec("lengths", "int32", lambda d: (d.bucket,)),
    FieldSpec("pages", "int32", lambda d: (d.bucket, d.width // 64), live=Live.PAGES),
    FieldSpec("plan", "int32", lambda d: (WORKERS + 1,), derived=True),
)


def expected(dims: Dims, inputs: Inputs) -> dict[str, NDArray[np.generic]]:
    """Return the right values of one round."""
    segments = int(np.ceil(inputs.lengths / 256).sum())
    return {
        "lengths": inputs.lengths,
        "pages": inputs.table[inputs.requests, ::64] // 64,
        "plan": np.array([worker * segments // WORKERS for worker in range(WORKERS + 1)]),
    }


SPECIFICATION = Specification(
    fields=FIELDS,
    expected=expected,
    axes={
        "path": (Path.RELEASED, Path.SHARED),
        "mode": (Mode.DECODE,),
        "fusion": (False,),
        "kernel": (Kernel.FA3,),
        "drill": tuple(drill for drill in Drill if drill is not Drill.OVERSIZE),
    },
)
