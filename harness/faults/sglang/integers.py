"""Class E: integers of the wrong width, sign or dtype."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch

from harness.faults.catalogue import Fault
from harness.faults.mechanisms.binding import MadeOtherwise
from harness.faults.mechanisms.combined import Combined
from harness.faults.mechanisms.formulas import on, per_row, token
from harness.faults.mechanisms.timing import Reading
from harness.faults.mechanisms.values import Rewritten, Spot
from harness.faults.scene import Given, Scene
from harness.faults.sglang import seam
from harness.faults.sglang.geometry import P4, at
from harness.faults.sglang.seam import AtSeam, StagedRefresh
from harness.types import Mode, Path

NARROW = "narrow integers"
DTYPE = "dtype change"


def ids_through_floats(scene: Scene, plain: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Token ids on a way through float32, which holds integers up to 2**24."""
    given = plain(*args, **kwargs)
    pages = given.page_indices.to(torch.float32).to(torch.int32)
    scene.hit(not torch.equal(pages, given.page_indices))
    return dataclasses.replace(given, page_indices=pages)


def pages_in_16_bits(
    scene: Scene, plain: Callable[..., torch.Tensor], backend: Any, table: torch.Tensor
) -> torch.Tensor:
    """Page ids kept in 16 bits."""
    pages = plain(backend, table)
    narrow = pages.to(torch.int16).to(torch.int32)
    scene.hit(not torch.equal(narrow, pages))
    return narrow


def pages_through_floats(spot: Spot) -> torch.Tensor:
    """Physical page ids on a way through float32, which holds integers up to 2**24."""
    return spot.fresh.to(torch.float32).to(torch.int32)


def halves(scene: Scene, plain: Callable[..., None], *, seq_lens: torch.Tensor, **given: Any) -> None:
    """Lengths of 64 bits looked at as 32: every second one is the upper half of another."""
    scene.hit()
    plain(seq_lens=seq_lens.view(torch.int32)[: seq_lens.shape[0]], **given)


def slots_through_floats(spot: Spot) -> torch.Tensor:
    """Slots of pooled keys on a way through float32."""
    return spot.fresh.to(torch.float32).to(torch.int64)


def through_bfloat16(scene: Scene, given: Given) -> Given:
    """Lengths on a way through bfloat16, which holds integers up to 256."""
    lengths = given.lengths.to(torch.bfloat16).to(given.lengths.dtype)
    return Given(lengths, given.requests, given.accepted, given.table)


def few_requests(scene: Scene, given: Given) -> Given:
    """Request ids kept in three bits."""
    return Given(given.lengths, given.requests % 8, given.accepted, given.table)


def not_clamped(spot: Spot) -> torch.Tensor:
    """Lengths counted back from a padded row's fill, which end below zero."""
    first = per_row(spot, spot.round.lengths - spot.dims.draft_tokens)
    return on(spot, first + token(spot) + 1)


def wider(scene: Scene, bucket: int, leaf: torch.Tensor) -> torch.Tensor:
    """The same leaf as int64."""
    return leaf.to(torch.int64)


FAULTS = (
    Fault(
        id="E1",
        text="Token ids lose their last bits on a way through float32.",
        case=at(),
        injection=Combined((StagedRefresh(), AtSeam(seam.PRECOMPUTE, ids_through_floats, NARROW)), NARROW),
        expected="equivalence",
    ),
    Fault(
        id="E1b",
        text="Page ids are kept in 16 bits.",
        case=at(Path.RELEASED, P4),
        injection=AtSeam(seam.TABLE, pages_in_16_bits, NARROW),
        expected="equivalence",
    ),
    Fault(
        id="E1c",
        text="Physical page ids lose their last bits on a way through float32.",
        case=at(model=P4, fusion=True),
        injection=Rewritten(("real_page_table",), pages_through_floats, NARROW),
        expected="equivalence",
    ),
    Fault(
        id="E3",
        text="Slots of pooled keys lose their last bits on a way through float32.",
        case=at(model=P4),
        injection=Rewritten(("kpool_write_plan.write_loc",), slots_through_floats, NARROW),
        expected="equivalence",
    ),
    Fault(
        id="E4",
        text="Lengths lose their last bits on a way through bfloat16.",
        case=at(Path.SHARED_IN_GRAPH, P4),
        injection=Reading(through_bfloat16, NARROW),
        expected="equivalence",
    ),
    Fault(
        id="E4b",
        text="Request ids are kept in too few bits, so that two requests become one.",
        case=at(model=P4, bucket=4),
        injection=Reading(few_requests, NARROW),
        expected="equivalence",
    ),
    Fault(
        id="E6",
        text="Lengths of 64 bits are taken for 32: every second one is zero.",
        case=at(),
        injection=AtSeam(seam.FUSED_DECODE, halves, DTYPE),
        expected="equivalence",
    ),
    Fault(
        id="E7",
        text="Prefix sums are made with 64 bits where the kernel is built for 32.",
        case=at(Path.RELEASED, P4),
        injection=MadeOtherwise("cu_seqlens_k", wider, DTYPE),
        expected="equivalence",
    ),
    Fault(
        id="E9",
        text="In draft-extend a padded row's length is counted back below zero.",
        case=at(mode=Mode.DRAFT_EXTEND, steps=2),
        injection=Rewritten(("dsa_seqlens_expanded",), not_clamped, "wrong sign"),
        expected="equivalence",
    ),
)
