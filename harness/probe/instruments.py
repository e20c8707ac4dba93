"""Everything that measures one run: walks, values, and an observer for each capture, refresh and replay."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from harness.case import Case
from harness.fields import Dims, fields_for
from harness.observation import Capture, Cell, LeafFact, PauseFact, Refresh, Walk
from harness.probe.leaves import Look, Walker
from harness.probe.ledger import Ledger, Watched
from harness.probe.observers import (
    Before,
    CaptureObserver,
    RefreshObserver,
    ReplayObserver,
    watched_leaves,
)
from harness.probe.poison import Poison
from harness.probe.regions import Regions
from harness.probe.snapshot import Snapshot, Values, to_numpy
from harness.sut.protocol import StepOutputs, Sut
from harness.truth import RoundTruth
from harness.types import Role


class Spans:
    """The span recorder that a system is built with; it hands spans to the ledger in force, if any."""

    def __init__(self) -> None:
        """Start without a ledger."""
        self._ledger: Ledger | None = None

    def __call__(self, name: str, step: int = -1) -> AbstractContextManager[None]:
        """Name the block in the ledger in force."""
        return nullcontext() if self._ledger is None else self._ledger.span(name, step)

    @contextmanager
    def recording(self, ledger: Ledger) -> Iterator[None]:
        """Record writes and spans of the block in `ledger`."""
        before, self._ledger = self._ledger, ledger
        try:
            with ledger:
                yield
        finally:
            self._ledger = before


class Instruments:
    """The probes of one run."""

    def __init__(self, guard_page: int, spans: Spans) -> None:
        """Measure one run; `guard_page` is the model page that no request ever uses."""
        self.values = Values()
        self.walks: list[Walk] = []
        self.guard_page = guard_page
        self.spans = spans
        self._regions = Regions()
        self._walker = Walker(self._regions)
        self._watched: dict[tuple[int, int], Watched] = {}
        self._captured: dict[int, tuple[LeafFact, ...]] = {}

    def renew(self, captures: tuple[Capture, ...]) -> list[Capture]:
        """Forget values and walks but those of `captures`; return these with the walks' new numbers."""
        kept = sorted({self.last_walk, *(walk for one in captures for walk in (one.walk_before, one.walk))})
        number = {walk: index for index, walk in enumerate(kept)}
        self.walks = [self.walks[walk] for walk in kept if walk < len(self.walks)]
        self.values = Values()
        self._watched.clear()
        return [replace(one, walk=number[one.walk], walk_before=number[one.walk_before]) for one in captures]

    def walk(self, look: Look) -> int:
        """Walk all leaves of a look; return the index of the walk (the last one's if nothing changed)."""
        captured = [leaf for leaves in self._captured.values() for leaf in leaves]
        walk = self._walker.walk(look, captured)
        if not self.walks or self.walks[-1] != walk:
            self.walks.append(walk)
        return self.last_walk

    @property
    def last_walk(self) -> int:
        """Index of the last walk that was taken."""
        return max(len(self.walks) - 1, 0)

    def walk_captured(self, look: Look, bucket: int) -> int:
        """Walk after a capture and remember which leaves of the bucket its graph has baked in."""
        self._captured.pop(bucket, None)
        index = self.walk(look)
        self._captured[bucket] = tuple(
            leaf for leaf in self.walks[index].leaves if leaf.bucket in (0, bucket)
        )
        return index

    def watched(self, walk: int, bucket: int) -> Watched:
        """Return the leaves of a walk whose writes a ledger of `bucket` reports."""
        if (walk, bucket) not in self._watched:
            self._watched[walk, bucket] = Watched.of(watched_leaves(self.walks[walk], bucket))
        return self._watched[walk, bucket]

    def keep(self, tensor: torch.Tensor) -> str:
        """Keep a value and return its digest."""
        return self.values.add(to_numpy(tensor))

    def cells(self, look: Look, truth: RoundTruth) -> tuple[Cell, ...]:
        """Read the leaves of all steps as the round of `truth` defines them."""
        snapshot = Snapshot(truth, self.values)
        return tuple(
            cell
            for step, leaves in enumerate(look.leaves(truth.dims.bucket))
            for name, tensor in leaves.items()
            if (cell := snapshot.cell(step, name, tensor)) is not None
        )

    def zeroed(
        self, look: Look, buckets: Iterable[int], case: Case, before_round: int
    ) -> Iterator[PauseFact]:
        """Tell of every refreshed leaf of these buckets whether all of it is zero, as after a pause."""
        for bucket in buckets:
            fields = fields_for(Dims.of(case, bucket))
            for step, leaves in enumerate(look.leaves(bucket)):
                for name, tensor in leaves.items():
                    spec = fields.get(name)
                    if spec is not None and spec.role is Role.REFRESHED:
                        part = tensor[1:] if spec.init_once_first else tensor
                        yield PauseFact(before_round, bucket, step, name, not bool(torch.any(part)))

    def plain_refresh(self, look: Look, truth: RoundTruth) -> Refresh:
        """Read step 0's leaves, what others are held against, after a refresh without probes."""
        snapshot = Snapshot(truth, self.values)
        cells = [
            cell
            for name, tensor in look.leaves(truth.dims.bucket)[0].items()
            if (cell := snapshot.cell(0, name, tensor)) is not None
        ]
        return Refresh((), (), (), (), tuple(cells), 0)

    def capture_observer(self, sut: Sut, bucket: int) -> CaptureObserver:
        """Return what watches one capture of `bucket`."""
        return CaptureObserver(sut, bucket, Ledger(self._regions), self.spans.recording)

    def refresh_observer(
        self, sut: Sut, truth: RoundTruth, salt: int, references: Mapping[str, NDArray[np.generic]]
    ) -> RefreshObserver:
        """Return what watches one refresh of the round of `truth`, poisoned with the sentinels of `salt`.

        references: right values of leaves without a formula, so that no sentinel equals one.
        """
        poison = Poison(truth, salt, self.guard_page, references)
        ledger = Ledger(self._regions)
        return RefreshObserver(sut, truth, poison, self.values, ledger, self.spans.recording)

    @contextmanager
    def recorded(self) -> Iterator[Ledger]:
        """Record what the block writes, and in which spans."""
        ledger = Ledger(self._regions)
        with self.spans.recording(ledger):
            yield ledger

    def staging(self) -> AbstractContextManager[Ledger]:
        """Record what the block, which stages inputs, writes."""
        return self.recorded()

    def replay_observer(
        self, truth: RoundTruth, outputs: tuple[StepOutputs, ...], before: Before | None, *, read: bool
    ) -> ReplayObserver:
        """Return what watches one replay of the round of `truth`.

        before: None where nothing was copied. read: whether to keep what each step read, too.
        """
        if not read:
            outputs = tuple(StepOutputs({}, one.computed) for one in outputs)
        return ReplayObserver(truth, outputs, self.values, before)
