"""Class K: pooled index keys."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from harness.faults.catalogue import Fault
from harness.faults.mechanisms import rules
from harness.faults.mechanisms.formulas import lengths
from harness.faults.mechanisms.keys import pages
from harness.faults.mechanisms.values import Rewritten, Spot
from harness.faults.scene import Scene
from harness.faults.sglang import seam
from harness.faults.sglang.geometry import P4, at
from harness.faults.sglang.modes import starting_at
from harness.faults.sglang.seam import AtSeam
from harness.types import Mode, Path

FORMULA = "wrong formula"
ROUNDING = "wrong rounding"


def rounded_up(
    scene: Scene,
    plain: Callable[..., None],
    metadata: Any,
    seqlens_32: torch.Tensor,
    *rest: Any,
    **given: Any,
) -> None:
    """Count pools up to the incomplete one."""
    scene.hit()
    plain(metadata, seqlens_32 + given["kpool"] - 1, *rest, **given)


def without_pools(
    scene: Scene, plain: Callable[..., torch.Tensor], *args: Any, index_kpool: int = 1, **given: Any
) -> torch.Tensor:
    """Cut the selected tokens off at K in the middle of a pool."""
    cut = plain(*args, index_kpool=1, **given)
    scene.hit(not torch.equal(cut, plain(*args, index_kpool=index_kpool, **given)))
    return cut


def not_fused_for_pools(scene: Scene, plain: Callable[..., None], **given: Any) -> None:
    """Call the fused kernel as if there were no pools."""
    scene.hit()
    plain(**{**given, "index_kpool": 1})


def first_rows_context(spot: Spot) -> torch.Tensor:
    """Every row of a request sees what its first row sees."""
    first = spot.fresh.view(spot.bucket, -1)[:, :1]
    return first.expand(spot.bucket, spot.dims.draft_tokens).reshape(-1)


FAULTS = (
    Fault(
        id="K1",
        text="A decode writes one token late, so its pool and its tail are the next ones at times.",
        case=at(model=P4, fusion=True),
        injection=AtSeam(seam.WRITE_PLAN, starting_at(lambda scene: 1), FORMULA),
        expected="equivalence",
    ),
    Fault(
        id="K1b",
        text="The tail's start is rounded up to the next pool.",
        case=at(Path.RELEASED, P4, fusion=True),
        injection=Rewritten(
            ("kpool_write_plan.tail_logical_start",),
            lengths(lambda spot, given: -(-(given - 1) // spot.dims.pool) * spot.dims.pool),
            ROUNDING,
            steps=(1,),
        ),
        expected="equivalence",
    ),
    Fault(
        id="K3",
        text="Where a pool is complete its slot is kept, though the tokens have moved since.",
        case=at(model=P4),
        injection=Rewritten(
            ("kpool_write_plan.write_loc",), rules.kept(pages(4)), "skipped while a key is unchanged"
        ),
        expected="freshness",
        also=("equivalence",),
    ),
    Fault(
        id="K4",
        text="Of a verification only the first row's context is right: the others have the same.",
        case=at(model=P4, mode=Mode.TARGET_VERIFY),
        injection=Rewritten(("dsa_seqlens_expanded",), first_rows_context, "wrong row"),
        expected="equivalence",
    ),
    Fault(
        id="K4b",
        text="The number of attended tokens is cut off in the middle of a pool.",
        case=at(model=P4),
        injection=AtSeam(seam.SPARSE_LENGTHS, without_pools, FORMULA),
        expected="equivalence",
    ),
    Fault(
        id="X10",
        letter="K",
        text="Pools are counted up to the incomplete one, their schedule and plan with them.",
        case=at(Path.SHARED_IN_GRAPH, P4, fusion=True),
        injection=AtSeam(seam.POOLED, rounded_up, ROUNDING),
        expected="equivalence",
    ),
    Fault(
        id="X11",
        letter="K",
        text="The fused kernel is called as if there were no pools.",
        case=at(model=P4, fusion=True),
        injection=AtSeam(seam.FUSED_DECODE, not_fused_for_pools, FORMULA),
        expected="equivalence",
    ),
)
