"""Watching one capture, one refresh, one replay: each turns what happened into its record."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from itertools import chain

import torch

from harness.observation import Capture, Cell, Change, LeafFact, PoisonFact, Refresh, Replay, Walk
from harness.probe.leaves import Leaves, Look
from harness.probe.ledger import Ledger, Watched
from harness.probe.poison import Poison, remaining
from harness.probe.said import listening
from harness.probe.snapshot import Snapshot, Values, computed_cells
from harness.sut.protocol import StepOutputs, Sut
from harness.truth import RoundTruth

Recording = Callable[[Ledger], AbstractContextManager[None]]
IN_GRAPH = "refresh"
"""Span of a refresh that runs inside the captured forward."""
FORWARD = "forward"
"""Span of one draft step's forward."""


class CaptureObserver:
    """Wraps the forward that a graph captures, so that its writes are in a ledger."""

    def __init__(self, sut: Sut, bucket: int, ledger: Ledger, recording: Recording) -> None:
        """Watch a capture of `bucket`."""
        self._sut, self._bucket, self._ledger, self._recording = sut, bucket, ledger, recording
        self._calls = 0

    def forward(self) -> tuple[StepOutputs, ...]:
        """Run the forward; from the second call on, the one under capture, under the ledger."""
        self._calls += 1
        if self._calls == 1:
            return self._sut.forward(self._bucket)
        with self._recording(self._ledger):
            return self._sut.forward(self._bucket)

    def result(
        self, watched: Watched, walk: int, before_round: int, *, before: int, printed: Sequence[str]
    ) -> Capture:
        """Return the record of the capture.

        walk: index of the walk after it. watched: the leaves of that walk. before: index of the walk between
        making the bucket's metadata and running the forward. printed: what was said meanwhile.
        """
        inside = self._ledger.entries(watched, within=IN_GRAPH)
        forward = self._ledger.entries(watched, outside=IN_GRAPH)
        spans = tuple(span for span in self._ledger.spans() if span.name not in (IN_GRAPH, FORWARD))
        return Capture(
            self._bucket, walk, forward, inside, spans, before_round=before_round, walk_before=before,
            printed=tuple(printed),
        )  # fmt: skip


class RefreshObserver:
    """Poisons the leaves of a bucket, watches its refresh and reads what it left."""

    def __init__(
        self,
        sut: Sut,
        truth: RoundTruth,
        poison: Poison,
        values: Values,
        ledger: Ledger,
        recording: Recording,
    ) -> None:
        """Watch one refresh of the round of `truth`."""
        self._sut, self._truth, self._values = sut, truth, values
        self._ledger, self._recording, self._poison = ledger, recording, poison
        self._printed: list[str] = []
        self._facts: tuple[PoisonFact, ...] = ()

    def poison(self) -> None:
        """Fill every refreshed leaf with its sentinel and read it back."""
        self._facts = self._poison.apply(Look(self._sut.roots()).leaves(self._truth.dims.bucket))

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Poison, then keep the block's writes, spans, printed lines and warnings."""
        self.poison()
        with listening() as self._printed, self._recording(self._ledger):
            yield

    def result(self, look: Look, watched: Watched, walk: int) -> Refresh:
        """Return the record of a refresh outside the graph.

        look: taken after it. walk: index of the walk of that moment. watched: the leaves of that walk.
        """
        return Refresh(
            poison=self._facts,
            ledger=self._ledger.entries(watched),
            spans=self._ledger.spans(),
            unattributed=self._poison.unattributed(self._ledger),
            cells=self._cells(look),
            walk=walk,
            printed=tuple(self._printed),
        )

    def result_in_graph(self, look: Look, walk: int, read: Sequence[Cell]) -> Refresh:
        """Return the record of a refresh that a replay did: its ledger is the capture's.

        read: what each step read in the graph, which stands for the leaves where they change between steps.
        """
        cells = tuple(map(self._counted, read)) if self._truth.advances else self._cells(look)
        return Refresh(self._facts, (), (), (), cells, walk)

    def _counted(self, cell: Cell) -> Cell:
        sentinel = self._poison.sentinel(cell.step, cell.name)
        if sentinel is None:
            return cell
        return replace(cell, poisoned=remaining(self._values.by_digest[cell.value], sentinel))

    def _cells(self, look: Look) -> tuple[Cell, ...]:
        snapshot = Snapshot(self._truth, self._values)
        cells = []
        for step, leaves in enumerate(look.leaves(self._truth.dims.bucket)):
            for name, tensor in leaves.items():
                cell = snapshot.cell(step, name, tensor, self._poison.sentinel(step, name))
                if cell is not None:
                    cells.append(cell)
        return tuple(cells)


@dataclass(frozen=True)
class Before:
    """What a replay may not change, copied before it."""

    leaves: Leaves
    """Copies; empty where the graph itself refreshes them."""
    counters: Mapping[int, int]
    """Nonzero elements of each step's KV counter."""

    @classmethod
    def of(cls, look: Look, bucket: int, *, metadata: bool) -> Before:
        """Copy every leaf of a bucket (if `metadata`) and count the counters' nonzeros."""
        kept: Leaves = ()
        if metadata:
            leaves = look.leaves(bucket)
            copies: dict[tuple[object, ...], torch.Tensor] = {}
            for tensor in chain.from_iterable(one.values() for one in leaves):
                key = place(tensor)
                if key not in copies:
                    copies[key] = tensor.detach().clone()
            kept = tuple({name: copies[place(tensor)] for name, tensor in one.items()} for one in leaves)
        return cls(kept, {step: _nonzero(counter) for step, counter in look.counters().items()})


class ReplayObserver:
    """Watches one replay: metadata bytes before and after, what was read, what was computed."""

    def __init__(
        self, truth: RoundTruth, outputs: tuple[StepOutputs, ...], values: Values, before: Before | None
    ) -> None:
        """Watch one replay of the round of `truth`; `outputs` are the captured ones."""
        self._truth, self._outputs, self._values = truth, outputs, values
        self._before = Before((), {}) if before is None else before

    def result(self, look: Look, walk: int, *, freed: tuple[str, ...] = (), delayed: bool = False) -> Replay:
        """Return the record of the replay. Call it before anything else is launched: outputs are borrowed.

        look: taken after it. walk: index of the walk of that moment.
        """
        snapshot = Snapshot(self._truth, self._values)
        read: list[Cell] = []
        computed: list[Cell] = []
        rows = self._truth.dims.rows // self._truth.dims.bucket * self._truth.inputs.live
        for step, outputs in enumerate(self._outputs):
            if self._truth.later:
                snapshot = Snapshot(self._truth.at(step), self._values)
            for name, tensor in outputs.read.items():
                cell = snapshot.cell(step, name, tensor)
                if cell is not None:
                    read.append(cell)
            computed += computed_cells(step, outputs.computed, rows, self._values)
        before = self._before.counters
        dirty = tuple(
            (step, before.get(step, 0), after)
            for step, counter in look.counters().items()
            if (after := _nonzero(counter)) or before.get(step, 0)
        )
        return Replay(
            read=tuple(read),
            outputs=tuple(computed),
            changed=self._changed(look),
            walk=walk,
            delayed=delayed,
            counter_nonzero=dirty,
            freed=freed,
        )

    def _changed(self, look: Look) -> tuple[Change, ...]:
        changes = []
        seen: dict[tuple[object, ...], tuple[int, int]] = {}
        leaves = look.leaves(self._truth.dims.bucket) if self._before.leaves else ()
        for step, (before, after) in enumerate(zip(self._before.leaves, leaves, strict=True)):
            for name, old in before.items():
                new = after.get(name)
                if new is None or new.shape != old.shape or new.dtype != old.dtype:
                    continue  # the walks show it
                key = (id(old), place(new))
                if key not in seen:
                    seen[key] = _difference(old, new)
                count, first = seen[key]
                if count:
                    changes.append(Change(step, name, count * new.element_size(), first))
        return tuple(changes)


def _difference(old: torch.Tensor, new: torch.Tensor) -> tuple[int, int]:
    """Return how many elements differ, and the flat index of the first."""
    if torch.equal(old, new):
        return 0, 0
    differing = (new != old).reshape(-1)
    return int(differing.sum()), int(differing.to(torch.uint8).argmax())


def place(tensor: torch.Tensor) -> tuple[object, ...]:
    """Return what identifies a view's bytes for as long as it lives."""
    return tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride()


def watched_leaves(walk: Walk, bucket: int) -> tuple[LeafFact, ...]:
    """Return the leaves whose writes a ledger of `bucket` reports.

    The bucket's own leaves under their names; leaves of other buckets and of backend state in
    allocations that hold none of them under `@<bucket>/name` (state: `@0/name`): a write there is
    foreign.
    """
    own = tuple(leaf for leaf in walk.leaves if leaf.bucket == bucket)
    taken = {leaf.region for leaf in own}
    foreign = (
        replace(leaf, name=f"@{leaf.bucket}/{leaf.name}")
        for leaf in walk.leaves
        if leaf.bucket != bucket and leaf.region not in taken
    )
    return (*own, *foreign)


def _nonzero(counter: torch.Tensor) -> int:
    return int(torch.count_nonzero(counter))
