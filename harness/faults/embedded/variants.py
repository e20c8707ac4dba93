"""Variants of our own that the public entries suggest: other leaves, other moments, other paths."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import torch

from harness.case import PHYSICAL_PAGE
from harness.faults.catalogue import Fault
from harness.faults.embedded.derived import SCHEDULE
from harness.faults.embedded.mutants import schedule_again
from harness.faults.geometry import P1, at
from harness.faults.mechanisms.binding import KeptOnRecapture, MadeOtherwise, StateRebound
from harness.faults.mechanisms.forward import ForwardWrites, InForward, Reads, RefreshedAfter, with_leaves
from harness.faults.mechanisms.life import AfterStaging, Around, AtCapture, Says
from harness.faults.mechanisms.timing import Repeated
from harness.faults.mechanisms.values import Rewritten
from harness.faults.mechanisms.when import ALWAYS, Nth
from harness.faults.scene import Scene
from harness.fields import COUNTER
from harness.types import Drill, Kernel, Path

LAZY = "attribute set after capture"
FALLBACK = "fused kernel not available, falling back to the ordinary refresh"


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


FAULTS = (
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
