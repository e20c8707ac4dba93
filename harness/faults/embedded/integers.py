"""Class E: integers of the wrong width, sign or dtype, scaled down to the small models' ids."""

from __future__ import annotations

import numpy as np
import torch

from harness.faults.catalogue import Fault
from harness.faults.geometry import P1, at
from harness.faults.mechanisms import rules
from harness.faults.mechanisms.binding import MadeOtherwise
from harness.faults.mechanisms.formulas import on, per_row, token
from harness.faults.mechanisms.timing import Reading
from harness.faults.mechanisms.values import Rewritten, Spot
from harness.faults.scene import Given, Scene
from harness.types import Mode, Path

NARROW = "narrow integers"
DTYPE = "dtype change"


def halves(spot: Spot) -> torch.Tensor:
    """int64 lengths looked at as int32: every second entry is the upper half of one."""
    lengths = torch.from_numpy(spot.round.lengths.copy()).to(spot.fresh.device)
    return lengths.view(torch.int32)[: spot.fresh.shape[0]].view(spot.fresh.shape)


def pairs(spot: Spot) -> torch.Tensor:
    """int32 ids looked at as int64: two of them in one."""
    ids = torch.from_numpy(np.repeat(spot.round.requests.astype(np.int32), 2)).to(spot.fresh.device)
    return ids.view(torch.int64).view(spot.fresh.shape)


def not_clamped(spot: Spot) -> torch.Tensor:
    """Lengths counted back from a padded row's fill, which end below zero."""
    first = per_row(spot, spot.round.lengths - spot.dims.draft_tokens)
    return on(spot, first + token(spot) + 1)


def through_half(scene: Scene, given: Given) -> Given:
    """Token ids on a way through half precision, which holds 2048 of them."""
    table = given.table.to(torch.float16).to(given.table.dtype)
    return Given(given.lengths, given.requests, given.accepted, table)


def few_requests(scene: Scene, given: Given) -> Given:
    """Request ids kept in three bits."""
    return Given(given.lengths, given.requests % 8, given.accepted, given.table)


def wider(scene: Scene, bucket: int, leaf: torch.Tensor) -> torch.Tensor:
    """The same leaf as int64."""
    return leaf.to(torch.int64)


FAULTS = (
    Fault(
        id="E1",
        text="A page id times its stride wraps: large ids turn negative.",
        case=at(model=P1),
        injection=Rewritten(("real_page_table",), rules.wrapped(8), NARROW),
        expected="equivalence",
    ),
    Fault(
        id="E1b",
        text="Token ids lose their last bits on a way through half precision.",
        case=at(Path.INDEPENDENT, P1),
        injection=Reading(through_half, NARROW),
        expected="equivalence",
    ),
    Fault(
        id="E3",
        text="An unsigned product wraps: slots beyond the range begin at zero again.",
        case=at(),
        injection=Rewritten(
            ("kpool_write_plan.write_loc",), rules.computed(lambda spot: spot.fresh % 1024), NARROW
        ),
        expected="equivalence",
    ),
    Fault(
        id="E4",
        text="A signed product wraps: the forward writes below its buffer.",
        case=at(Path.SIBLING_COPY),
        injection=Rewritten(("kpool_write_plan.write_loc",), rules.wrapped(11), NARROW),
        expected="equivalence",
    ),
    Fault(
        id="E4b",
        text="Request ids are kept in too few bits, so that two requests become one.",
        case=at(model=P1),
        injection=Reading(few_requests, NARROW),
        expected="equivalence",
    ),
    Fault(
        id="E6",
        text="Lengths of 64 bits are taken for 32: every second one is zero.",
        case=at(model=P1),
        injection=Rewritten(("cache_seqlens_int32",), halves, DTYPE),
        expected="equivalence",
    ),
    Fault(
        id="E7",
        text="Ids of 32 bits are taken for 64: two requests in one.",
        case=at(),
        injection=Rewritten(("kpool_write_plan.req",), pairs, DTYPE),
        expected="equivalence",
    ),
    Fault(
        id="E7b",
        text="Prefix sums are made with 64 bits where the kernel is built for 32.",
        case=at(Path.INDEPENDENT, P1),
        injection=MadeOtherwise("cu_seqlens_k", wider, DTYPE),
        expected="equivalence",
        also=("routing",),
    ),
    Fault(
        id="E9",
        text="In draft-extend a padded row's length is counted back below zero.",
        case=at(model=P1, mode=Mode.DRAFT_EXTEND, bucket=2),
        injection=Rewritten(("dsa_seqlens_expanded",), not_clamped, "wrong sign"),
        expected="equivalence",
    ),
)
