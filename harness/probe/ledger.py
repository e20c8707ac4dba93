"""The write ledger: which operation wrote which bytes, in which part of a refresh.

It sees ATen operations through dispatch and declared kernels as launches. What bypasses both (NumPy,
other threads, kernels that nobody declared) is for the poison to find.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from torch._ops import OpOverload
from torch.multiprocessing.reductions import StorageWeakRef

from harness.engine.dispatch import OperationMode, Traits, written_tensors
from harness.observation import LeafFact, LedgerEntry, Span
from harness.probe.extent import Extent
from harness.probe.launches import Launch, Written
from harness.probe.leaves import leaf_fact
from harness.probe.regions import Regions


@dataclass
class _Target:
    """A storage that was written."""

    weak: StorageWeakRef
    place: tuple[int, int] | None
    """(region, byte offset), None while it is in no region: a temporary, or a leaf not walked yet."""


@dataclass(frozen=True)
class _Write:
    """One operation or launch."""

    operation: str
    parts: tuple[tuple[_Target, Extent], ...]
    spans: tuple[str, ...]
    """Names of the spans it happened in."""


@dataclass
class _OpenSpan:
    name: str
    step: int
    enclosing: tuple[str, ...]
    """Names of the spans that it was entered in."""
    writes: int = 0


@dataclass(frozen=True)
class Watched:
    """Leaves that a ledger reports on, with their bytes worked out.

    A leaf with exactly the bytes of an earlier step's leaf is that step's and left out.
    """

    leaves: tuple[tuple[LeafFact, Extent], ...]

    @classmethod
    def of(cls, facts: Iterable[LeafFact]) -> Watched:
        """Watch these leaves of a walk."""
        owners: dict[tuple[object, ...], int] = {}
        kept = []
        for leaf in facts:
            extent = Extent.of_leaf(leaf)
            if owners.setdefault((leaf.region, extent.identity), leaf.step) == leaf.step:
                kept.append((leaf, extent))
        return cls(tuple(kept))


class Ledger(OperationMode):  # type: ignore[no-untyped-call]
    """Records every write while it is entered: `with ledger: sut.refresh(bucket)`.

    Entering starts a new page. `ledger.span` is the `SpanRecorder` to give to a system; outside a
    `with ledger` block it records nothing.
    """

    def __init__(self, regions: Regions | None = None) -> None:
        """Attribute writes to regions: those that the leaf walk numbers, or the ledger's own.

        With regions that know the leaves already, a write through a foreign storage over the same
        memory (`from_blob`) is found also when that storage is gone by the time of asking.
        """
        super().__init__()  # type: ignore[no-untyped-call]
        self._regions = Regions() if regions is None else regions
        self._entered = 0
        self._targets: dict[int, _Target] = {}
        self._writes: list[_Write] = []
        self._spans: list[_OpenSpan] = []
        self._open: list[_OpenSpan] = []
        self._located: tuple[tuple[int, int], dict[int, list[tuple[int, Extent]]]] | None = None

    def __enter__(self) -> Self:
        # Compositions are taken apart under the mode itself, which enters it again.
        if not self._entered:
            self.clear()
        self._entered += 1
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *exception: Any) -> None:
        self._entered -= 1
        super().__exit__(*exception)  # type: ignore[no-untyped-call]

    def clear(self) -> None:
        """Forget what was recorded; within a block, to count only what follows (after a warm-up)."""
        self._targets.clear()
        self._writes.clear()
        self._located = None
        self._spans = list(self._open)
        for span in self._open:
            span.writes = 0

    @contextmanager
    def span(self, name: str, step: int = -1) -> Iterator[None]:
        """Name a part of a refresh. Spans nest; a write counts in every span that it happens in."""
        if not self._entered:
            yield
            return
        span = _OpenSpan(name, step, tuple(outer.name for outer in self._open))
        self._spans.append(span)
        self._open.append(span)
        try:
            yield
        finally:
            self._open.remove(span)

    def operation(
        self, func: OpOverload, traits: Traits, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Execute an operation and record what it wrote.

        Arguments that the schema marks as written count whole (of `index_put_` and `scatter_` too). A
        functional operation writes a temporary of its own: it counts in the spans and for no leaf.
        """
        result = func._op(*args, **kwargs)
        if traits.written:
            written = written_tensors(traits, args, kwargs)
            self._record(traits.name, [(tensor, Extent.of_tensor(tensor)) for tensor in written])
        elif traits.works:
            self._count()
        return result

    def observe_launch(self, launch: Launch, written: tuple[Written, ...]) -> None:
        """Record what a launch wrote, exactly where it says so.

        Elements are copied to the host, so a launch under a CUDA capture may not name any.
        """
        parts = [
            (
                part.tensor,
                Extent.of_tensor(part.tensor)
                if part.elements is None
                else Extent.of_elements(part.tensor, part.elements),
            )
            for part in written
        ]
        self._record(launch.kernel, parts)

    def entries(
        self,
        leaves: Watched | Iterable[LeafFact | tuple[int, str, torch.Tensor]],
        *,
        within: str | None = None,
        outside: str | None = None,
    ) -> tuple[LedgerEntry, ...]:
        """Return how many write operations touched at least one byte of each leaf, 0 left out.

        A leaf with exactly the bytes of an earlier step's leaf is that step's and reported once.
        leaves: facts of a walk over the same regions, or (step, name, tensor).
        within, outside: count only writes within, or only those not within, a span of this name.
        """
        if not isinstance(leaves, Watched):
            leaves = Watched.of(leaf if isinstance(leaf, LeafFact) else self._fact(*leaf) for leaf in leaves)
        entries = []
        by_region = self._by_region()
        for leaf, extent in leaves.leaves:
            touching = {
                number
                for number, part in by_region.get(leaf.region, ())
                if part.touches(extent) and _selected(self._writes[number], within, outside)
            }
            if touching:
                entries.append(LedgerEntry(leaf.step, leaf.name, len(touching)))
        return tuple(entries)

    def spans(self, *, within: str | None = None) -> tuple[Span, ...]:
        """Return the spans in the order in which they were entered; only those within a span of this name."""
        return tuple(
            Span(span.name, span.step, span.writes)
            for span in self._spans
            if within is None or within in span.enclosing
        )

    def operations(self, leaf: LeafFact) -> tuple[str, ...]:
        """Return the names of the operations and kernels that touched a leaf, in order."""
        extent, parts = Extent.of_leaf(leaf), self._by_region().get(leaf.region, ())
        numbers = sorted({number for number, part in parts if part.touches(extent)})
        return tuple(self._writes[number].operation for number in numbers)

    def covers(self, leaf: torch.Tensor) -> bool:
        """Whether one write covered the whole leaf, plain to see; if not, ask for the `written_mask`."""
        region, base = self._regions.locate(leaf)
        parts = self._by_region().get(region)
        if not parts:
            return False
        extent = Extent.of_tensor(leaf).moved(base)
        start, stop = extent.span
        return any(
            part is extent  # extents of one geometry are one object
            or (
                part.elements is None
                and (
                    (part.dense and part.span[0] <= start and stop <= part.span[1])
                    or part.identity == extent.identity
                )
            )
            for _, part in parts
        )

    def written_mask(self, leaf: torch.Tensor) -> torch.Tensor:
        """Return which elements of a leaf some write covered, bool of the leaf's shape, on the CPU."""
        region, base = self._regions.locate(leaf)
        extent = Extent.of_tensor(leaf).moved(base)
        start, stop = extent.span
        if start == stop:
            return torch.zeros(leaf.shape, dtype=torch.bool)
        parts = [part for _, part in self._by_region().get(region, ()) if part.touches(extent)]
        if any(part.identity == extent.identity and part.elements is None for part in parts):
            return torch.ones(leaf.shape, dtype=torch.bool)
        grain = math.gcd(extent.itemsize, *(part.grain(extent) for part in parts))
        covered = np.zeros((stop - start) // grain, np.bool_)
        for part in parts:
            covered |= part.painted(start, stop, grain)
        unit = extent.itemsize // grain
        strides = (*(step * unit for step in extent.stride), 1)
        view = np.lib.stride_tricks.as_strided(covered, (*extent.shape, unit), strides)
        return torch.from_numpy(np.ascontiguousarray(view.any(axis=-1)))

    def _fact(self, step: int, name: str, tensor: torch.Tensor) -> LeafFact:
        return leaf_fact(step, 0, name, tensor, self._regions)

    def _record(self, operation: str, parts: list[tuple[torch.Tensor, Extent]]) -> None:
        targets = tuple((self._target(tensor), extent) for tensor, extent in parts)
        self._writes.append(_Write(operation, targets, tuple(span.name for span in self._open)))
        self._count()

    def _count(self) -> None:
        for span in self._open:
            span.writes += 1

    def _target(self, tensor: torch.Tensor) -> _Target:
        storage = tensor.untyped_storage()
        target = self._targets.get(storage._cdata)
        if target is None:
            weak = StorageWeakRef(storage)  # type: ignore[no-untyped-call]
            target = self._targets[storage._cdata] = _Target(weak, self._regions.find(storage))
        return target

    def _by_region(self) -> dict[int, list[tuple[int, Extent]]]:
        """Return (number of the write, bytes) by region; writes to temporaries are in none.

        Kept until another write or another walk: a storage may get its region only after it was written.
        """
        stamp = len(self._writes), len(self._regions)
        if self._located is None or self._located[0] != stamp:
            found: dict[int, list[tuple[int, Extent]]] = {}
            for number, write in enumerate(self._writes):
                for target, extent in write.parts:
                    place = target.place or self._late(target)
                    if place is not None:
                        found.setdefault(place[0], []).append((number, extent.moved(place[1])))
            self._located = stamp, found
        return self._located[1]

    def _late(self, target: _Target) -> tuple[int, int] | None:
        """Look again for a storage that was walked only after it had been written."""
        storage: torch.UntypedStorage | None = torch.UntypedStorage._new_with_weak_ptr(target.weak.cdata)
        if storage is not None:
            target.place = self._regions.find(storage)
        return target.place


def _selected(write: _Write, within: str | None, outside: str | None) -> bool:
    return (within is None or within in write.spans) and (outside is None or outside not in write.spans)
