"""How the fused refresh is cut into programs: constants, jobs and grid of a launch, from dimensions alone."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

from harness.case import PHYSICAL_PAGE
from harness.fields import Dims, plan_is_written
from harness.types import Kernel, Mode

MOST_BLOCK = 1024
"""Most rows that a job looks at together."""
COPYING = 2048
"""Programs that copy page tables, about: enough for every multiprocessor, few enough to start at once."""


@dataclass(frozen=True)
class Tiling:
    """Sizes of one launch; every number but `shares` is a power of two."""

    block: int
    """Rows that a job looks at together."""
    chunk: int
    """The same where each of them is compared with every worker of the program."""
    workers: int
    """Workers whose share of a schedule one program writes."""
    tile: int
    """Columns of a page table that are copied together, a multiple of 64."""
    shares: int
    """Programs that copy one request's columns, in turn."""
    warps: int = 4

    @classmethod
    def compiled(cls, dims: Dims) -> Tiling:
        """Return the sizes for a GPU: short jobs side by side, 16 columns a thread."""
        tile = 2048
        shares = min(-(-dims.width // tile), max(1, COPYING // dims.bucket))
        return cls(
            block=min(_power(dims.rows), MOST_BLOCK),
            chunk=min(_power(dims.rows), 64),
            workers=min(_power(dims.num_sms + 1), 32),
            tile=tile,
            shares=shares,
        )

    @classmethod
    def interpreted(cls, dims: Dims) -> Tiling:
        """Return the sizes for Triton's interpreter, which takes its time by the program: few, large ones."""
        return cls(
            block=_power(dims.rows),
            chunk=_power(dims.rows),
            workers=_power(dims.num_sms + 1),
            tile=_power(dims.width),
            shares=1,
        )


@dataclass(frozen=True)
class LaunchPlan:
    """What `fused_kernel.refresh` is launched with besides tensors, strides and the width."""

    grid: int
    """Programs."""
    warps: int
    constants: dict[str, int | tuple[int, ...]]
    """The kernel's parameters in capitals."""
    plans: bool
    """Whether top-k plans are written."""

    @classmethod
    def of(cls, dims: Dims, tiling: Tiling) -> LaunchPlan:
        """Plan the launch for one bucket."""
        written = dims.draft_tokens if dims.expanded else 1
        pooled = dims.pool > 1
        planned = plan_is_written(dims)
        flashmla = dims.kernel is Kernel.FLASHMLA_KV and not pooled
        parts = -(-(dims.num_sms + 1) // tiling.workers)
        jobs = {
            "SCHEDULE": parts,
            "POOLED_SCHEDULE": parts if pooled else 0,
            "PLAN": int(planned),
            "POOLED_PLAN": int(planned and pooled),
            "WRITE_PLAN": int(pooled),
            "FLASHMLA": parts if flashmla else 0,
            "TABLES": dims.bucket * tiling.shares,
        }
        first = list(accumulate(jobs.values(), initial=1))  # program 0 writes the lengths
        thresholds, caps = zip(*dims.plan.candidates, strict=True)
        constants: dict[str, int | tuple[int, ...]] = {
            "BS": dims.bucket,
            "ROWS": dims.rows,
            "REPEAT": dims.rows // dims.bucket,
            "GROWN": dims.draft_tokens if dims.mode is Mode.TARGET_VERIFY else 0,
            "FIRST": _first(dims),
            "START": _first(dims) - 1,
            "POOL": dims.pool,
            "TOPK": dims.topk,
            "SMS": dims.num_sms,
            "LOCATIONS": -(-written // dims.pool),
            "THRESHOLDS": thresholds,
            "CAPS": caps,
            "CANDIDATES": len(caps),
            "SLOTS": _power(len(caps)),
            **dict(zip(jobs, first, strict=False)),
            "BLOCK": tiling.block,
            "CHUNK": tiling.chunk,
            "WORKERS": tiling.workers,
            "TILE": max(tiling.tile, PHYSICAL_PAGE),
            "SHARES": tiling.shares,
        }
        return cls(first[-1], tiling.warps, constants, planned)


def _first(dims: Dims) -> int:
    """Return the context length of a request's first row, minus its `seq_lens`."""
    return {Mode.DECODE: 0, Mode.TARGET_VERIFY: 1, Mode.DRAFT_EXTEND: 1 - dims.draft_tokens}[dims.mode]


def _power(size: int) -> int:
    """Return the smallest power of two that is not below `size`."""
    return 1 << max(size - 1, 0).bit_length()
