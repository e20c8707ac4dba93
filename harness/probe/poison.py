"""Poison: what every refreshed leaf holds before a refresh, so that what was not written shows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch.multiprocessing.reductions import StorageWeakRef

from harness.fields import FieldSpec
from harness.observation import PoisonFact
from harness.probe.extent import Extent
from harness.probe.ledger import Ledger
from harness.probe.sentinels import sentinel_for
from harness.truth import RoundTruth
from harness.types import Role

NO_VALUES: NDArray[np.generic] = np.zeros(0, np.int64)


@dataclass(frozen=True)
class _Filled:
    """One byte range that was filled, and whose leaf it is."""

    step: int
    name: str
    sentinel: int
    spare_first: bool
    weak: StorageWeakRef
    """Weak: a leaf that the refresh lets go of has to be seen as freed."""
    dtype: torch.dtype
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]

    def tensor(self) -> torch.Tensor | None:
        """Return the leaf as it was filled, None if its storage no longer lives."""
        storage: torch.UntypedStorage | None = torch.UntypedStorage._new_with_weak_ptr(self.weak.cdata)
        if storage is None:
            return None
        empty = torch.empty(0, dtype=self.dtype, device=storage.device)
        return empty.set_(storage, self.offset, self.shape, self.stride)


class Poison:
    """Fills the refreshed leaves of one bucket with sentinels and remembers what it wrote.

    Init-once leaves and init-once first elements keep their values; so do plans where a refresh
    writes none. Dead columns are poisoned too: nothing may read them.
    """

    def __init__(
        self,
        truth: RoundTruth,
        salt: int,
        guard_page: int,
        references: Mapping[str, NDArray[np.generic]] | None = None,
    ) -> None:
        """Poison for the round of `truth`.

        salt: 0 or 1, two sentinels per leaf. guard_page: the model page that no request ever uses.
        references: right values, by name, of leaves without a formula.
        """
        self._truth = truth
        self._salt = salt
        self._guard_page = guard_page
        self._references = references or {}
        self._filled: list[_Filled] = []
        self._sentinels: dict[tuple[int, str], int] = {}

    def apply(self, leaves: Sequence[Mapping[str, torch.Tensor]]) -> tuple[PoisonFact, ...]:
        """Fill in place; return one fact for each byte range, under its first leaf.

        leaves: by step, leaves by name. Leaves of the same bytes (shared steps, views of the same
        lengths) are filled once and share the sentinel of the first. All are read back after the
        last was filled, so that leaves which overlap by mistake show as not landed.
        """
        self._filled, self._sentinels = [], {}
        parts: list[torch.Tensor] = []
        seen: dict[tuple[object, ...], int] = {}
        for step, tensors in enumerate(leaves):
            for name, tensor in tensors.items():
                spec = self._truth.fields.get(name)
                if spec is None or spec.role is not Role.REFRESHED or not self._truth.judged(name):
                    continue
                storage = tensor.untyped_storage()._cdata
                view = (storage, tensor.storage_offset(), tensor.dtype, tensor.shape, tensor.stride())
                if view not in seen:
                    # The same bytes may be seen through views of another shape.
                    key = (storage, Extent.of_tensor(tensor).identity)
                    if key not in seen:
                        seen[key] = self._fill(step, name, tensor, spec)
                        parts.append(_poisoned(tensor, spec.init_once_first))
                    seen[view] = seen[key]
                self._sentinels[step, name] = seen[view]
        return tuple(_fact(filled, part) for filled, part in zip(self._filled, parts, strict=True))

    def sentinel(self, step: int, name: str) -> int | None:
        """Return what a leaf was filled with, None if it was left alone."""
        return self._sentinels.get((step, name))

    def unattributed(self, ledger: Ledger) -> tuple[tuple[int, str, int], ...]:
        """Return (step, leaf, bytes) that changed since without a write of the ledger covering them."""
        found = []
        for filled in self._filled:
            tensor = filled.tensor()
            if tensor is None or not tensor.numel():
                continue
            if ledger.covers(tensor):
                continue
            written = ledger.written_mask(tensor)
            if bool(written.all()):
                continue
            changed = unattributed(tensor, filled.sentinel, written, spare_first=filled.spare_first)
            if changed:
                found.append((filled.step, filled.name, changed))
        return tuple(found)

    def _fill(self, step: int, name: str, tensor: torch.Tensor, spec: FieldSpec) -> int:
        sentinel = self._choose(name, spec)
        _poisoned(tensor, spec.init_once_first).fill_(sentinel)
        filled = _Filled(
            step,
            name,
            sentinel,
            spec.init_once_first,
            StorageWeakRef(tensor.untyped_storage()),  # type: ignore[no-untyped-call]
            tensor.dtype,
            int(tensor.storage_offset()),
            tuple(tensor.shape),
            tuple(tensor.stride()),
        )
        self._filled.append(filled)
        return sentinel

    def _choose(self, name: str, spec: FieldSpec) -> int:
        truth = self._truth
        given = partial(sentinel_for, spec, truth.dims, truth.inputs, self._salt, guard_page=self._guard_page)
        if name not in truth.expected:
            return given(expected=self._references.get(name, NO_VALUES))
        expected = truth.expected[name].live
        if truth.later:  # one leaf serves all draft steps
            expected = np.concatenate([expected, *(one.expected[name].live for one in truth.later)])
        return truth.once(("sentinel", name, self._salt, self._guard_page), lambda: given(expected=expected))


def _fact(filled: _Filled, part: torch.Tensor) -> PoisonFact:
    landed = part.numel() > 0 and _all_equal(part, filled.sentinel)
    return PoisonFact(filled.step, filled.name, filled.sentinel, part.numel(), landed)


def _all_equal(tensor: torch.Tensor, value: int) -> bool:
    if tensor.device.type == "cpu":
        return bool((tensor.numpy() == value).all())
    return bool((tensor == value).all())


def _poisoned(tensor: torch.Tensor, spare_first: bool) -> torch.Tensor:
    """Return the part of a leaf that is filled: all of it, or all but the first element of a vector."""
    return tensor[1:] if spare_first else tensor


def remaining(values: NDArray[np.generic], sentinel: int) -> int:
    """Return how many elements still hold the sentinel."""
    return int(np.count_nonzero(values == sentinel))


def unattributed(
    leaf: torch.Tensor, sentinel: int, written: torch.Tensor, *, spare_first: bool = False
) -> int:
    """Return how many bytes of a poisoned leaf no longer hold the sentinel though no write covers them.

    written: bool of the leaf's shape, on any device (`Ledger.written_mask`). spare_first: the first
    element was never poisoned.
    """
    changed = (leaf != sentinel) & ~written.to(leaf.device)
    return int(_poisoned(changed, spare_first).sum()) * leaf.element_size()
