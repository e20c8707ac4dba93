"""Class D: wrong width, stride, slice or row. Row 0 is right under any stride, so most show from row 1 on."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from harness.case import PHYSICAL_PAGE
from harness.faults.catalogue import Fault
from harness.faults.geometry import P1, at
from harness.faults.mechanisms import rules
from harness.faults.mechanisms.binding import MadeOtherwise
from harness.faults.mechanisms.formulas import Ints, Move, on, table_cells
from harness.faults.mechanisms.life import AtCapture
from harness.faults.mechanisms.timing import Reading
from harness.faults.mechanisms.values import Rewritten, Spot
from harness.faults.mechanisms.when import Padded
from harness.faults.scene import Given, Scene
from harness.types import Mode, Path

STRIDE = "wrong stride"
SLICE = "wrong slice"
ROW = "wrong row"
WIDTH = "wrong size"


def spread(scene: Scene, bucket: int) -> None:
    """Give each row's query offset the stride of another layout."""
    for step in scene.steps:
        leaf = scene.leaf(step, bucket, "cu_seqlens_q")
        leaf.copy_(torch.arange(leaf.shape[0], device=leaf.device) * 2)


def half_as_wide(spot: Spot, flat: Ints) -> Ints:
    """Rows of the wide table taken to begin at half their distance."""
    width = spot.dims.width
    row, column = flat // width, flat % width
    return np.asarray(row * (width // 2) + column)


def packed(spot: Spot, flat: Ints) -> Ints:
    """Rows taken to follow each other by the pages in use, not by the parent's width."""
    width = spot.dims.width
    used = int(-(-spot.round.lengths.max() // PHYSICAL_PAGE)) * PHYSICAL_PAGE
    return np.asarray((flat // width) * used + flat % width)


def reached(move: Move) -> Callable[[Spot], torch.Tensor]:
    """Return the formula: pages at the cells to which `move` sends a flat index of the wide table."""
    return lambda spot: on(spot, table_cells(spot, move))


def tiled(spot: Spot) -> torch.Tensor:
    """Every request's rows side by side in the order of tokens, not of requests."""
    each = spot.dims.rows // spot.bucket
    order = np.arange(spot.dims.rows) % spot.bucket * each
    return spot.fresh[torch.from_numpy(order).to(spot.fresh.device)]


def whole_vector(spot: Spot) -> torch.Tensor:
    """A step reads the vector of all steps from its start, where its slice has a stride."""
    steps = len(spot.scene.steps)
    row = torch.arange(spot.fresh.shape[0], device=spot.fresh.device) // steps
    return spot.fresh[row]


def narrow_pages(spot: Spot) -> torch.Tensor:
    """Pools go to slots as if a page held 32 of them."""
    start = spot.round.lengths - 1
    pool = start // spot.dims.pool
    column = np.minimum((pool // 32) * spot.dims.pool, spot.dims.pages - 1)
    page = spot.round.table[spot.round.requests, column * PHYSICAL_PAGE] // PHYSICAL_PAGE // spot.dims.pool
    return on(spot, page.astype(np.int64) * PHYSICAL_PAGE + pool % 32)


def one_row_on(scene: Scene, given: Given) -> Given:
    """Read lengths from a view of the largest bucket's tensor that begins a row late."""
    return Given(given.lengths.roll(-1), given.requests, given.accepted, given.table)


def last_live_row(spot: Spot) -> torch.Tensor:
    """Padding is written with what the last live row has, as a copy of the whole padded width does."""
    value = spot.fresh.clone()
    value[spot.round.live :] = value[max(spot.round.live - 1, 0)]
    return value


def without_last_column(scene: Scene, bucket: int, leaf: torch.Tensor) -> torch.Tensor:
    """One column short."""
    return leaf[:, :-1].clone()


def into_the_next(scene: Scene, bucket: int, leaf: torch.Tensor) -> torch.Tensor:
    """Too few rows were counted, so the last one lies on the leaf that follows in the same block."""
    following = scene.leaf(0, bucket, "kpool_write_plan.tail_logical_start")
    block = torch.zeros(leaf.shape[0] + following.shape[0] - 1, dtype=leaf.dtype, device=leaf.device)
    scene.bind(0, bucket, "kpool_write_plan.tail_logical_start", block[leaf.shape[0] - 1 :])
    return block[: leaf.shape[0]]


FAULTS = (
    Fault(
        id="D1",
        text="Offsets of query rows have the stride of another token layout.",
        case=at(mode=Mode.DRAFT_EXTEND, bucket=2),
        injection=AtCapture(spread, STRIDE),
        expected="equivalence",
    ),
    Fault(
        id="D3",
        text="A buffer was sized for too few rows: its last one lies on the buffer that follows.",
        case=at(),
        injection=MadeOtherwise("kpool_write_plan.write_start", into_the_next, "overlapping allocation"),
        expected="aliasing",
        also=("freshness", "equivalence"),
    ),
    Fault(
        id="D4",
        text="A step is handed the vector of all steps where it takes its own slice for granted.",
        case=at(Path.INDEPENDENT),
        injection=Rewritten(("kpool_write_plan.write_start",), whole_vector, SLICE, steps=(1,)),
        expected="equivalence",
    ),
    Fault(
        id="D4b",
        text="A step gets the write locations of the row before, a slice that begins too early.",
        case=at(Path.SIBLING_COPY),
        injection=Rewritten(("kpool_write_plan.write_loc",), rules.rolled(), SLICE, steps=(1,)),
        expected="equivalence",
    ),
    Fault(
        id="D6",
        text="The leading stride of the request table is ignored and half of it taken.",
        case=at(model=P1),
        injection=Rewritten(("real_page_table",), reached(half_as_wide), STRIDE),
        expected="equivalence",
    ),
    Fault(
        id="D7",
        text="Rows of a sliced page table are read as if they followed each other without a gap.",
        case=at(Path.INDEPENDENT, P1),
        injection=Rewritten(("real_page_table",), reached(packed), STRIDE),
        expected="equivalence",
    ),
    Fault(
        id="D7b",
        text="In target-verify the rows of one request do not lie together but N apart.",
        case=at(mode=Mode.TARGET_VERIFY, bucket=2),
        injection=Rewritten(("real_page_table", "page_table_1"), tiled, ROW),
        expected="equivalence",
    ),
    Fault(
        id="D9",
        text="A page table was made one column too narrow.",
        case=at(model=P1),
        injection=MadeOtherwise("real_page_table", without_last_column, WIDTH),
        expected="address",
        also=("routing", "equivalence"),
    ),
    Fault(
        id="D9b",
        text="Columns that a longer batch needs are not filled, since the batch before was shorter.",
        case=at(model=P1),
        injection=Rewritten(("page_table_1",), rules.first_columns(256), "partial columns"),
        expected="freshness",
        also=("equivalence",),
    ),
    Fault(
        id="D10",
        text="Padding is copied along with the live rows, so that it looks like requests.",
        case=at(),
        injection=Rewritten(
            ("pooled_cache_seqlens_int32",), last_live_row, "padding not told apart", when=Padded()
        ),
        expected="equivalence",
    ),
    Fault(
        id="D12",
        text="The view that a replay gets is the whole capacity, and its rows begin elsewhere.",
        case=at(model=P1),
        injection=Reading(one_row_on, SLICE),
        expected="equivalence",
        also=("freshness",),
    ),
    Fault(
        id="D13",
        text="Pooled keys are laid out by pages of another size, so that several pools go to one slot.",
        case=at(),
        injection=Rewritten(("kpool_write_plan.write_loc",), narrow_pages, "wrong page size"),
        expected="equivalence",
    ),
    Fault(
        id="D13b",
        text="A pooled page is looked up in the column of its own number, not of its first physical page.",
        case=at(Path.INDEPENDENT),
        injection=Rewritten(
            ("pooled_real_page_table",),
            lambda spot: spot.sibling("real_page_table")[:, : spot.fresh.shape[1]] // spot.dims.pool,
            "wrong stride",
        ),
        expected="equivalence",
    ),
)
