"""Class F: padded, idle and empty rows, and the values that they are filled with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from harness import oracle
from harness.faults.catalogue import Fault
from harness.faults.mechanisms import rules
from harness.faults.mechanisms.formulas import on
from harness.faults.mechanisms.timing import Reading, Skipped
from harness.faults.mechanisms.values import Rewritten, Spot
from harness.faults.mechanisms.when import Idle, Padded
from harness.faults.scene import Given, Scene
from harness.faults.sglang import seam
from harness.faults.sglang.geometry import P1, P4, at
from harness.faults.sglang.seam import AtSeam
from harness.sut.deepgemm import paged_mqa_schedule
from harness.types import Drill, Mode, Path

FILL = "wrong fill"
LEFT = "padded rows not refreshed"


def padding(value: int) -> Callable[[Spot], torch.Tensor]:
    """Return the rule: padded rows hold `value`, in every column."""

    def rule(spot: Spot) -> torch.Tensor:
        return torch.where(_live(spot), spot.fresh, value)

    return rule


def kept_padding(spot: Spot) -> torch.Tensor:
    """Padded rows hold what the bucket's refresh before left there."""
    value = torch.where(_live(spot), spot.fresh, rules.late(spot))
    spot.scene.memory["late", spot.step, spot.bucket, spot.name] = value.clone()
    return value


def _live(spot: Spot) -> torch.Tensor:
    live = rules.live_rows(spot).to(spot.fresh.device)
    return live.view(-1, *[1] * (spot.fresh.dim() - 1))


def length_of_padding(value: int) -> Callable[[Scene, Given], Given]:
    """Return the change: padded rows have this length."""

    def change(scene: Scene, given: Given) -> Given:
        lengths = torch.where(given.requests == 0, value, given.lengths)
        return Given(lengths, given.requests, given.accepted, given.table)

    return change


def live_request(scene: Scene, given: Given) -> Given:
    """Padded rows name the first live request: its slot is taken for a reserved one."""
    requests = torch.where(given.requests == 0, given.requests[0], given.requests)
    return Given(given.lengths, requests, given.accepted, given.table)


def live_sum(spot: Spot) -> torch.Tensor:
    """Prefix sums that stop at the live rows."""
    lengths = spot.round.lengths.copy()
    lengths[spot.round.live :] = 0
    return on(spot, oracle.offsets(lengths))


def no_idle_workers(spot: Spot) -> torch.Tensor:
    """Workers without a segment keep what their entry of the schedule held before."""
    used = torch.ones(spot.fresh.shape[0], dtype=torch.bool, device=spot.fresh.device)
    used[:-1] = (spot.fresh[1:] != spot.fresh[:-1]).any(1)
    return torch.where(used[:, None], spot.fresh, spot.before)


def without_empty_pools(
    scene: Scene, plain: Callable[..., torch.Tensor], lengths: torch.Tensor, *, index_page_size: int
) -> torch.Tensor:
    """Give rows without a complete pool no segment, where each has to have one."""
    scene.hit(bool((lengths < 1).any()))
    workers = scene.case.geometry.num_sms
    return paged_mqa_schedule(lengths.contiguous().view(-1, 1), index_page_size, workers)


def longest_live(
    scene: Scene, plain: Callable[..., Any], backend: Any, *, seq_lens_cpu: torch.Tensor, **given: Any
) -> Any:
    """Ask for the longest of the live lengths before anything else."""
    scene.hit(not scene.round.live)
    max(seq_lens_cpu[: scene.round.live].tolist())
    return plain(backend, seq_lens_cpu=seq_lens_cpu, **given)


FAULTS = (
    Fault(
        id="F1",
        text="Padded rows have length 0, for which the kernel has no last block.",
        case=at(model=P4, drill=Drill.PADDED),
        injection=Reading(length_of_padding(0), FILL),
        expected="equivalence",
    ),
    Fault(
        id="F1b",
        text="Padded rows of a draft extension are filled as in decode: their first position is negative.",
        case=at(model=P4, mode=Mode.DRAFT_EXTEND, drill=Drill.PADDED),
        injection=Reading(length_of_padding(1), FILL),
        expected="equivalence",
    ),
    Fault(
        id="F3",
        text="Padded rows write to slot -1, which is the last one.",
        case=at(model=P4),
        injection=Rewritten(("kpool_write_plan.write_loc",), padding(-1), FILL, when=Padded()),
        expected="equivalence",
    ),
    Fault(
        id="F6",
        text="Padded rows name a live request, whose slot is taken for a reserved one.",
        case=at(Path.RELEASED, P4, fusion=True),
        injection=Reading(live_request, FILL),
        expected="equivalence",
    ),
    Fault(
        id="F7",
        text="A phantom row of a request that has gone still writes through its old binding.",
        case=at(Path.RELEASED, P4, fusion=True),
        injection=Rewritten(("kpool_write_plan.req",), kept_padding, LEFT, steps=(1,)),
        expected="equivalence",
        also=("freshness",),
    ),
    Fault(
        id="F9",
        text="Entries of workers without work are left as they were, and a padded grid reads them.",
        case=at(),
        injection=Rewritten(("paged_mqa_schedule_metadata",), no_idle_workers, "tail not written"),
        expected="freshness",
    ),
    Fault(
        id="F13",
        text="Rows without a complete pool get no segment of the pooled schedule.",
        case=at(model=P4),
        injection=AtSeam(seam.POOL_SCHEDULE, without_empty_pools, "wrong rounding"),
        expected="equivalence",
        also=("freshness",),
    ),
    Fault(
        id="F16",
        text="An idle rank's refresh takes the largest of no lengths.",
        case=at(Path.RELEASED),
        injection=AtSeam(seam.PRECOMPUTE, longest_live, "exception"),
        expected="routing",
    ),
    Fault(
        id="F18",
        text="Padded rows keep the accepted tokens of the batch before.",
        case=at(model=P4, mode=Mode.DRAFT_EXTEND),
        injection=Rewritten(("kpool_write_plan.effective_n_per_batch",), kept_padding, LEFT),
        expected="equivalence",
        also=("freshness",),
    ),
    Fault(
        id="F19",
        text="The sum of lengths leaves padded rows out.",
        case=at(model=P1),
        injection=Rewritten(("cu_seqlens_k",), live_sum, FILL, when=Padded()),
        expected="equivalence",
    ),
    Fault(
        id="X9",
        letter="F",
        text="A request fewer than before: its row keeps its pages.",
        case=at(model=P4, drill=Drill.PADDED, bucket=4),
        injection=Rewritten(("page_table_1", "real_page_table"), kept_padding, LEFT),
        expected="equivalence",
        also=("freshness",),
    ),
    Fault(
        id="P4",
        text="An idle rank skips the refresh that the others do.",
        case=at(model=P4),
        injection=Skipped(Idle()),
        expected="freshness",
        also=("refresh",),
    ),
)
