"""Classes D and L: wrong width, stride, slice or row, and copies that do not write all of their output."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch

from harness.case import PHYSICAL_PAGE
from harness.faults.catalogue import Fault
from harness.faults.mechanisms.binding import MadeOtherwise
from harness.faults.mechanisms.combined import Combined
from harness.faults.mechanisms.life import AtCapture
from harness.faults.mechanisms.timing import Reading
from harness.faults.mechanisms.values import Rewritten, Spot
from harness.faults.mechanisms.when import InBucket, Padded
from harness.faults.scene import Given, Scene
from harness.faults.sglang import seam
from harness.faults.sglang.geometry import P4, at
from harness.faults.sglang.seam import AtSeam, StagedRefresh
from harness.types import Mode, Path

STRIDE = "wrong stride"
SLICE = "wrong slice"
ROW = "wrong row"
UNWRITTEN = "output not wholly written"
BS, MAX_LEN = 19, 20
"""Places of two parameters in a call of the fused copy."""
MULTI_BS = 32
"""Place of the batch size in a call of the multi-destination copy."""


def spread(scene: Scene, bucket: int) -> None:
    """Give each row's query offset the stride of another layout."""
    leaf = scene.leaf(0, bucket, "cu_seqlens_q")
    leaf.copy_(torch.arange(leaf.shape[0], device=leaf.device) * 2)


def tables_of_the_next_row(
    scene: Scene, plain: Callable[..., None], backend: Any, bs: int, metadata: Any, given: Any, mode: Any
) -> None:
    """Copy tables from a slice that begins a row late."""
    late = dataclasses.replace(
        given, page_indices=given.page_indices.roll(-1, 0), real_page_table=given.real_page_table.roll(-1, 0)
    )
    scene.hit(not torch.equal(late.real_page_table, given.real_page_table))
    plain(backend, bs, metadata, late, mode)


def into_the_neighbour(
    scene: Scene, plain: Callable[..., None], backend: Any, bs: int, metadata: Any, given: Any, mode: Any
) -> None:
    """Copy into the next larger bucket's buffers."""
    larger = min(bucket for bucket in scene.buckets if bucket > bs)
    scene.hit()
    plain(backend, bs, backend.decode_cuda_graph_metadata[larger], given, mode)


def half_stride(
    scene: Scene, plain: Callable[..., torch.Tensor], backend: Any, table: torch.Tensor
) -> torch.Tensor:
    """Take each page's first token at half the distance."""
    columns = torch.arange(0, table.shape[1] // 2, PHYSICAL_PAGE // 2, device=table.device)
    scene.hit()
    return table[:, columns] // PHYSICAL_PAGE


def by_its_own_number(
    scene: Scene, plain: Callable[..., torch.Tensor], table: torch.Tensor, kpool: int
) -> torch.Tensor:
    """Look a pooled page up in the column of its own number, not of its first physical page."""
    scene.hit()
    return table[..., : -(-table.shape[-1] // kpool)] // kpool


def last_rows(scene: Scene, given: Given) -> Given:
    """Slice the lengths of a smaller bucket from the end of the largest one's tensor."""
    rows = given.lengths.shape[0]
    lengths = scene.target.inputs()["seq_lens"][-rows:]
    return Given(lengths, given.requests, given.accepted, given.table)


def whole_columns_only(scene: Scene, plain: Callable[..., None], *arguments: Any) -> None:
    """Copy as many blocks of 128 columns as the longest request fills."""
    longest = int(scene.round.lengths.max())
    given = list(arguments)
    given[MAX_LEN] = longest // 128 * 128
    scene.hit(bool(longest % 128))
    plain(*given)


def live_rows_only(place: int) -> Callable[..., None]:
    """Return an around for a fused copy whose batch size, at `place`, is the live one."""

    def around(scene: Scene, plain: Callable[..., None], *arguments: Any) -> None:
        given = list(arguments)
        given[place] = min(given[place], scene.round.live)
        scene.hit(given[place] != arguments[place])
        plain(*given)

    return around


def without_the_last_row(scene: Scene, plain: Callable[..., torch.Tensor], *args: Any, **kwargs: Any) -> Any:
    """Plan with a header that counts a row which was not written."""
    plan = plain(*args, **kwargs)
    count = int(plan[0, 1])
    if count:
        plan[count] = -1
    scene.hit(bool(count))
    return plan


def without_last_page(spot: Spot) -> torch.Tensor:
    """The page that a row's last token is on is not written."""
    value = spot.fresh.clone()
    last = torch.from_numpy((spot.round.lengths - 1) // PHYSICAL_PAGE).to(value.device)
    row = torch.arange(value.shape[0], device=value.device)
    value[row, last] = spot.before[row, last]
    return value


def last_column_shifted(spot: Spot) -> torch.Tensor:
    """Only the last candidate of each row has the slot of the one before."""
    value = spot.fresh.clone()
    value[:, -1] = value[:, 0]
    return value


def last_live_row(spot: Spot) -> torch.Tensor:
    """Padding is written with what the last live row has, as a copy of the whole padded width does."""
    value = spot.fresh.clone()
    value[spot.round.live :] = value[max(spot.round.live - 1, 0)]
    return value


def into_the_next(scene: Scene, bucket: int, leaf: torch.Tensor) -> torch.Tensor:
    """Too few rows were counted, so the last one lies on the leaf that follows in the same block."""
    name = "kpool_write_plan.tail_logical_start"
    following = scene.leaf(0, bucket, name)
    block = torch.zeros(leaf.shape[0] + following.shape[0] - 1, dtype=leaf.dtype, device=leaf.device)
    scene.bind(0, bucket, name, block[leaf.shape[0] - 1 :])
    return block[: leaf.shape[0]]


FAULTS = (
    Fault(
        id="D1",
        text="Offsets of query rows have the stride of another token layout.",
        case=at(model=P4, mode=Mode.DRAFT_EXTEND),
        injection=AtCapture(spread, STRIDE),
        expected="equivalence",
    ),
    Fault(
        id="D3",
        text="A buffer was sized for too few rows: its last one lies on the buffer that follows.",
        case=at(model=P4),
        injection=MadeOtherwise("kpool_write_plan.write_start", into_the_next, "overlapping allocation"),
        expected="aliasing",
        also=("freshness", "equivalence"),
    ),
    Fault(
        id="D4",
        text="A step copies page tables from a slice that begins a row late.",
        case=at(Path.RELEASED, P4, fusion=True),
        injection=AtSeam(seam.BASE_COPY, tables_of_the_next_row, SLICE, steps=(1,)),
        expected="equivalence",
    ),
    Fault(
        id="D6",
        text="Physical pages are taken at half their distance in the wide table.",
        case=at(model=P4),
        injection=AtSeam(seam.TABLE, half_stride, STRIDE),
        expected="equivalence",
        also=("freshness",),
    ),
    Fault(
        id="D7",
        text="A smaller bucket's lengths are sliced from the wrong end of the persistent tensor.",
        case=at(model=P4, bucket=4),
        injection=Reading(last_rows, SLICE, when=InBucket(0)),
        expected="equivalence",
        also=("freshness",),
    ),
    Fault(
        id="D9",
        text="The fused copy takes whole blocks of 128 columns, so a row's last columns stay.",
        case=at(),
        injection=Combined((StagedRefresh(), AtSeam(seam.COPY, whole_columns_only, UNWRITTEN)), UNWRITTEN),
        expected="freshness",
    ),
    Fault(
        id="D10",
        text="Padding is copied along with the live rows, so that it looks like requests.",
        case=at(model=P4),
        injection=Rewritten(
            ("pooled_cache_seqlens_int32",), last_live_row, "padding not told apart", when=Padded()
        ),
        expected="equivalence",
    ),
    Fault(
        id="D12",
        text="In the smaller bucket a step's base buffers are copied into the larger bucket's.",
        case=at(Path.RELEASED, P4, fusion=True),
        injection=AtSeam(
            seam.BASE_COPY, into_the_neighbour, "wrong bucket's object", steps=(1,), when=InBucket(0)
        ),
        expected="freshness",
        also=("refresh",),
    ),
    Fault(
        id="D13",
        text="A pooled page is looked up in the column of its own number, not of its first physical page.",
        case=at(model=P4),
        injection=AtSeam(seam.POOLED_TABLE, by_its_own_number, STRIDE),
        expected="equivalence",
    ),
    Fault(
        id="D13b",
        text="Of the pools that a verification may close the last has the slot of the first.",
        case=at(model=P4, mode=Mode.TARGET_VERIFY, steps=4),
        injection=Rewritten(("kpool_write_plan.write_loc",), last_column_shifted, "last column only"),
        expected="equivalence",
    ),
    Fault(
        id="L1",
        text="A plan's header counts a row that the planner did not write.",
        case=at(model=P4, bucket=4),
        injection=AtSeam(seam.PLANNER, without_the_last_row, UNWRITTEN),
        expected="equivalence",
        also=("freshness",),
    ),
    Fault(
        id="L1b",
        text="The last page of each row is not written.",
        case=at(Path.RELEASED, P4, fusion=True),
        injection=Rewritten(("real_page_table",), without_last_page, UNWRITTEN, steps=(1,)),
        expected="freshness",
    ),
    Fault(
        id="F4",
        text="The fused copy is given the live batch, so padded rows keep what they had.",
        case=at(),
        injection=Combined((StagedRefresh(), AtSeam(seam.COPY, live_rows_only(BS), UNWRITTEN)), UNWRITTEN),
        expected="freshness",
        also=("equivalence",),
    ),
    Fault(
        id="F4b",
        text="The same of the multi-destination copy, on a table that is not fused.",
        case=at(Path.RELEASED, P4, steps=4),
        injection=AtSeam(seam.MULTI_COPY, live_rows_only(MULTI_BS), UNWRITTEN),
        expected="freshness",
        also=("equivalence",),
    ),
)
