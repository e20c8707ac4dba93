"""Reading leaves: defined elements only, each distinct memory once, compared on a device before copied."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from harness.case import PHYSICAL_PAGE
from harness.digest import value_digest
from harness.fields import FieldSpec, Live, Padding, canonical, live_mask, row_lengths
from harness.observation import Cell, Digest
from harness.probe.poison import remaining
from harness.truth import RoundTruth

SMALL = 4096
"""Bytes up to which a value is remembered by its bytes, besides its digest."""
LATEST = 3
"""Larger values of one shape that a new one is compared with before it is hashed."""
_UNITS = {Live.TOKENS: 1, Live.PAGES: PHYSICAL_PAGE}


class Values:
    """Values by digest, as an observation keeps them."""

    def __init__(self) -> None:
        """Start empty."""
        self.by_digest: dict[Digest, NDArray[np.generic]] = {}
        self._small: dict[tuple[object, ...], Digest] = {}
        self._large: dict[tuple[object, ...], list[Digest]] = {}

    def add(self, value: NDArray[np.generic]) -> Digest:
        """Keep a value (a copy that nobody else changes) and return its digest."""
        digest = value_digest(value)
        self.by_digest.setdefault(digest, value)
        return digest

    def add_copy(self, value: NDArray[np.generic]) -> Digest:
        """Keep a copy of a value that others may change later and return its digest."""
        return self.once(value, lambda: value)

    def once(
        self, raw: NDArray[np.generic], make: Callable[[], NDArray[np.generic]], key: object = None
    ) -> Digest:
        """Keep a copy of what `make` gives for `raw` and return its digest.

        Small values recur in every step and round: their bytes are looked up before anything is made
        or hashed. key: whatever the result depends on besides `raw`.
        """
        if raw.nbytes > SMALL:
            return self._keep_large(make())
        found = key, raw.dtype, raw.shape, raw.tobytes()
        digest = self._small.get(found)
        if digest is None:
            digest = self._small[found] = self.add(make().copy())
        return digest

    def _keep_large(self, value: NDArray[np.generic]) -> Digest:
        """Compare with the latest values of the same shape, which costs less than to hash."""
        if value.dtype.kind not in "iub":
            return self.add(value.copy())  # equal floats may differ in their bytes
        latest = self._large.setdefault((value.dtype, value.shape), [])
        for digest in latest:
            if np.array_equal(self.by_digest[digest], value):
                return digest
        digest = self.add(value.copy())
        latest.insert(0, digest)
        del latest[LATEST:]
        return digest


@dataclass(frozen=True)
class _Rule:
    """How to read a leaf in one round."""

    field: FieldSpec
    shape: tuple[int, ...]
    judged: bool
    mask: NDArray[np.bool_] | None
    """Defined elements; None: all, or the rows of a plan."""

    @classmethod
    def of(cls, truth: RoundTruth, field: FieldSpec) -> _Rule:
        mask = live_mask(field, truth.dims, truth.inputs)
        if mask is not None and mask.all():
            mask = None
        return cls(field, field.shape(truth.dims), truth.judged(field.name), mask)


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
        self._rules: dict[str, _Rule] = truth.once("reading rules", dict)

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
        rule = self._rules.get(name)
        if rule is None and name in self._truth.fields:
            rule = self._rules[name] = _Rule.of(self._truth, self._truth.fields[name])
        if rule is not None and tensor.shape != rule.shape:
            rule = None
        if rule is not None and not rule.judged:
            return ""
        if tensor.device.type == "cpu" and tensor.dtype is not torch.bfloat16:
            return self._read_host(rule, tensor.detach().numpy())
        return self._digest(name, self.on_device(rule.field, tensor) if rule else tensor.detach())

    def _read_host(self, rule: _Rule | None, host: NDArray[np.generic]) -> Digest:
        """`fields.canonical` of a leaf on the host, with the mask made once for a round."""
        if rule is None:
            return self._values.add_copy(host)
        if rule.field.live is Live.PLAN:
            truth, field = self._truth, rule.field
            return self._values.once(
                host, lambda: canonical(field, truth.dims, truth.inputs, host), key=Live.PLAN
            )
        return self._values.add_copy(host.reshape(-1) if rule.mask is None else host[rule.mask])

    def _digest(self, name: str, live: torch.Tensor) -> Digest:
        """Return the digest of a leaf's defined elements, copied to the host only if they are new here."""
        for other, digest in self._seen.setdefault(name, []):
            if other.shape == live.shape and other.dtype == live.dtype and torch.equal(other, live):
                return digest
        digest = self._values.add(to_numpy(live))
        self._seen[name].append((live, digest))
        return digest

    def on_device(self, field: FieldSpec, tensor: torch.Tensor) -> torch.Tensor:
        """`fields.canonical` of a leaf on its device (plans and candidates by way of the host)."""
        truth = self._truth
        free = field.padding is Padding.FREE
        if not free and field.live in (Live.ALL, Live.ELSEWHERE):
            return tensor.detach().reshape(-1)
        if not free and field.live in (Live.TOKENS, Live.PAGES, Live.POOLED_PAGES):
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
