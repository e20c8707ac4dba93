"""Reading leaves: defined elements only, each distinct memory once, compared on a device before copied."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray

from harness.case import PHYSICAL_PAGE
from harness.digest import value_digest
from harness.fields import FieldSpec, Live, canonical, live_mask, row_lengths
from harness.observation import Cell, Digest
from harness.probe.poison import remaining
from harness.truth import RoundTruth

SMALL = 4096
"""Bytes up to which a value is remembered by its bytes, besides its digest."""
_UNITS = {Live.TOKENS: 1, Live.PAGES: PHYSICAL_PAGE}


class Values:
    """Values by digest, as an observation keeps them."""

    def __init__(self) -> None:
        """Start empty."""
        self.by_digest: dict[Digest, NDArray[np.generic]] = {}
        self._small: dict[tuple[object, ...], Digest] = {}

    def add(self, value: NDArray[np.generic]) -> Digest:
        """Keep a value (a copy that nobody else changes) and return its digest."""
        digest = value_digest(value)
        self.by_digest.setdefault(digest, value)
        return digest

    def add_copy(self, value: NDArray[np.generic]) -> Digest:
        """Keep a copy of a value that others may change later and return its digest.

        Small values recur in every step and round: their bytes are looked up before they are hashed.
        """
        if value.nbytes > SMALL:
            return self.add(value.copy())
        key = value.dtype.str, value.shape, value.tobytes()
        digest = self._small.get(key)
        if digest is None:
            digest = self._small[key] = self.add(value.copy())
        return digest


class Snapshot:
    """Reads the leaves of one round at one moment: nothing may write them between its first and last cell.

    Leaves of different steps with the same defined elements are common (shared or copied): a leaf
    that lies where another lies is read once, one on a device is compared there with those of the
    same name already read, and copied to the host only if it differs from all of them.
    """

    def __init__(self, truth: RoundTruth, values: Values) -> None:
        """Read for the round of `truth`, into `values`."""
        self._truth = truth
        self._values = values
        self._seen: dict[str, list[tuple[torch.Tensor, Digest]]] = {}
        self._places: dict[tuple[object, ...], Digest] = {}

    def cell(self, step: int, name: str, tensor: torch.Tensor, sentinel: int | None = None) -> Cell | None:
        """Return the leaf's cell, or None where nothing of it is defined in this round.

        sentinel: what the leaf was poisoned with; defined elements still equal to it are counted.
        A leaf of unexpected dtype or shape is kept whole, so that the checks see what it is.
        """
        place = (name, tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype)
        known = self._places.get(place)
        if known is None:
            known = self._places[place] = self._read(name, tensor)
        if not known:
            return None
        if sentinel is None:
            return Cell(step, name, known)
        return Cell(step, name, known, remaining(self._values.by_digest[known], sentinel))

    def _read(self, name: str, tensor: torch.Tensor) -> Digest:
        """Return the digest of a leaf's defined elements, empty where there are none to judge."""
        truth = self._truth
        field = truth.fields.get(name)
        regular = field is not None and tuple(tensor.shape) == truth.once(
            ("shape", name), partial(field.shape, truth.dims)
        )
        if regular and not truth.judged(name):
            return ""
        if tensor.device.type == "cpu" and tensor.dtype is not torch.bfloat16:
            host = tensor.detach().numpy()
            return self._values.add_copy(self._defined(field, host) if field and regular else host)
        live = self.on_device(field, tensor) if field and regular else tensor.detach()
        return self._digest(name, live)

    def _digest(self, name: str, live: torch.Tensor) -> Digest:
        """Return the digest of a leaf's defined elements, copied to the host only if they are new here."""
        for other, digest in self._seen.setdefault(name, []):
            if other.shape == live.shape and other.dtype == live.dtype and torch.equal(other, live):
                return digest
        digest = self._values.add(to_numpy(live))
        self._seen[name].append((live, digest))
        return digest

    def _defined(self, field: FieldSpec, host: NDArray[np.generic]) -> NDArray[np.generic]:
        """`fields.canonical`, with the mask made once for a round."""
        truth = self._truth
        if field.live is Live.ALL or field.live is Live.ELSEWHERE:
            return host.reshape(-1)
        if field.live is Live.PLAN:
            return canonical(field, truth.dims, truth.inputs, host)
        mask = truth.once(
            ("mask", field.live, host.shape), lambda: live_mask(field, truth.dims, truth.inputs)
        )
        return host.reshape(-1) if mask is None else host[mask]

    def on_device(self, field: FieldSpec, tensor: torch.Tensor) -> torch.Tensor:
        """`fields.canonical` of a leaf on its device (plans and candidates by way of the host)."""
        truth = self._truth
        if field.live is Live.ALL or field.live is Live.ELSEWHERE:
            return tensor.detach().reshape(-1)
        if field.live in (Live.TOKENS, Live.PAGES, Live.POOLED_PAGES):
            return tensor.detach()[self._mask(field.live, tensor)]
        return torch.from_numpy(
            np.ascontiguousarray(canonical(field, truth.dims, truth.inputs, to_numpy(tensor)))
        )

    def _mask(self, live: Live, tensor: torch.Tensor) -> torch.Tensor:
        """The same rule as `fields.live_mask`, on the leaf's device; a test holds the two together."""
        truth, device = self._truth, tensor.device

        def make() -> torch.Tensor:
            unit = _UNITS.get(live, PHYSICAL_PAGE * truth.dims.pool)
            lengths = torch.from_numpy(row_lengths(truth.dims, truth.inputs)).to(device)
            columns = torch.arange(tensor.shape[1], device=device) * unit
            return columns[None, :] < lengths[:, None]

        return truth.once(("device mask", live, tuple(tensor.shape), str(device)), make)


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
