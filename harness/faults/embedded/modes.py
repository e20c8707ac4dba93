"""Class G: the same name means prefix, prefix + N or prefix - N + i + 1, and one is taken for another."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from harness.faults.catalogue import Fault
from harness.faults.geometry import P1, at
from harness.faults.mechanisms.formulas import Ints, lengths, on, per_row, token
from harness.faults.mechanisms.forward import ForwardWrites
from harness.faults.mechanisms.life import Eager
from harness.faults.mechanisms.timing import Reading
from harness.faults.mechanisms.values import Rewritten, Spot
from harness.faults.scene import Given, Scene
from harness.types import Drill, Mode, Path

MODE = "wrong mode"


def rows(value: Callable[[Spot, Ints, Ints], Ints]) -> Callable[[Spot], torch.Tensor]:
    """Return the formula of expanded rows, from their request's length and their own number."""
    return lambda spot: on(spot, value(spot, per_row(spot, spot.round.lengths), token(spot)))


def up_to_the_prefix(spot: Spot) -> torch.Tensor:
    """Columns of the draft tokens, which begin another page at times, are not filled."""
    unit = spot.dims.width // spot.fresh.shape[1]
    column = np.arange(spot.fresh.shape[1])[None, :] * unit
    written = torch.from_numpy(column < per_row(spot, spot.round.lengths)[:, None]).to(spot.fresh.device)
    return torch.where(written, spot.fresh, spot.before)


def a_round_late(scene: Scene, given: Given) -> Given:
    """Lengths of the bucket's round before, as a host list holds them that another algorithm fills."""
    place = "late", given.lengths.shape
    late = scene.memory.get(place, given.lengths)
    scene.memory[place] = given.lengths.clone()
    return Given(late, given.requests, given.accepted, given.table)


def longer(scene: Scene, bucket: int, metadata: object) -> None:
    """Count a token more in the captured lengths."""
    scene.leaf(0, bucket, "cache_seqlens_int32").add_(1)


def no_mirror(scene: Scene, rows: int) -> None:
    """Ask for the host lengths that nobody keeps any more."""
    raise AttributeError("the eager fallback needs seq_lens_cpu, which is None")


FAULTS = (
    Fault(
        id="G1",
        text="In draft-extend the cache length is the prefix alone, without the tokens that are drafted.",
        case=at(model=P1, mode=Mode.DRAFT_EXTEND, bucket=2),
        injection=Rewritten(
            ("cache_seqlens_int32",),
            lengths(lambda spot, given: np.maximum(given - spot.dims.draft_tokens, 1)),
            MODE,
        ),
        expected="equivalence",
    ),
    Fault(
        id="G1b",
        text="In draft-extend the forward writes from the length on, as a verification does.",
        case=at(mode=Mode.DRAFT_EXTEND, bucket=2),
        injection=Rewritten(("kpool_write_plan.write_start",), lengths(lambda spot, given: given), MODE),
        expected="equivalence",
    ),
    Fault(
        id="G3",
        text="The forward counts the lengths up, and the second run of a warm-up is not prepared anew.",
        case=at(model=P1),
        injection=ForwardWrites(longer),
        expected="readonly",
    ),
    Fault(
        id="G4",
        text="The metadata of N query rows per request is rewritten as one-token decode.",
        case=at(model=P1, mode=Mode.TARGET_VERIFY, bucket=2),
        injection=Rewritten(("dsa_seqlens_expanded",), rows(lambda spot, given, t: given), MODE),
        expected="equivalence",
    ),
    Fault(
        id="G4b",
        text="In target-verify the write plan starts where decode's does, a token early.",
        case=at(mode=Mode.TARGET_VERIFY, bucket=2),
        injection=Rewritten(("kpool_write_plan.write_start",), lengths(lambda spot, given: given - 1), MODE),
        expected="equivalence",
    ),
    Fault(
        id="G6",
        text="The eager fallback beyond the largest bucket needs host lengths that the graph path drops.",
        case=at(model=P1, drill=Drill.OVERSIZE),
        injection=Eager(no_mirror, "exception"),
        expected="routing",
    ),
    Fault(
        id="G7",
        text="Lengths come from a host list that another algorithm fills with those of the round before.",
        case=at(Path.INDEPENDENT, P1),
        injection=Reading(a_round_late, "late refresh"),
        expected="freshness",
        also=("equivalence",),
    ),
    Fault(
        id="G9",
        text="Verification rows are taken for decode: all of a request look at its last token's context.",
        case=at(mode=Mode.TARGET_VERIFY, bucket=2),
        injection=Rewritten(
            ("kpool_write_plan.seqlens_per_q", "kpool_write_plan.pool_seqlens_per_q"),
            lambda spot: (
                spot.fresh.view(spot.bucket, -1)[:, -1:]
                .expand(spot.bucket, spot.dims.draft_tokens)
                .reshape(-1)
            ),
            MODE,
        ),
        expected="equivalence",
    ),
    Fault(
        id="G10",
        text="The tables of a verification end at the prefix: a draft token on a new page has none.",
        case=at(model=P1, mode=Mode.TARGET_VERIFY, bucket=2),
        injection=Rewritten(("page_table_1", "real_page_table"), up_to_the_prefix, "off by one"),
        expected="freshness",
    ),
)
