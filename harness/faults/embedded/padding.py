"""Class F: padded, idle and empty rows, and the values that they are filled with."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import torch

from harness import oracle
from harness.faults.catalogue import Fault
from harness.faults.embedded.derived import POOLED_SCHEDULE, SCHEDULE
from harness.faults.embedded.frozen import replaced
from harness.faults.geometry import P1, at
from harness.faults.mechanisms import rules
from harness.faults.mechanisms.binding import MadeOtherwise
from harness.faults.mechanisms.combined import Unchanged
from harness.faults.mechanisms.formulas import on
from harness.faults.mechanisms.forward import Computed, Outputs
from harness.faults.mechanisms.life import Raises
from harness.faults.mechanisms.timing import Reading
from harness.faults.mechanisms.values import Rewritten, Spot
from harness.faults.mechanisms.when import Idle, Padded
from harness.faults.scene import Given, Scene
from harness.rounds import Program, Round
from harness.types import Drill, Mode, Path

FILL = "wrong fill"
LEFT = "padded rows not refreshed"


def padding(value: int) -> Callable[[Spot], torch.Tensor]:
    """Return the rule: padded rows hold `value`, or carry it in every column."""

    def rule(spot: Spot) -> torch.Tensor:
        live = rules.live_rows(spot).to(spot.fresh.device)
        return torch.where(live.view(-1, *[1] * (spot.fresh.dim() - 1)), spot.fresh, value)

    return rule


def kept_padding(spot: Spot) -> torch.Tensor:
    """Padded rows hold what the bucket's refresh before left there."""
    before = rules.late(spot)
    live = rules.live_rows(spot).to(spot.fresh.device)
    value = torch.where(live.view(-1, *[1] * (spot.fresh.dim() - 1)), spot.fresh, before)
    spot.scene.memory["late", spot.step, spot.bucket, spot.name] = value.clone()
    return value


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


def nan_from_padding(scene: Scene, bucket: int, outputs: Outputs) -> Outputs:
    """A sum over all rows lets a padded row's NaN into the live ones."""
    padded = scene.target.given(bucket).requests == 0
    attention = outputs[0].computed["attention"]
    each = attention.shape[0] // bucket
    spoilt = torch.where(padded.repeat_interleave(each)[:, None], float("nan"), attention)
    return replaced(outputs, 0, attention=attention + 0 * spoilt.sum(0, keepdim=True))


def without_last_row(scene: Scene, bucket: int, leaf: torch.Tensor) -> torch.Tensor:
    """One row short."""
    return leaf[:-1].clone()


def always_full(program: Program) -> Program:
    """Only the rounds in which every row is live."""
    full = tuple(one for one in program.rounds if len(one.lengths) == one.bucket)
    return dataclasses.replace(program, rounds=full, before={})


def idle_in_between(program: Program) -> Program:
    """One round more, in which no request is live."""
    first = program.rounds[0]
    idle = Round(f"b{first.bucket}.idle", first.bucket, (), (), first.table, (), "an idle rank")
    return dataclasses.replace(program, rounds=(*program.rounds[:3], idle, *program.rounds[3:]))


def empty_schedule(spot: Spot) -> torch.Tensor:
    """A schedule over pooled lengths as they are, rows without a pool included."""
    pooled = spot.round.lengths // spot.dims.pool
    return on(spot, oracle.schedule(pooled, spot.dims.num_sms))


FAULTS = (
    Fault(
        id="F1",
        text="Padded rows have length 0, for which the kernel has no last block.",
        case=at(model=P1, drill=Drill.PADDED),
        injection=Reading(length_of_padding(0), FILL),
        expected="equivalence",
    ),
    Fault(
        id="F1b",
        text="Padded rows of a draft extension are filled as in decode: their first position is negative.",
        case=at(mode=Mode.DRAFT_EXTEND, bucket=2, drill=Drill.PADDED),
        injection=Reading(length_of_padding(1), FILL),
        expected="equivalence",
    ),
    Fault(
        id="F3",
        text="Padded rows write to slot -1, which is the last one.",
        case=at(),
        injection=Rewritten(("kpool_write_plan.write_loc",), padding(-1), FILL, when=Padded()),
        expected="equivalence",
    ),
    Fault(
        id="F4",
        text="Padded rows keep the pages of the request that was there before.",
        case=at(model=P1),
        injection=Rewritten(("page_table_1", "real_page_table"), kept_padding, LEFT),
        expected="equivalence",
        also=("freshness",),
    ),
    Fault(
        id="F4b",
        text="Only live rows are refreshed.",
        case=at(Path.INDEPENDENT, drill=Drill.PADDED),
        injection=Rewritten(
            ("cache_seqlens_int32", "real_page_table"), rules.partial(rules.live_rows), "partial rows"
        ),
        expected="freshness",
    ),
    Fault(
        id="F6",
        text="Padded rows name a live request, whose slot is taken for a reserved one.",
        case=at(),
        injection=Reading(live_request, FILL),
        expected="equivalence",
    ),
    Fault(
        id="F7",
        text="A phantom row of a request that has gone still writes through its old binding.",
        case=at(Path.SIBLING_COPY),
        injection=Rewritten(("kpool_write_plan.req",), kept_padding, LEFT, steps=(1,)),
        expected="equivalence",
        also=("freshness",),
    ),
    Fault(
        id="F9",
        text="Entries of workers without work are left as they were, and a padded grid reads them.",
        case=at(model=P1),
        injection=Rewritten((SCHEDULE,), no_idle_workers, "tail not written"),
        expected="freshness",
    ),
    Fault(
        id="F10",
        text="NaN of padded rows gets into live rows through a sum over all rows.",
        case=at(model=P1, drill=Drill.PADDED),
        injection=Computed(nan_from_padding),
        expected="output",
    ),
    Fault(
        id="F12",
        text="The query is padded and the page table is not: it has a row less.",
        case=at(model=P1),
        injection=MadeOtherwise("real_page_table", without_last_row, "wrong size"),
        expected="routing",
        also=("address", "equivalence"),
    ),
    Fault(
        id="F13",
        text="Rows without a complete pool get no segment: a batch of them has an empty schedule.",
        case=at(),
        injection=Rewritten((POOLED_SCHEDULE,), empty_schedule, "wrong rounding"),
        expected="equivalence",
        also=("freshness",),
    ),
    Fault(
        id="F15",
        text="No round of a run has fewer live requests than the bucket holds.",
        case=at(model=P1),
        injection=Unchanged("weak rounds"),
        expected="evidence",
        rounds=always_full,
    ),
    Fault(
        id="F16",
        text="An idle rank's refresh takes the largest of no lengths.",
        case=at(model=P1),
        injection=Raises(ValueError("max() of an empty sequence"), Idle()),
        expected="routing",
        rounds=idle_in_between,
    ),
    Fault(
        id="F18",
        text="Padded rows keep the accepted tokens of the batch before.",
        case=at(mode=Mode.DRAFT_EXTEND, bucket=2),
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
)
