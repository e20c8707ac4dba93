"""Reading leaves: defined elements only, each distinct memory once, compared on the device before copied."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray

from harness.case import PHYSICAL_PAGE
from harness.digest import value_digest
from harness.fields import Live, canonical, row_lengths
from harness.observation import Cell, Digest
from harness.probe.poison import remaining
from harness.truth import RoundTruth

_UNITS = {Live.TOKENS: 1, Live.PAGES: PHYSICAL_PAGE}


class Values:
    """Values by digest, as an observation keeps them."""

    def __init__(self) -> None:
        """Start empty."""
        self.by_digest: dict[Digest, NDArray[np.generic]] = {}

    def add(self, value: NDArray[np.generic]) -> Digest:
        """Keep a value (a copy that nobody else changes) and return its digest."""
        digest = value_digest(value)
        self.by_digest.setdefault(digest, value)
        return digest


class Snapshot:
    """Reads the leaves of one round at one moment: nothing may write them between its first and last cell.

    Leaves of different steps with the same defined elements are common (shared or copied): a leaf is
    compared on its device with those of the same name already read, and copied to the host only if
    it differs from all of them.
    """

    def __init__(self, truth: RoundTruth, values: Values) -> None:
        """Read for the round of `truth`, into `values`."""
        self._truth = truth
        self._values = values
        self._seen: dict[str, list[tuple[torch.Tensor, Digest]]] = {}
        self._places: dict[tuple[object, ...], Digest] = {}
        self._masks: dict[Live, torch.Tensor] = {}

    def cell(self, step: int, name: str, tensor: torch.Tensor, sentinel: int | None = None) -> Cell | None:
        """Return the leaf's cell, or None where nothing of it is defined in this round.

        sentinel: what the leaf was poisoned with; defined elements still equal to it are counted.
        A leaf of unexpected dtype or shape is kept whole, so that the checks see what it is.
        """
        place = (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype)
        known = self._places.get((name, *place))
        if known is None:
            live = self._live(name, tensor)
            known = "" if live is None else self._digest(name, live)
            self._places[(name, *place)] = known
        if not known:
            return None
        if sentinel is None:
            return Cell(step, name, known)
        return Cell(step, name, known, remaining(self._values.by_digest[known], sentinel))

    def _digest(self, name: str, live: torch.Tensor) -> Digest:
        """Return the digest of a leaf's defined elements, copied to the host only if they are new here."""
        for other, digest in self._seen.setdefault(name, []):
            if other.shape == live.shape and other.dtype == live.dtype and torch.equal(other, live):
                return digest
        digest = self._values.add(to_numpy(live))
        self._seen[name].append((live, digest))
        return digest

    def _live(self, name: str, tensor: torch.Tensor) -> torch.Tensor | None:
        truth = self._truth
        field = truth.fields.get(name)
        if field is None or tuple(tensor.shape) != field.shape(truth.dims):
            return tensor.detach()
        if not truth.judged(name):
            return None
        if field.live is Live.ALL or field.live is Live.ELSEWHERE:
            return tensor.detach().reshape(-1)
        if field.live in (Live.TOKENS, Live.PAGES, Live.POOLED_PAGES):
            return tensor.detach()[self._mask(field.live, tensor)]
        return torch.from_numpy(
            np.ascontiguousarray(canonical(field, truth.dims, truth.inputs, to_numpy(tensor)))
        )

    def _mask(self, live: Live, tensor: torch.Tensor) -> torch.Tensor:
        """The same rule as `fields.live_mask`, on the leaf's device; a test holds the two together."""
        if live not in self._masks:
            truth, device = self._truth, tensor.device
            unit = _UNITS.get(live, PHYSICAL_PAGE * truth.dims.pool)
            lengths = torch.from_numpy(row_lengths(truth.dims, truth.inputs)).to(device)
            columns = torch.arange(tensor.shape[1], device=device) * unit
            self._masks[live] = columns[None, :] < lengths[:, None]
        return self._masks[live]


def to_numpy(tensor: torch.Tensor) -> NDArray[np.generic]:
    """Copy a tensor to the host; bf16, which NumPy lacks, as its bits in uint16."""
    host = tensor.detach().contiguous().cpu()
    if host.dtype is torch.bfloat16:
        host = host.view(torch.uint16)
    return np.array(host.numpy())


def computed_cells(
    step: int, outputs: Mapping[str, torch.Tensor], live_rows: int, values: Values
) -> list[Cell]:
    """Return a step's computed outputs, their first `live_rows` rows (all of a one-element output)."""
    cells = []
    for name, tensor in sorted(outputs.items()):
        rows = tensor if tensor.shape[0] == 1 else tensor[:live_rows]
        cells.append(Cell(step, name, values.add(to_numpy(rows))))
    return cells
