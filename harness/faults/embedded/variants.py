"""Variants of our own that the public entries suggest: other leaves, other moments, other paths."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from harness.case import PHYSICAL_PAGE
from harness.faults.catalogue import Fault
from harness.faults.embedded.derived import PLAN, SCHEDULE, TILES
from harness.faults.embedded.steps import schedule_again
from harness.faults.geometry import P1, WIDE1, at
from harness.faults.mechanisms import formulas, keys, rules
from harness.faults.mechanisms.binding import KeptOnRecapture, MadeOtherwise, StateRebound
from harness.faults.mechanisms.formulas import lengths, schedule
from harness.faults.mechanisms.forward import ForwardWrites, InForward, Reads, RefreshedAfter, with_leaves
from harness.faults.mechanisms.life import AfterStaging, Around, AtCapture, Says
from harness.faults.mechanisms.timing import Repeated
from harness.faults.mechanisms.values import Rewritten, Spot
from harness.faults.mechanisms.when import ALWAYS, InBucket, Nth
from harness.faults.scene import Scene
from harness.fields import COUNTER
from harness.types import Drill, Kernel, Path

BY_KEY = "skipped while a key is unchanged"
ROUNDING = "wrong rounding"
LAZY = "attribute set after capture"


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


def other_buckets_rows(scene: Scene, bucket: int, metadata: Any) -> Any:
    """Lengths from another bucket's object, as many rows as this one has."""
    for other in scene.buckets:
        theirs = scene.leaf(0, other, "cache_seqlens_int32")
        if other > bucket:
            return with_leaves(metadata, cache_seqlens_int32=theirs[:bucket])
    return metadata


def write_the_other_bucket(scene: Scene, bucket: int) -> bool:
    """Write this bucket's schedule into the others', too."""
    others = [other for other in scene.buckets if other != bucket]
    for other in others:
        scene.leaf(0, other, SCHEDULE).copy_(scene.leaf(0, bucket, SCHEDULE))
    return bool(others)


def scratch_in_dead_columns(scene: Scene, bucket: int, metadata: Any) -> None:
    """Count in the last column of the wide table."""
    metadata.page_table_1[:, -1].add_(1)


def count_up_the_input(scene: Scene, bucket: int) -> None:
    """Advance the server's lengths in place."""
    scene.target.given(bucket).lengths.add_(1)


def count_up_in_graph(scene: Scene, bucket: int, metadata: Any) -> None:
    """Advance the server's lengths in place, from within the graph."""
    scene.target.given(bucket).lengths.add_(1)


def mark_row_0(scene: Scene, bucket: int) -> None:
    """Leave a mark in the reserved row of the request table."""
    scene.target.given(bucket).table[0, :8] = 9


def lazy_tensor(scene: Scene, bucket: int) -> bool:
    """Hang up another leaf at the first refresh that needs it."""
    scene.bind(0, bucket, "page_table_2", scene.leaf(0, bucket, "page_table_1").clone())
    return True


def lazy_value(scene: Scene, bucket: int) -> bool:
    """Hang up the longest length, as a number, at the first refresh that needs it."""
    scene.bind(0, bucket, "longest", int(scene.round.lengths.max(initial=0)))
    return True


def gone(scene: Scene, bucket: int) -> bool:
    """Drop a leaf that nobody seems to need after the capture."""
    scene.bind(0, bucket, "dsa_cu_seqlens_q", None)
    return True


def reseated(scene: Scene, bucket: int) -> bool:
    """Exchange the memory below a leaf's tensor."""
    leaf = scene.leaf(0, bucket, "pooled_real_page_table")
    leaf.data = leaf.clone()
    return True


def one_element(scene: Scene, step: int, old: torch.Tensor) -> torch.Tensor:
    """A counter of one element."""
    return old[:1].clone()


def the_input_itself(scene: Scene, bucket: int, leaf: torch.Tensor) -> torch.Tensor:
    """The persistent request ids, not a copy of them."""
    return scene.target.given(bucket).requests


def step_0s(name: str) -> Callable[[Scene, int, torch.Tensor], torch.Tensor]:
    """Return the maker of step 0's leaf."""
    return lambda scene, bucket, leaf: scene.leaf(0, bucket, name)


def data_dependent(scene: Scene, bucket: int) -> None:
    """Pick rows by a mask, whose number a graph cannot know."""
    _ = scene.target.given(bucket).lengths.nonzero()


def log(text: str) -> None:
    """Say something as a server does."""
    logging.getLogger("server").warning(text)


FALLBACK = "fused kernel not available, falling back to the ordinary refresh"

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
        id="B1c",
        text="KV counters of the later steps are made too small, so that launches take private ones.",
        case=at(model=P1, kernel=Kernel.TRTLLM),
        injection=StateRebound(COUNTER, one_element, "init", "wrong size", steps=(1,)),
        expected="aliasing",
    ),
    Fault(
        id="B9b",
        text="After a second capture step 0 has a new object and the others keep the old one.",
        case=at(model=P1, drill=Drill.RECAPTURE),
        injection=KeptOnRecapture(),
        expected="aliasing",
    ),
    Fault(
        id="B13c",
        text="A leaf is dropped after the capture, since nothing on the host needs it any more.",
        case=at(model=P1),
        injection=Around(gone, "leaf removed", Nth(5)),
        expected="address",
    ),
    Fault(
        id="B13d",
        text="A leaf is grown in place: its tensor is the same object, its memory is another.",
        case=at(),
        injection=Around(reseated, "reallocated in place", Nth(5), hidden=True),
        expected="address",
    ),
    Fault(
        id="C3b",
        text="The forward picks rows by a mask, so that their number is frozen.",
        case=at(model=P1),
        injection=InForward(data_dependent, "data-dependent shape"),
        expected="routing",
    ),
    Fault(
        id="C3c",
        text="A tensor is hung up lazily beside the leaves, after the graph was captured without it.",
        case=at(model=P1),
        injection=Around(lazy_tensor, LAZY, Nth(4)),
        expected="equivalence",
        also=("address", "readonly"),
    ),
    Fault(
        id="C3d",
        text="A number that changes with the round is hung up lazily beside the leaves.",
        case=at(model=P1),
        injection=Around(lazy_value, LAZY),
        expected="address",
        also=("readonly", "equivalence"),
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
        id="D12b",
        text="Two prefix sums change places in the metadata object.",
        case=at(model=P1),
        injection=MadeOtherwise(
            "cu_seqlens_k",
            lambda scene, bucket, leaf: scene.leaf(0, bucket, "dsa_cu_seqlens_k"),
            "wrong leaf",
        ),
        expected="equivalence",
        also=("aliasing",),
    ),
    Fault(
        id="E3b",
        text="Prefix sums wrap where the batch is long.",
        case=at(model=P1),
        injection=Rewritten(("cu_seqlens_k",), rules.wrapped(12), "narrow integers"),
        expected="equivalence",
    ),
    Fault(
        id="G3b",
        text="The refresh advances the server's own lengths in place.",
        case=at(model=P1),
        injection=Around(count_up_the_input, "input written"),
        expected="refresh",
    ),
    Fault(
        id="G3c",
        text="The forward advances the server's own lengths in place.",
        case=at(Path.INDEPENDENT),
        injection=ForwardWrites(count_up_in_graph, kind="input written"),
        expected="readonly",
    ),
    Fault(
        id="G3d",
        text="A forward takes the dead columns of a table for scratch.",
        case=at(Path.SIBLING_COPY, P1),
        injection=ForwardWrites(scratch_in_dead_columns, step=1),
        expected="readonly",
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
        id="H10b",
        text="A refresh falls back and logs a warning.",
        case=at(model=P1),
        injection=Says(log, FALLBACK),
        expected="routing",
    ),
    Fault(
        id="H10c",
        text="A refresh falls back and prints a line.",
        case=at(Path.SIBLING_COPY, P1),
        injection=Says(print, FALLBACK),
        expected="routing",
    ),
    Fault(
        id="H10d",
        text="The refresh that is captured inside the graph falls back and prints a line.",
        case=at(Path.SHARED_IN_GRAPH),
        injection=Says(print, FALLBACK, when=ALWAYS),
        expected="routing",
    ),
    Fault(
        id="H10e",
        text="The making of a bucket's metadata for a capture falls back and prints a line.",
        case=at(Path.INDEPENDENT, P1),
        injection=AtCapture(lambda scene, bucket: print(FALLBACK), "fallback with a warning"),
        expected="routing",
    ),
    Fault(
        id="H12b",
        text="A leaf is the server's own request ids, not a copy of them.",
        case=at(),
        injection=MadeOtherwise("kpool_write_plan.req", the_input_itself, "alias of an input"),
        expected="refresh",
        also=("aliasing", "equivalence", "freshness", "evidence"),
    ),
    Fault(
        id="H12c",
        text="On a path that does not share, a step has step 0's wide table.",
        case=at(Path.INDEPENDENT, P1),
        injection=MadeOtherwise(
            "page_table_1", step_0s("page_table_1"), "shared though not declared", steps=(1,)
        ),
        expected="aliasing",
    ),
    Fault(
        id="X1c",
        letter="H",
        text="A step of the smaller bucket's graph reads the larger bucket's lengths.",
        case=at(model=P1, drill=Drill.BUCKET_SWITCH),
        injection=Reads(other_buckets_rows, "wrong bucket's object"),
        expected="output",
    ),
    Fault(
        id="X1d",
        letter="H",
        text="A refresh writes the other bucket's schedule, too.",
        case=at(model=P1),
        injection=Around(write_the_other_bucket, "wrong bucket's object"),
        expected="refresh",
    ),
    Fault(
        id="X5c",
        letter="H",
        text="The graph was captured with two refreshes.",
        case=at(Path.SHARED_IN_GRAPH),
        injection=Repeated(2),
        expected="refresh",
    ),
    Fault(
        id="X5d",
        letter="H",
        text="The graph refreshes, and staging a round writes the schedule, too.",
        case=at(Path.SHARED_IN_GRAPH, P1),
        injection=AfterStaging(schedule_again, "duplicated refresh"),
        expected="refresh",
    ),
    Fault(
        id="I6b",
        text="A refresh leaves a mark in the reserved row of the request table.",
        case=at(model=P1),
        injection=Around(mark_row_0, "input written", Nth(4)),
        expected="refresh",
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
    Fault(
        id="M3b",
        text="The refresh was captured behind the forward: every replay reads the round before.",
        case=at(Path.SHARED_IN_GRAPH),
        injection=RefreshedAfter(),
        expected="output",
    ),
    Fault(
        id="M4b",
        text="The prefix sums inside the graph count the pages of 64, not the tokens.",
        case=at(Path.SHARED_IN_GRAPH, P1),
        injection=Rewritten(
            ("dsa_cu_seqlens_k",),
            lambda spot: spot.fresh // PHYSICAL_PAGE,
            "wrong formula",
        ),
        expected="equivalence",
    ),
)
