"""Class G: the same name means prefix, prefix + N or prefix - N + i + 1, and one is taken for another."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from harness.faults.catalogue import Fault
from harness.faults.mechanisms.binding import MadeOtherwise
from harness.faults.mechanisms.formulas import Ints, lengths, on, per_row, token
from harness.faults.mechanisms.forward import ForwardWrites
from harness.faults.mechanisms.life import Eager
from harness.faults.mechanisms.values import Rewritten, Spot
from harness.faults.scene import Scene
from harness.faults.sglang import seam
from harness.faults.sglang.geometry import P1, P4, at
from harness.faults.sglang.seam import AtSeam
from harness.types import Drill, Mode, Path

MODE = "wrong mode"
LAZY = "lazy attribute"


def rows(value: Callable[[Spot, Ints, Ints], Ints]) -> Callable[[Spot], torch.Tensor]:
    """Return the formula of expanded rows, from their request's length and their own number."""
    return lambda spot: on(spot, value(spot, per_row(spot, spot.round.lengths), token(spot)))


def up_to_the_prefix(spot: Spot) -> torch.Tensor:
    """Columns of the draft tokens, which begin another page at times, are not filled."""
    unit = spot.dims.width // spot.fresh.shape[1]
    column = np.arange(spot.fresh.shape[1])[None, :] * unit
    written = torch.from_numpy(column < per_row(spot, spot.round.lengths)[:, None]).to(spot.fresh.device)
    return torch.where(written, spot.fresh, spot.before)


def last_rows_context(spot: Spot) -> torch.Tensor:
    """Every row of a request sees what its last row sees."""
    last = spot.fresh.view(spot.bucket, -1)[:, -1:]
    return last.expand(spot.bucket, spot.dims.draft_tokens).reshape(-1)


def starting_at(offset: Callable[[Scene], int]) -> Callable[..., None]:
    """Return an around for the write plan, whose first token is counted from elsewhere."""

    def around(
        scene: Scene, plain: Callable[..., None], metadata: Any, *, write_start: torch.Tensor, **given: Any
    ) -> None:
        scene.hit()
        plain(metadata, write_start=(write_start + offset(scene)).to(torch.int32), **given)

    return around


def from_the_mirror(
    scene: Scene,
    plain: Callable[..., Any],
    backend: Any,
    *,
    seq_lens: torch.Tensor,
    seq_lens_cpu: torch.Tensor,
    **given: Any,
) -> Any:
    """Refresh from the host's lengths, which nobody promised for this algorithm."""
    scene.hit(not torch.equal(seq_lens.cpu(), seq_lens_cpu))
    lengths = seq_lens_cpu.to(seq_lens.device, copy=True)
    return plain(backend, seq_lens=lengths, seq_lens_cpu=seq_lens_cpu, **given)


def reserved_row_written(scene: Scene, plain: Callable[..., None], backend: Any, **given: Any) -> None:
    """Write into the request table's reserved row, which padded rows read."""
    plain(backend, **given)
    backend.req_to_token[0, :4] = 7
    scene.hit()


def longer(scene: Scene, bucket: int, metadata: Any) -> None:
    """Count a token more."""
    metadata.cache_seqlens_int32.add_(1)


def the_same(scene: Scene, bucket: int, metadata: Any) -> None:
    """Write the schedule's own values into it."""
    metadata.paged_mqa_schedule_metadata.copy_(metadata.paged_mqa_schedule_metadata.clone())


def remember(scene: Scene, bucket: int, metadata: Any) -> None:
    """Keep a result beside the metadata for the steps that follow."""
    object.__setattr__(metadata, "lengths_seen", metadata.cache_seqlens_int32 + 0)


def nothing_yet(scene: Scene, bucket: int, leaf: torch.Tensor) -> Any:
    """No context lengths while the bucket is captured: the first refresh makes them."""
    return None


def no_mirror(scene: Scene, rows: int) -> None:
    """Ask for the host lengths that nobody keeps any more."""
    raise AttributeError("the eager fallback needs seq_lens_cpu, which is None")


FAULTS = (
    Fault(
        id="G1",
        text="In draft-extend the cache length is the prefix alone, without the tokens that are drafted.",
        case=at(model=P4, mode=Mode.DRAFT_EXTEND),
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
        case=at(model=P4, mode=Mode.DRAFT_EXTEND),
        injection=AtSeam(
            seam.WRITE_PLAN, starting_at(lambda scene: scene.case.metadata_tokens), "wrong mode"
        ),
        expected="equivalence",
    ),
    Fault(
        id="G3",
        text="The forward counts the lengths up, and the second run of a warm-up is not prepared anew.",
        case=at(Path.RELEASED),
        injection=ForwardWrites(longer),
        expected="readonly",
    ),
    Fault(
        id="G4",
        text="The metadata of N query rows per request is rewritten as one-token decode.",
        case=at(mode=Mode.TARGET_VERIFY, steps=2),
        injection=Rewritten(("dsa_seqlens_expanded",), rows(lambda spot, given, t: given), MODE),
        expected="equivalence",
    ),
    Fault(
        id="G4b",
        text="In target-verify the write plan starts where decode's does, a token early.",
        case=at(model=P4, mode=Mode.TARGET_VERIFY),
        injection=AtSeam(seam.WRITE_PLAN, starting_at(lambda scene: -1), MODE),
        expected="equivalence",
    ),
    Fault(
        id="G6",
        text="The eager fallback beyond the largest bucket needs host lengths that the graph path drops.",
        case=at(drill=Drill.OVERSIZE),
        injection=Eager(no_mirror, "exception"),
        expected="routing",
    ),
    Fault(
        id="G7",
        text="Lengths come from the host mirror, which lags a round behind the device.",
        case=at(Path.RELEASED),
        injection=AtSeam(seam.PRECOMPUTE, from_the_mirror, "late refresh"),
        expected="freshness",
        also=("equivalence",),
    ),
    Fault(
        id="G7b",
        text="The same of a step that is refreshed straight from the batch, where it shares.",
        case=at(model=P4),
        injection=AtSeam(seam.APPLY, from_the_mirror, "late refresh"),
        expected="freshness",
        also=("equivalence",),
    ),
    Fault(
        id="G9",
        text="Verification rows are taken for decode: all of a request look at its last token's context.",
        case=at(model=P4, mode=Mode.TARGET_VERIFY),
        injection=Rewritten(
            ("kpool_write_plan.seqlens_per_q", "kpool_write_plan.pool_seqlens_per_q"), last_rows_context, MODE
        ),
        expected="equivalence",
    ),
    Fault(
        id="G10",
        text="The tables of a verification end at the prefix: a draft token on a new page has none.",
        case=at(model=P4, mode=Mode.TARGET_VERIFY),
        injection=Rewritten(("page_table_1", "real_page_table"), up_to_the_prefix, "off by one"),
        expected="freshness",
    ),
    Fault(
        id="G3b",
        text="A refresh writes into the request table that the next one reads.",
        case=at(),
        injection=AtSeam(seam.APPLY, reserved_row_written, "input written"),
        expected="refresh",
    ),
    Fault(
        id="X7",
        letter="G",
        text="A step counts a token more in the lengths that the steps after it read.",
        case=at(Path.SHARED_IN_GRAPH, P4),
        injection=ForwardWrites(longer),
        expected="readonly",
    ),
    Fault(
        id="X7b",
        letter="G",
        text="A step writes into the shared schedule the values that are there.",
        case=at(model=P1),
        injection=ForwardWrites(the_same, step=1),
        expected="readonly",
    ),
    Fault(
        id="X7c",
        letter="G",
        text="A step hangs a tensor on the shared object for those after it, while it is captured.",
        case=at(model=P1),
        injection=ForwardWrites(remember, kind=LAZY),
        expected="readonly",
        also=("address",),
    ),
    Fault(
        id="X7d",
        letter="G",
        text="The first refresh makes a leaf that was not there at the capture, so no graph reads it.",
        case=at(Path.RELEASED),
        injection=MadeOtherwise("paged_mqa_ctx_lens_2d", nothing_yet, LAZY),
        expected="evidence",
        also=("refresh",),
    ),
)
