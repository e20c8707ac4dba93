"""Variants of class A, and their like: refreshes that are lazier than they may be, or not quite right."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from harness.case import PHYSICAL_PAGE
from harness.faults.catalogue import Fault
from harness.faults.embedded.derived import PLAN, SCHEDULE, TILES
from harness.faults.geometry import P1, WIDE1, at
from harness.faults.mechanisms import formulas, keys, rules
from harness.faults.mechanisms.formulas import lengths, schedule
from harness.faults.mechanisms.values import Rewritten, Spot
from harness.faults.mechanisms.when import InBucket, Nth
from harness.types import Drill, Kernel, Path

BY_KEY = "skipped while a key is unchanged"
ROUNDING = "wrong rounding"


def appended(spot: Spot) -> torch.Tensor:
    """Columns that a row had before are kept where the same request has grown."""
    return _grown(spot, ("rows", spot.step, spot.bucket, spot.name), by_request=False)


def appended_by_request(spot: Spot) -> torch.Tensor:
    """The same, remembered for each request id, whichever row it is in and whoever had the id before."""
    return _grown(spot, ("requests", spot.name), by_request=True)


def _grown(spot: Spot, place: tuple[object, ...], *, by_request: bool) -> torch.Tensor:
    shadow: dict[int, tuple[int, int, torch.Tensor]] = spot.scene.memory.setdefault(place, {})
    value, unit = spot.fresh.clone(), -(-spot.dims.width // spot.fresh.shape[1])
    for row in range(spot.round.live):
        request, length = int(spot.round.requests[row]), int(spot.round.lengths[row])
        key = request if by_request else row
        known = shadow.get(key)
        if known is not None and known[0] == request and length >= known[1]:
            full = known[1] // max(unit, PHYSICAL_PAGE) * max(unit, PHYSICAL_PAGE) // unit
            value[row, :full] = known[2][:full]
        shadow[key] = request, length, value[row].clone()
    return value


def kept_across_buckets(spot: Spot) -> torch.Tensor:
    """The schedule of the last refresh with the same sum of lengths, whatever its bucket."""
    memory = spot.scene.memory.setdefault("across", {})
    value: torch.Tensor = memory.setdefault(keys.longest(spot.round), spot.fresh)
    return value


def lowest_threshold(spot: Spot) -> torch.Tensor:
    """A plan whose threshold does not rise with the number of long rows."""
    threshold = spot.dims.plan.candidates[0][0]
    visible = formulas.visible(spot)
    rows = np.flatnonzero(visible > threshold)
    value = spot.before.clone()
    plan = np.concatenate([[[threshold, rows.size]], np.stack([rows, visible[rows]], 1)])
    value[: rows.size + 1] = torch.from_numpy(plan).to(value.device, value.dtype)
    return value


def segments_rounded(spot: Spot) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Context lengths that give every row a segment too many where a segment is exactly full."""
    visible = formulas.visible(spot)
    return np.asarray(visible + (visible % 256 == 0))


def last_of_one_token(spot: Spot) -> torch.Tensor:
    """A last page is left out where it holds a single token."""
    value = spot.fresh.clone()
    ends = spot.round.lengths
    for row in np.flatnonzero(ends % PHYSICAL_PAGE == 1):
        column = int(ends[row] // PHYSICAL_PAGE)
        value[row, column] = spot.before[row, column]
    return value


def unchanged_rows(spot: Spot) -> torch.Tensor:
    """Rows that have another request or length than at the bucket's refresh before."""
    place = "changed rows", spot.step, spot.bucket, spot.name
    now = np.stack([spot.round.requests, spot.round.lengths], 1)
    before = spot.scene.memory.get(place, now + 1)
    spot.scene.memory[place] = now
    return torch.from_numpy((now != before).any(1))


def incremental(spot: Spot) -> torch.Tensor:
    """What was there, and the tokens that came since."""
    place = "lengths", spot.bucket
    before = spot.scene.memory.get(place)
    spot.scene.memory[place] = spot.round.lengths
    if before is None:
        return spot.fresh
    return spot.before + torch.from_numpy(spot.round.lengths - before).to(spot.before)


FAULTS = (
    Fault(
        id="A1c",
        text="FlashMLA's tile plan is kept as long as the longest request has the same length.",
        case=at(Path.INDEPENDENT, WIDE1, kernel=Kernel.FLASHMLA_KV),
        injection=Rewritten(TILES, rules.kept(keys.longest), BY_KEY),
        expected="equivalence",
        also=("freshness",),
    ),
    Fault(
        id="A1d",
        text="FlashMLA's tile plan is kept as long as the batch has the same number of requests.",
        case=at(model=WIDE1, kernel=Kernel.FLASHMLA_KV),
        injection=Rewritten(TILES, rules.kept(keys.live_batch), BY_KEY),
        expected="equivalence",
        also=("freshness",),
    ),
    Fault(
        id="A4c",
        text="The top-k plan's threshold stays the lowest one, however many rows are longer.",
        case=at(),
        injection=Rewritten((PLAN,), lowest_threshold, "wrong formula"),
        expected="equivalence",
    ),
    Fault(
        id="A6g",
        text="A row whose last segment is exactly full gets one segment more.",
        case=at(model=P1),
        injection=Rewritten((SCHEDULE,), schedule(segments_rounded), ROUNDING),
        expected="equivalence",
    ),
    Fault(
        id="A6h",
        text="Of a request that has grown only the new pages are copied, though older ones have moved.",
        case=at(model=P1),
        injection=Rewritten(("page_table_1", "real_page_table"), appended, BY_KEY),
        expected="equivalence",
        also=("freshness",),
    ),
    Fault(
        id="A6i",
        text="Pages are remembered by request id, which a later request is given again.",
        case=at(),
        injection=Rewritten(("real_page_table",), appended_by_request, BY_KEY),
        expected="equivalence",
        also=("freshness",),
    ),
    Fault(
        id="A6j",
        text="All buckets keep their schedules under one key, the longest length.",
        case=at(model=P1, drill=Drill.BUCKET_SWITCH),
        injection=Rewritten((SCHEDULE,), kept_across_buckets, BY_KEY),
        expected="equivalence",
        also=("freshness",),
    ),
    Fault(
        id="A6k",
        text="Only rows whose request or length has changed are written.",
        case=at(),
        injection=Rewritten(("pooled_real_page_table",), rules.partial(unchanged_rows), "partial rows"),
        expected="freshness",
    ),
    Fault(
        id="A6l",
        text="A row's pages are kept while its request, its length and its first and last page are the same.",
        case=at(model=P1),
        injection=Rewritten(("page_table_1", "real_page_table"), rules.kept_rows(keys.row_ends), BY_KEY),
        expected="freshness",
        also=("equivalence",),
    ),
    Fault(
        id="A6m",
        text="Pooled pages are remembered by request id, in whichever row and bucket it is.",
        case=at(drill=Drill.BUCKET_SWITCH),
        injection=Rewritten(
            ("pooled_real_page_table",), rules.kept_rows(keys.row_request, by_request=True), BY_KEY
        ),
        expected="equivalence",
        also=("freshness",),
    ),
    Fault(
        id="A9e",
        text="The smaller bucket's refresh leaves the plan as it was.",
        case=at(model=P1, drill=Drill.BUCKET_SWITCH),
        injection=Rewritten((PLAN,), rules.captured, "stale field", when=InBucket(0)),
        expected="freshness",
    ),
    Fault(
        id="A9f",
        text="One refresh, late in the run, leaves the schedule of the last of five steps as it was.",
        case=at(Path.INDEPENDENT, steps=6),
        injection=Rewritten((SCHEDULE,), rules.unwritten, "stale field", steps=(4,), when=Nth(15)),
        expected="freshness",
    ),
    Fault(
        id="D9c",
        text="The last page is left out where it holds a single token.",
        case=at(),
        injection=Rewritten(("real_page_table",), last_of_one_token, "off by one"),
        expected="freshness",
    ),
    Fault(
        id="D9d",
        text="A table is made anew as far as the longest request of the round before reached.",
        case=at(model=P1),
        injection=Rewritten(("page_table_1",), rules.up_to_the_longest_before, "partial columns"),
        expected="equivalence",
        also=("freshness",),
    ),
    Fault(
        id="E3b",
        text="Prefix sums wrap where the batch is long.",
        case=at(model=P1),
        injection=Rewritten(("cu_seqlens_k",), rules.wrapped(12), "narrow integers"),
        expected="equivalence",
    ),
    Fault(
        id="H9b",
        text="Lengths are counted up from what the buffer held, not taken from the batch.",
        case=at(Path.INDEPENDENT, P1),
        injection=Rewritten(("cache_seqlens_int32",), incremental, "incremental update"),
        expected="equivalence",
        also=("freshness",),
    ),
    Fault(
        id="K4c",
        text="The number of attended tokens is one short of the top-k.",
        case=at(model=P1),
        injection=Rewritten(
            ("dsa_cache_seqlens_int32",),
            lengths(lambda spot, given: np.minimum(given, spot.dims.topk - 1)),
            "off by one",
        ),
        expected="equivalence",
    ),
    Fault(
        id="L1c",
        text="Only the first row is written.",
        case=at(Path.INDEPENDENT),
        injection=Rewritten(
            ("kpool_write_plan.write_loc",), rules.partial(rules.first_rows(1)), "partial rows"
        ),
        expected="freshness",
    ),
)
