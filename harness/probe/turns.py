"""Watching a round in which refreshes and replays take turns, a pair for each draft step."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from torch.utils._python_dispatch import _disable_current_modes

from harness.engine.protocol import Engine, Graph
from harness.errors import FreedStorageError
from harness.observation import Cell, Change, LedgerEntry, PoisonFact, Refresh, Replay, Span
from harness.probe.instruments import Instruments
from harness.probe.leaves import Look
from harness.probe.ledger import Ledger
from harness.probe.observers import Before, ReplayObserver
from harness.probe.poison import Poison
from harness.probe.said import listening
from harness.probe.snapshot import Snapshot
from harness.probe.staged import Staged
from harness.sut.protocol import Interleaved, StepOutputs
from harness.truth import RoundTruth


class Turns:
    """One round. The one metadata object is poisoned, refreshed and read anew for every draft step."""

    def __init__(
        self,
        sut: Interleaved,
        engine: Engine,
        instruments: Instruments,
        graph: Graph,
        outputs: StepOutputs,
        truth: RoundTruth,
        salt: int,
        *,
        probes: bool,
    ) -> None:
        """Watch the round of `truth`; `graph` and `outputs` are one step's, replayed once a step."""
        self._sut, self._engine, self._instruments = sut, engine, instruments
        self._graph, self._outputs, self._truth = graph, outputs, truth
        self._salt, self._probes = salt, probes
        self._bucket = truth.dims.bucket
        self._ledger: Ledger | None = None
        self._poison: Poison | None = None
        self._staged: Staged | None = None
        self._facts: list[PoisonFact] = []
        self._entries: list[LedgerEntry] = []
        self._spans: list[Span] = []
        self._unattributed: list[tuple[int, str, int]] = []
        self._cells: list[Cell] = []
        self._read: list[Cell] = []
        self._computed: list[Cell] = []
        self._changed: list[Change] = []
        self._freed: list[str] = []
        self._inputs: dict[str, None] = {}
        self._walk = 0

    def run(self) -> tuple[Refresh, Replay]:
        """Run the system's loop; return the refreshes of all steps as one, and the replays as one."""
        with listening() as printed:
            if self._probes:
                with self._instruments.recorded() as self._ledger:
                    with _unseen():
                        self._prepare(0)
                    self._sut.decode(self._bucket, self._turn)
            else:
                self._sut.decode(self._bucket, self._turn)
        refresh = Refresh(
            poison=tuple(self._facts), ledger=tuple(self._entries), spans=tuple(self._spans),
            unattributed=tuple(self._unattributed), cells=tuple(self._cells), walk=self._walk,
            inputs_changed=tuple(sorted(self._inputs)), printed=tuple(printed),
        )  # fmt: skip
        replay = Replay(
            read=tuple(self._read), outputs=tuple(self._computed), changed=tuple(self._changed),
            walk=self._walk, freed=tuple(self._freed),
        )  # fmt: skip
        return refresh, replay

    def _prepare(self, step: int) -> None:
        """Poison what this step's refresh has to write."""
        self._poison = Poison(self._truth.at(step), self._salt, self._instruments.guard_page)
        facts = self._poison.apply(Look(self._sut.roots()).leaves(self._bucket)[:1])
        self._facts += [replace(fact, step=step) for fact in facts]
        self._staged = Staged(self._sut.inputs())

    def _turn(self, step: int) -> None:
        """Between a step's refresh and the next: read the leaves, replay, read again."""
        with _unseen():
            self._engine.synchronize()
            look = Look(self._sut.roots())
            self._refreshed(step, look)
            before = Before.of(look, self._bucket, metadata=True) if self._probes else None
            self._engine.launch(self._graph)
            try:
                self._engine.synchronize()
            except FreedStorageError as error:
                self._freed.append(str(error))
            self._replayed(step, look, before)
            if self._probes and step + 1 < self._sut.steps:
                self._prepare(step + 1)

    def _refreshed(self, step: int, look: Look) -> None:
        snapshot = Snapshot(self._truth.at(step), self._instruments.values)
        poison, ledger = self._poison, self._ledger
        for name, tensor in look.leaves(self._bucket)[0].items():
            sentinel = poison.sentinel(0, name) if poison is not None else None
            cell = snapshot.cell(step, name, tensor, sentinel)
            if cell is not None:
                self._cells.append(cell)
        if poison is None or ledger is None:
            return
        self._walk = self._instruments.walk(look)
        entries = ledger.entries(self._instruments.watched(self._walk, self._bucket))
        self._entries += [replace(entry, step=step) for entry in entries]
        self._spans += [replace(span, step=step) for span in ledger.spans()]
        self._unattributed += [(step, name, count) for _, name, count in poison.unattributed(ledger)]
        self._inputs.update(dict.fromkeys(self._staged_changed()))
        ledger.clear()

    def _staged_changed(self) -> tuple[str, ...]:
        return () if self._staged is None else self._staged.changed(self._sut.inputs())

    def _replayed(self, step: int, look: Look, before: Before | None) -> None:
        outputs = self._outputs if self._probes else StepOutputs({}, self._outputs.computed)
        observer = ReplayObserver(self._truth.at(step), (outputs,), self._instruments.values, before)
        result = observer.result(look, self._walk)
        self._read += [replace(cell, step=step) for cell in result.read]
        self._computed += [replace(cell, step=step) for cell in result.outputs]
        self._changed += [replace(change, step=step) for change in result.changed if not change.step]


@contextmanager
def _unseen() -> Iterator[None]:
    """Work on the system's tensors without its ledger's notice."""
    with _disable_current_modes():
        yield
