"""Changes that no check may notice."""

from __future__ import annotations

import torch

from harness.faults.catalogue import Harmless
from harness.faults.geometry import P1, at
from harness.faults.mechanisms.combined import Unchanged
from harness.faults.mechanisms.values import Rewritten, Spot
from harness.types import Path

HARMLESS = "harmless"


def permuted(spot: Spot) -> torch.Tensor:
    """Return a plan with its rows in the reverse order."""
    value = spot.fresh.clone()
    count = int(value[0, 1])
    value[1 : count + 1] = value[1 : count + 1].flip(0)
    return value


def junk_past_the_lengths(spot: Spot) -> torch.Tensor:
    """Return a wide table whose dead columns hold junk."""
    column = torch.arange(spot.fresh.shape[1], device=spot.fresh.device)
    return torch.where(column[None, :] < spot.given.lengths[:, None], spot.fresh, 7)


CHANGES = (
    Harmless(
        id="Y1",
        text="Nothing is changed at all.",
        cases=(at(Path.SHARED_IN_GRAPH), at(Path.SIBLING_COPY)),
        injection=Unchanged(),
    ),
    Harmless(
        id="X16",
        text="Rows of a top-k plan stand in another order.",
        cases=(at(), at(model=P1)),
        injection=Rewritten(("topk_v2_plan",), permuted, "permuted rows", everything=True),
    ),
    Harmless(
        id="X17",
        text="Dead columns of the wide page table hold junk.",
        cases=(at(),),
        injection=Rewritten(
            ("page_table_1",), junk_past_the_lengths, "junk past the lengths", everything=True
        ),
    ),
)
