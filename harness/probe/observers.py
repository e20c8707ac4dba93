"""Watching one capture, one refresh, one replay: each turns what happened into its record."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, redirect_stdout
from dataclasses import replace

import torch

from harness.fields import COUNTER
from harness.observation import Capture, Cell, Change, LeafFact, PoisonFact, Refresh, Replay, Walk
from harness.probe.leaves import leaf_tensors
from harness.probe.ledger import Ledger
from harness.probe.poison import Poison
from harness.probe.snapshot import Snapshot, Values, computed_cells
from harness.sut.protocol import StepOutputs, Sut
from harness.truth import RoundTruth

Recording = Callable[[Ledger], AbstractContextManager[None]]
Leaves = tuple[Mapping[str, torch.Tensor], ...]
"""By step: the leaves of one bucket by name."""
IN_GRAPH = "refresh"
"""Span of a refresh that runs inside the captured forward."""
FORWARD = "forward"
"""Span of one draft step's forward."""


def bucket_leaves(sut: Sut, bucket: int) -> Leaves:
    """Return each step's leaves of one bucket as they hang now."""
    return tuple(leaf_tensors(root.metadata.get(bucket)) for root in sut.roots())


def counters(sut: Sut) -> dict[int, torch.Tensor]:
    """Return each step's KV counter, for steps that have one."""
    found = {}
    for step, root in enumerate(sut.roots()):
        counter = root.state.get(COUNTER)
        if isinstance(counter, torch.Tensor):
            found[step] = counter
    return found


class CaptureObserver:
    """Wraps the forward that a graph captures, so that its writes are in a ledger."""

    def __init__(self, sut: Sut, bucket: int, ledger: Ledger, recording: Recording) -> None:
        """Watch a capture of `bucket`."""
        self._sut, self._bucket, self._ledger, self._recording = sut, bucket, ledger, recording

    def forward(self) -> tuple[StepOutputs, ...]:
        """Run the forward under the ledger, which starts anew: the last call, under capture, is kept."""
        with self._recording(self._ledger):
            return self._sut.forward(self._bucket)

    def result(self, walks: Sequence[Walk], walk: int, before_round: int) -> Capture:
        """Return the record of the capture; `walk` is the index of the walk after it."""
        leaves = watched_leaves(walks[walk], self._bucket)
        inside = self._ledger.entries(leaves, within=IN_GRAPH)
        forward = self._ledger.entries(leaves, outside=IN_GRAPH)
        spans = tuple(span for span in self._ledger.spans() if span.name not in (IN_GRAPH, FORWARD))
        return Capture(self._bucket, walk, forward, inside, spans, before_round=before_round)


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
        self._facts = self._poison.apply(bucket_leaves(self._sut, self._truth.dims.bucket))

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Poison, then keep the block's writes, spans, printed lines and warnings."""
        self.poison()
        text = io.StringIO()
        with warnings.catch_warnings(record=True) as caught, redirect_stdout(text):
            warnings.simplefilter("always")
            with self._recording(self._ledger):
                yield
        lines = [line.strip() for line in text.getvalue().splitlines() if line.strip()]
        self._printed = lines + [f"{one.category.__name__}: {one.message}" for one in caught]

    def result(self, walks: Sequence[Walk], walk: int) -> Refresh:
        """Return the record of a refresh outside the graph; `walk` is the index of the walk after it."""
        leaves = watched_leaves(walks[walk], self._truth.dims.bucket)
        return Refresh(
            poison=self._facts,
            ledger=self._ledger.entries(leaves),
            spans=self._ledger.spans(),
            unattributed=self._poison.unattributed(self._ledger),
            cells=self._cells(),
            walk=walk,
            printed=tuple(self._printed),
        )

    def result_in_graph(self, walk: int) -> Refresh:
        """Return the record of a refresh that a replay did: its ledger is the capture's."""
        return Refresh(self._facts, (), (), (), self._cells(), walk)

    def _cells(self) -> tuple[Cell, ...]:
        snapshot = Snapshot(self._truth, self._values)
        cells = []
        for step, leaves in enumerate(bucket_leaves(self._sut, self._truth.dims.bucket)):
            for name, tensor in leaves.items():
                cell = snapshot.cell(step, name, tensor, self._poison.sentinel(step, name))
                if cell is not None:
                    cells.append(cell)
        return tuple(cells)


class ReplayObserver:
    """Watches one replay: metadata bytes before and after, what was read, what was computed."""

    def __init__(self, sut: Sut, truth: RoundTruth, outputs: tuple[StepOutputs, ...], values: Values) -> None:
        """Watch one replay of the round of `truth`; `outputs` are the captured ones."""
        self._sut, self._truth, self._outputs, self._values = sut, truth, outputs, values
        self._before: tuple[Mapping[str, torch.Tensor], ...] = ()
        self._counters: dict[int, int] = {}

    def before(self, *, metadata: bool) -> None:
        """Copy every leaf (unless the graph itself refreshes them) and count the counters' nonzeros."""
        if metadata:
            leaves = bucket_leaves(self._sut, self._truth.dims.bucket)
            copies = {place(tensor): tensor.detach().clone() for one in leaves for tensor in one.values()}
            self._before = tuple(
                {name: copies[place(tensor)] for name, tensor in one.items()} for one in leaves
            )
        self._counters = {step: _nonzero(counter) for step, counter in counters(self._sut).items()}

    def result(self, walk: int, *, freed: tuple[str, ...] = (), delayed: bool = False) -> Replay:
        """Return the record of the replay. Call it before anything else is launched: outputs are borrowed."""
        snapshot = Snapshot(self._truth, self._values)
        read: list[Cell] = []
        computed: list[Cell] = []
        rows = self._truth.dims.rows // self._truth.dims.bucket * self._truth.inputs.live
        for step, outputs in enumerate(self._outputs):
            for name, tensor in outputs.read.items():
                cell = snapshot.cell(step, name, tensor)
                if cell is not None:
                    read.append(cell)
            computed += computed_cells(step, outputs.computed, rows, self._values)
        dirty = tuple(
            (step, self._counters.get(step, 0), after)
            for step, counter in counters(self._sut).items()
            if (after := _nonzero(counter)) or self._counters.get(step, 0)
        )
        return Replay(
            read=tuple(read),
            outputs=tuple(computed),
            changed=self._changed(),
            walk=walk,
            delayed=delayed,
            counter_nonzero=dirty,
            freed=freed,
        )

    def _changed(self) -> tuple[Change, ...]:
        if not self._before:
            return ()
        changes = []
        seen: dict[tuple[object, ...], torch.Tensor] = {}
        leaves = bucket_leaves(self._sut, self._truth.dims.bucket)
        for step, (before, after) in enumerate(zip(self._before, leaves, strict=True)):
            for name, old in before.items():
                new = after.get(name)
                if new is None or new.shape != old.shape or new.dtype != old.dtype:
                    continue  # the walks show it
                key = place(new)
                if key not in seen:
                    seen[key] = (new != old).reshape(-1)
                differing = seen[key]
                count = int(differing.sum())
                if count:
                    first = int(differing.to(torch.uint8).argmax())
                    changes.append(Change(step, name, count * new.element_size(), first))
        return tuple(changes)


def place(tensor: torch.Tensor) -> tuple[object, ...]:
    """Return what identifies a view's bytes for as long as it lives."""
    return tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tuple(tensor.stride())


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
