"""Wrong formulas, written on the host from a round's inputs; each returns what a leaf holds."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray

from harness import oracle
from harness.case import PHYSICAL_PAGE
from harness.faults.mechanisms.values import Spot

Ints = NDArray[np.int64]
Move = Callable[[Spot, Ints], Ints]


def on(spot: Spot, values: NDArray[np.generic]) -> torch.Tensor:
    """Return host values as the leaf has them: on its device, of its dtype and shape."""
    tensor = torch.from_numpy(np.ascontiguousarray(values)).to(spot.fresh.device)
    return tensor.to(spot.fresh.dtype).view(spot.fresh.shape)


def per_row(spot: Spot, values: Ints) -> Ints:
    """Repeat a value of each request for each of its rows."""
    return np.repeat(values, spot.dims.rows // spot.bucket)


def token(spot: Spot) -> Ints:
    """Which of its request's rows each row is, `[rows]`."""
    each = spot.dims.rows // spot.bucket
    return np.tile(np.arange(each), spot.bucket)


def lengths(change: Callable[[Spot, Ints], Ints]) -> Callable[[Spot], torch.Tensor]:
    """Return the formula: one value per request, from the staged lengths."""
    return lambda spot: on(spot, change(spot, spot.round.lengths))


def schedule(context: Callable[[Spot], Ints]) -> Callable[[Spot], torch.Tensor]:
    """Return the formula: a schedule over other context lengths."""
    return lambda spot: on(spot, oracle.schedule(context(spot), spot.dims.num_sms))


def visible(spot: Spot) -> Ints:
    """The right context length of every row."""
    return oracle.visible_lengths(spot.dims, spot.round)


def table_cells(spot: Spot, move: Move) -> Ints:
    """Return the physical pages of a page table whose cells are looked up elsewhere, `[rows, pages]`.

    `move` is given the flat token index of every cell in the wide table that the rows should have, and
    returns the index that is read instead; beyond the table's end it starts again.
    """
    wide = spot.round.table[per_row(spot, spot.round.requests)].astype(np.int64)
    rows, width = wide.shape
    flat = np.arange(rows)[:, None] * width + np.arange(0, width, PHYSICAL_PAGE)[None, :]
    return np.asarray(wide.reshape(-1)[move(spot, flat) % wide.size] // PHYSICAL_PAGE)
