"""Numbers for allocations, by identity and by address, safe against reuse of either.

Weak references only: a probe may not keep alive what a system under test has let go of.
"""

from __future__ import annotations

import bisect
from dataclasses import dataclass

import torch
from torch.multiprocessing.reductions import StorageWeakRef


@dataclass
class _Known:
    """One storage that was seen."""

    weak: StorageWeakRef
    start: int
    """Absolute address of its first byte."""
    stop: int
    region: int
    base: int
    """Its first byte, from the start of its region; negative where it begins before the region did."""
    moved: bool = False
    """Whether the storage has taken other memory since (`resize_`)."""

    def alive(self) -> bool:
        return not self.moved and not self.weak.expired()  # type: ignore[no-untyped-call]


class Regions:
    """Numbers every allocation in order of first appearance.

    A storage is the same allocation as long as it lives at its address: a weak reference keeps its
    identity from being reused, so a new storage at a freed one's address is a new region, and a
    storage whose memory moved (`resize_`) is one too. A storage that overlaps a region that is alive
    (`from_blob`, another library's view of the memory) belongs to that region, at its own offset.
    """

    def __init__(self) -> None:
        """Start with no region known."""
        self._by_identity: dict[int, _Known] = {}
        self._by_address: list[_Known] = []
        self._members: list[list[_Known]] = []

    def __len__(self) -> int:
        return len(self._members)

    def locate(self, tensor: torch.Tensor) -> tuple[int, int]:
        """Return (region number, byte offset of the tensor's storage within it); a new region if unknown."""
        storage = tensor.untyped_storage()
        known = self._lookup(storage)
        if known is None:
            region = len(self._members)
            self._members.append([])
            known = self._remember(storage, region, 0)
        return known.region, known.base

    def find(self, storage: torch.UntypedStorage) -> tuple[int, int] | None:
        """Return (region number, byte offset of the storage) without making a new region."""
        known = self._lookup(storage)
        return None if known is None else (known.region, known.base)

    def alive(self, region: int) -> bool:
        """Whether any storage of the region still lives."""
        return any(known.alive() for known in self._members[region])

    def _lookup(self, storage: torch.UntypedStorage) -> _Known | None:
        known = self._by_identity.get(storage._cdata)
        start = storage.data_ptr()
        if known is not None and known.start == start:
            if known.stop - start != storage.nbytes():
                known.stop = start + storage.nbytes()
            return known
        if known is not None:
            known.moved = True
        overlapped = self._overlapping(start, start + storage.nbytes())
        if not overlapped:
            return None
        first = min(overlapped, key=lambda other: other.region)
        origin = first.start - first.base
        for other in overlapped:
            self._merge(other.region, first.region, origin)
        return self._remember(storage, first.region, start - origin)

    def _overlapping(self, start: int, stop: int) -> list[_Known]:
        if start == stop:
            return []
        right = bisect.bisect_left(self._by_address, stop, key=lambda known: known.start)
        return [known for known in self._by_address[:right] if known.stop > start and known.alive()]

    def _merge(self, region: int, target: int, origin: int) -> None:
        """Move a region's storages into an older one, when a storage turns out to span both."""
        if region == target:
            return
        for known in self._members[region]:
            known.region, known.base = target, known.start - origin
        self._members[target] += self._members[region]

    def _remember(self, storage: torch.UntypedStorage, region: int, base: int) -> _Known:
        start = storage.data_ptr()
        weak = StorageWeakRef(storage)  # type: ignore[no-untyped-call]
        known = _Known(weak, start, start + storage.nbytes(), region, base)
        self._by_identity[storage._cdata] = known
        self._members[region].append(known)
        if known.start != known.stop:
            bisect.insort(self._by_address, known, key=lambda other: other.start)
        return known
