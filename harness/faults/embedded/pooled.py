"""Classes K and L: pooled index keys, and kernels that leave a part of their output unwritten."""

from __future__ import annotations

import numpy as np
import torch

from harness.faults.catalogue import Fault
from harness.faults.geometry import P1, at
from harness.faults.mechanisms import rules
from harness.faults.mechanisms.formulas import lengths, on, visible
from harness.faults.mechanisms.keys import pages
from harness.faults.mechanisms.values import Rewritten, Spot
from harness.types import Mode, Path

FORMULA = "wrong formula"
UNWRITTEN = "output not wholly written"


def tokens_of_top_k(spot: Spot) -> torch.Tensor:
    """The shorter of length and top-k, without regard to whole pools."""
    return on(spot, np.minimum(visible(spot), spot.dims.topk))


def rows_cut(spot: Spot) -> torch.Tensor:
    """A plan whose header counts rows beyond the second that nobody wrote."""
    value = spot.before.clone()
    value[:2] = spot.fresh[:2]
    return value


def without_last_page(spot: Spot) -> torch.Tensor:
    """The page that a row's last token is on is not written."""
    value = spot.fresh.clone()
    last = torch.from_numpy((spot.round.lengths - 1) // 64).to(value.device)
    row = torch.arange(value.shape[0], device=value.device)
    value[row, last] = spot.before[row, last]
    return value


def first_rows_context(spot: Spot) -> torch.Tensor:
    """Every row of a request sees what its first row sees."""
    first = spot.fresh.view(spot.bucket, -1)[:, :1]
    return first.expand(spot.bucket, spot.dims.draft_tokens).reshape(-1)


FAULTS = (
    Fault(
        id="K1",
        text="The tail's start falls back to the token itself, not to the pool that it lies in.",
        case=at(),
        injection=Rewritten(
            ("kpool_write_plan.tail_logical_start",), lengths(lambda spot, given: given - 1), FORMULA
        ),
        expected="equivalence",
    ),
    Fault(
        id="K1b",
        text="The tail's start is rounded up to the next pool.",
        case=at(Path.INDEPENDENT, fusion=True),
        injection=Rewritten(
            ("kpool_write_plan.tail_logical_start",),
            lengths(lambda spot, given: -(-(given - 1) // spot.dims.pool) * spot.dims.pool),
            "wrong rounding",
        ),
        expected="equivalence",
    ),
    Fault(
        id="K3",
        text="Where a pool is complete its slot is kept, though the tokens have moved since.",
        case=at(),
        injection=Rewritten(
            ("kpool_write_plan.write_loc",), rules.kept(pages(4)), "skipped while a key is unchanged"
        ),
        expected="freshness",
        also=("equivalence",),
    ),
    Fault(
        id="K4",
        text="Of a verification only the first row's context is right: the others have the same.",
        case=at(mode=Mode.TARGET_VERIFY, bucket=2),
        injection=Rewritten(("dsa_seqlens_expanded",), first_rows_context, "wrong row"),
        expected="equivalence",
    ),
    Fault(
        id="K4b",
        text="The number of attended tokens is cut off in the middle of a pool.",
        case=at(),
        injection=Rewritten(("dsa_cache_seqlens_int32",), tokens_of_top_k, FORMULA),
        expected="equivalence",
    ),
    Fault(
        id="L1",
        text="A plan's header counts rows that were never written.",
        case=at(model=P1),
        injection=Rewritten(("topk_v2_plan",), rows_cut, UNWRITTEN),
        expected="freshness",
    ),
    Fault(
        id="L1b",
        text="The last page of each row is not written.",
        case=at(Path.INDEPENDENT, P1),
        injection=Rewritten(("real_page_table",), without_last_page, UNWRITTEN),
        expected="freshness",
    ),
)
