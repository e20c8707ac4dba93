"""Changes that no check may notice: junk where nothing is defined, equal values made otherwise."""

from __future__ import annotations

from collections.abc import Callable

import torch

from harness import oracle
from harness.faults.catalogue import Harmless
from harness.faults.embedded.derived import SCHEDULE
from harness.faults.geometry import P1, at
from harness.faults.mechanisms import formulas
from harness.faults.mechanisms.timing import Reading
from harness.faults.mechanisms.values import Rewritten, Spot
from harness.faults.scene import Given, Scene
from harness.fields import plan_is_written
from harness.types import Mode, Path

JUNK = "junk where nothing is defined"
OTHER = "equal values, made otherwise"


def permuted(spot: Spot) -> torch.Tensor:
    """Return a plan with its rows in the reverse order."""
    value = spot.fresh.clone()
    count = int(value[0, 1])
    value[1 : count + 1] = value[1 : count + 1].flip(0)
    return value


def past_the_count(spot: Spot) -> torch.Tensor:
    """Return a plan with junk in the rows that nobody writes."""
    value = spot.fresh.clone()
    value[int(value[0, 1]) + 1 :] = 12345
    return value


def only_where_no_plan_is_written(spot: Spot) -> torch.Tensor | None:
    """Return a plan of junk for batches that are too small for one."""
    return None if plan_is_written(spot.dims) else torch.full_like(spot.fresh, -3)


def past_the_lengths(junk: int) -> Callable[[Spot], torch.Tensor]:
    """Return the rule: columns past a row's length hold junk, in a table with a column for each unit."""

    def rule(spot: Spot) -> torch.Tensor:
        unit = -(-spot.dims.width // spot.fresh.shape[1])
        column = torch.arange(spot.fresh.shape[1], device=spot.fresh.device) * unit
        reach = torch.from_numpy(formulas.per_row(spot, oracle.base_lengths(spot.dims, spot.round)))
        return torch.where(column[None, :] < reach.to(column.device)[:, None], spot.fresh, junk)

    return rule


def junk_of_dead_requests(scene: Scene, given: Given) -> Given:
    """Rows of the request table that no request of the round names, and dead columns of the others."""
    column = torch.arange(given.table.shape[1], device=given.table.device)
    reach = torch.zeros(given.table.shape[0], dtype=torch.int64, device=given.table.device)
    grown = scene.dims(scene.round.bucket).draft_tokens if scene.case.mode is Mode.TARGET_VERIFY else 0
    pages = -(-(given.lengths + grown) // scene.case.model.page_tokens) * scene.case.model.page_tokens
    reach[given.requests] = pages
    table = torch.where(column[None, :] < reach[:, None], given.table, 4321)
    return Given(given.lengths, given.requests, given.accepted, table)


def bounced(scene: Scene, given: Given) -> Given:
    """The same values in other buffers."""
    return Given(*(tensor.clone() for tensor in vars(given).values()))


def by_way_of_floats(scene: Scene, given: Given) -> Given:
    """The same lengths and ids by way of a wider dtype."""
    lengths, requests = (
        tensor.to(torch.float64).to(torch.int64) for tensor in (given.lengths, given.requests)
    )
    return Given(lengths, requests, given.accepted, given.table.to(torch.int64).to(torch.int32))


def same_schedule(spot: Spot) -> torch.Tensor:
    """The schedule once more, by the NumPy formula."""
    return formulas.on(spot, oracle.schedule(formulas.visible(spot), spot.dims.num_sms))


CHANGES = (
    Harmless(
        id="X16",
        text="Rows of a top-k plan stand in another order.",
        cases=(at(), at(Path.INDEPENDENT, P1)),
        injection=Rewritten(("topk_v2_plan",), permuted, "permuted rows", everything=True),
    ),
    Harmless(
        id="X17",
        text="Dead columns of the wide page table hold junk.",
        cases=(at(), at(model=P1, mode=Mode.TARGET_VERIFY, bucket=2)),
        injection=Rewritten(("page_table_1",), past_the_lengths(7), JUNK, everything=True),
    ),
    Harmless(
        id="Y2",
        text="Dead columns of the physical and the pooled page table hold ids out of any range.",
        cases=(at(),),
        injection=Rewritten(
            ("real_page_table", "pooled_real_page_table"), past_the_lengths(1 << 30), JUNK, everything=True
        ),
    ),
    Harmless(
        id="Y3",
        text="Rows of the pooled plans stand in another order.",
        cases=(at(mode=Mode.TARGET_VERIFY, bucket=2),),
        injection=Rewritten(
            ("kpool_write_plan.pool_topk_v2_plan",), permuted, "permuted rows", everything=True
        ),
    ),
    Harmless(
        id="Y4",
        text="Plan rows past the count, which no planner writes, hold junk.",
        cases=(at(), at(Path.SIBLING_COPY)),
        injection=Rewritten(("topk_v2_plan", "pooled_topk_v2_plan"), past_the_count, JUNK, everything=True),
    ),
    Harmless(
        id="Y5",
        text="A plan buffer of a batch too small for a plan holds junk.",
        cases=(at(model=P1, bucket=1),),
        injection=Rewritten(("topk_v2_plan",), only_where_no_plan_is_written, JUNK, everything=True),
    ),
    Harmless(
        id="Y7",
        text="The refresh reads copies of the inputs in a bounce buffer.",
        cases=(at(Path.INDEPENDENT), at(Path.SHARED_IN_GRAPH, P1)),
        injection=Reading(bounced, OTHER, alike=True),
    ),
    Harmless(
        id="Y8",
        text="Lengths and ids pass through temporaries of another dtype that holds them exactly.",
        cases=(at(model=P1),),
        injection=Reading(by_way_of_floats, OTHER, alike=True),
    ),
    Harmless(
        id="Y9",
        text="The request table holds junk for requests that are not in the batch, and past the last pages.",
        cases=(at(), at(model=P1, mode=Mode.TARGET_VERIFY, bucket=2)),
        injection=Reading(junk_of_dead_requests, JUNK),
    ),
    Harmless(
        id="Y23",
        text="The schedule comes from another algorithm with equal results.",
        cases=(at(model=P1),),
        injection=Rewritten((SCHEDULE,), same_schedule, OTHER, everything=True),
    ),
)
