"""The protocol of one run: build, capture, then stage, poison, refresh, snapshot, replay, snapshot.

Driving produces an `Observation`; nothing here judges. With `probes=False` the same rounds run
without poison, ledger and walks: the ordinary reference of other cases.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from harness.case import Case
from harness.engine.protocol import Engine, Graph
from harness.errors import CaptureError, FreedStorageError, NotDrivable, UsageError
from harness.observation import (
    Capture,
    Expectation,
    LedgerEntry,
    Observation,
    PauseFact,
    Refresh,
    Replay,
    RoundRecord,
)
from harness.pages import guard_page
from harness.probe.instruments import Instruments, Spans
from harness.probe.leaves import Look
from harness.probe.observers import Before
from harness.probe.said import listening
from harness.probe.staged import Staged
from harness.probe.turns import Turns
from harness.rounds import Captured, Churn, Disturbance, Eager, Program, Round
from harness.sut.protocol import Interleaved, Pausable, StepOutputs, Sut, SutFactory
from harness.truth import RoundTruth, Truth
from harness.types import Drill

References = Mapping[str, NDArray[np.generic]]

CHURN_BLOCKS = 24
"""Blocks allocated before half of them are freed, between replays of the churn drill."""
OVERSIZE_ROWS = 16_384
"""Query rows of the oversize eager call; above any counter's first size (8192)."""
DISTURB_EVERY = 3
"""Rounds between two oversize calls."""


class SystemFailure(Exception):
    """The system under test raised: the run ends, and the observation says so."""


@dataclass(frozen=True)
class _Captured:
    graph: Graph
    outputs: tuple[StepOutputs, ...]


def drive(
    case: Case, program: Program, truth: Truth, factory: SutFactory, engine: Engine, *, probes: bool = True
) -> Observation:
    """Run one case and return what was observed. Exceptions of the system under test become `problems`.

    Raises NotDrivable where the system says that it cannot be driven on this case.
    """
    run = Run(case, program, truth, engine, probes)
    try:
        run.execute(factory)
    except SystemFailure as failure:
        run.problems.append(str(failure))
    finally:
        run.close()
    return run.observation()


class Run:
    """One run in progress; `drive` makes one and ends it, `life` goes on with more rounds."""

    def __init__(self, case: Case, program: Program, truth: Truth, engine: Engine, probes: bool) -> None:
        self.case, self.program, self.truth, self.engine, self.probes = case, program, truth, engine, probes
        self.problems: list[str] = []
        self._sut: Sut | None = None
        self._spans = Spans()
        self._expectation = Expectation(case.path.value, (), {}, False, ())
        self._other_buckets: dict[int, Expectation] = {}
        self._facts: dict[str, str] = {}
        self._references: dict[str, str] = {}
        self._route = ""
        self._captures: list[Capture] = []
        self._records: list[RoundRecord] = []
        self._graphs: dict[int, _Captured] = {}
        self._pauses: list[PauseFact] = []
        self._instruments = Instruments(guard_page(case.model, case.geometry), self._spans)
        self._churned: list[torch.Tensor] = []

    @property
    def sut(self) -> Sut:
        """The system under test, once built."""
        assert self._sut is not None
        return self._sut

    @property
    def graphs(self) -> Mapping[int, Graph]:
        """By bucket: the graph in force."""
        return {bucket: captured.graph for bucket, captured in self._graphs.items()}

    def execute(self, factory: SutFactory) -> None:
        """Build, capture every bucket, run every round."""
        self.build(factory)
        self.play()

    def build(self, factory: SutFactory) -> None:
        """Build the system and capture every bucket of the program."""
        with _system("build"):
            self._sut = factory(self.case, self.engine, self._spans)
            self._facts = dict(self._sut.facts())
            self._expectation = self._sut.expectation(self.case.bucket)
            others = [bucket for bucket in self.program.capture if bucket != self.case.bucket]
            self._other_buckets = {bucket: self._sut.expectation(bucket) for bucket in others}
            self._sut.init_graph_state()
        for bucket in self.program.buckets:
            self._capture(self.program.capture[bucket], before_round=0)

    def play(self) -> None:
        """Run every round of the program and what happens between them."""
        for index, round_ in enumerate(self.program.rounds):
            recaptured = self._between(index, round_.bucket) | self._disturb(index, round_)
            self._records.append(self._round(index, round_, recaptured))
        self._between(len(self.program.rounds), 0)

    def renew(self, program: Program) -> None:
        """Forget the rounds so far and go on with those of `program`: the same system, graphs and addresses.

        Captures in force stay on record, with the walks that they speak of.
        """
        in_force = {one.bucket: replace(one, before_round=0) for one in self._captures}
        self._captures = self._instruments.renew(tuple(in_force.values()))
        self.program = program
        self._records, self._pauses, self._references = [], [], {}

    def close(self) -> None:
        """Let go of the system under test."""
        if self._sut is not None:
            self._sut.close()

    def observation(self) -> Observation:
        """Freeze what was recorded."""
        instruments = self._instruments
        return Observation(
            case=self.case,
            program=self.program,
            expectation=self._expectation,
            facts=self._facts,
            walks=tuple(instruments.walks),
            captures=tuple(self._captures),
            rounds=tuple(self._records),
            route=self._route,
            values=instruments.values.by_digest,
            references=self._references,
            problems=tuple(self.problems),
            other_buckets=self._other_buckets,
            pauses=tuple(self._pauses),
        )

    def _round_truth(self, round_: Round) -> RoundTruth:
        return self.truth.of(self.case, self.program, round_)

    def _capture(self, capture_round: Round, before_round: int) -> None:
        """Capture one bucket's draft forward, with the capture round's inputs in place."""
        bucket = capture_round.bucket
        with _system(f"capture of bucket {bucket}"), listening() as prepared:
            self.sut.stage(self._round_truth(capture_round).inputs)
            self.sut.prepare_capture(bucket)
        before = self._walk(self._look())
        observer = self._instruments.capture_observer(self.sut, bucket)
        forward = observer.forward if self.probes else lambda: self.sut.forward(bucket)
        try:
            with _system(f"capture of bucket {bucket}"), listening() as captured:
                graph, outputs = self.engine.capture(forward)
        except CaptureError as error:
            self._captures.append(
                Capture(bucket, self._walk(self._look()), (), (), error=str(error), before_round=before_round)
            )
            raise SystemFailure(f"capture of bucket {bucket}: {error}") from error
        self._graphs[bucket] = _Captured(graph, outputs)
        if self.probes:
            walk = self._instruments.walk_captured(self._look(), bucket)
            watched = self._instruments.watched(walk, bucket)
            printed = (*prepared, *captured)
            self._captures.append(
                observer.result(watched, walk, before_round, before=before, printed=printed)
            )
        else:
            self._captures.append(Capture(bucket, 0, (), (), before_round=before_round))

    def _look(self) -> Look:
        """Look at the system's tensors as they hang now. Nobody keeps a look while the system runs."""
        return Look(self.sut.roots())

    def _walk(self, look: Look) -> int:
        return self._instruments.walk(look) if self.probes else 0

    def _disturb(self, index: int, round_: Round) -> bool:
        """Do what the drill does between two replays; return whether the bucket was captured again."""
        drill = self.case.drill
        if drill is Drill.CHURN:
            self._churn(index)
        elif drill is Drill.OVERSIZE and index % DISTURB_EVERY == 1:
            with _system("eager call"):
                self.sut.eager(OVERSIZE_ROWS)
        elif drill is Drill.RECAPTURE and index == len(self.program.rounds) // 2:
            self._capture(self.program.capture[round_.bucket], before_round=index)
            return True
        return False

    def _between(self, index: int, bucket: int) -> bool:
        """Do what the program has before a round; return whether its bucket was captured anew."""
        disturbances = self.program.before.get(index, ())
        for one in disturbances:
            self._happen(one, index)
        return any(isinstance(one, Captured) and one.round.bucket == bucket for one in disturbances)

    def _happen(self, disturbance: Disturbance, index: int) -> None:
        if isinstance(disturbance, Captured):
            self._capture(disturbance.round, before_round=index)
        elif isinstance(disturbance, Churn):
            self._churn(index)
        elif isinstance(disturbance, Eager):
            with _system("eager call"):
                self.sut.eager(disturbance.rows)
        elif isinstance(self.sut, Pausable):
            with _system("pause and resume"):
                self.sut.pause_and_resume()
            self._pauses += self._instruments.zeroed(self._look(), tuple(self._graphs), self.case, index)
        else:
            raise NotDrivable(f"{self.sut.name} offers no pause and resume")

    def _churn(self, index: int) -> None:
        """Allocate blocks of many sizes full of junk and free half of those kept from before."""
        del self._churned[::2]
        for block in range(CHURN_BLOCKS):
            size = 1 << (block % 12 + 4)
            junk = torch.full((size + index,), -(index + 7), dtype=torch.int32, device=self.engine.device)
            self._churned.append(junk)
        del self._churned[: max(0, len(self._churned) - 4 * CHURN_BLOCKS)]

    def _round(self, index: int, round_: Round, recaptured: bool) -> RoundRecord:
        truth = self._round_truth(round_)
        references = self._ask_references(round_, truth)
        in_graph, interleaved = self.case.path.in_graph, self.case.path.interleaved
        audit = self.probes and self._audited(index)
        refreshes: list[Refresh] = []
        replay: Replay | None = None
        before: Before | None = None
        look: Look | None = None
        skipped = ""
        for salt in (0, 1) if audit else (index % 2,):
            staged = self._stage(round_, truth)
            if in_graph:
                refresh, replay = self._in_graph(index, round_, truth, salt, references)
            elif interleaved:
                refresh, replay = self._interleaved(round_, truth, salt)
            else:
                refresh, before, look = self._refresh(index, round_, truth, salt, references)
            refreshes.append(replace(refresh, staging=staged) if staged else refresh)
        if not in_graph and not interleaved:
            left = next((cell for cell in refreshes[-1].cells if cell.poisoned), None)
            if left is not None and not self.sut.tolerates_poison:
                skipped = f"{left.name} of step {left.step} still holds the sentinel"
            else:
                replay = self._replay(index, round_, truth, before, look)
        if self._route in ("", self._expectation.route):  # one round on another path stays seen
            with _system("routing evidence"):
                self._route = self.sut.route()
        return RoundRecord(index, round_.name, tuple(refreshes), replay, skipped, recaptured)

    def _stage(self, round_: Round, truth: RoundTruth) -> tuple[LedgerEntry, ...]:
        """Put a round's inputs in place; return what that wrote into metadata, which only a refresh may."""
        with _system(f"staging of round {round_.name}"):
            if not self.probes:
                self.sut.stage(truth.inputs)
                return ()
            with self._instruments.staging() as ledger:
                self.sut.stage(truth.inputs)
        return ledger.entries(self._instruments.watched(self._instruments.last_walk, round_.bucket))

    def _audited(self, index: int) -> bool:
        """Whether a round is refreshed twice, under two sentinels: the first of the case's bucket.

        The other rounds take the sentinels in turn.
        """
        buckets = [round_.bucket for round_ in self.program.rounds[: index + 1]]
        return buckets[-1] == self.case.bucket and buckets.count(self.case.bucket) == 1

    def _ask_references(self, round_: Round, truth: RoundTruth) -> References:
        """Ask the system for the right values, by name, of leaves that have no formula."""
        found: dict[str, NDArray[np.generic]] = {}
        for name in truth.fields.keys() - truth.expected.keys():
            with _system(f"reference of {name}"):
                value = self.sut.reference(name, truth.inputs)
            if value is not None:
                digest = self._instruments.keep(value.reshape(-1))
                self._references[f"{round_.name}/{name}"] = digest
                found[name] = self._instruments.values.by_digest[digest]
        return found

    def _refresh(
        self, index: int, round_: Round, truth: RoundTruth, salt: int, references: References
    ) -> tuple[Refresh, Before | None, Look | None]:
        """Poison, refresh under the ledger, snapshot; copy what a prompt replay may not change.

        The look taken after it is handed on: no code of the system runs before a prompt replay or in it, so
        the same tensors hang there afterwards.
        """
        if not self.probes:
            with _system(f"refresh of round {round_.name}"):
                self.sut.refresh(round_.bucket)
            self._synchronize()
            return self._instruments.plain_refresh(self._look(), truth), None, None
        observer = self._instruments.refresh_observer(self.sut, truth, salt, references)
        staged = Staged(self.sut.inputs())
        with _system(f"refresh of round {round_.name}"), observer.watching():
            self.sut.refresh(round_.bucket)
        self._synchronize()
        look = self._look()
        walk = self._instruments.walk(look)
        refresh = observer.result(look, self._instruments.watched(walk, round_.bucket), walk)
        refresh = replace(refresh, inputs_changed=staged.changed(self.sut.inputs()))
        if self._delayed(index):
            return refresh, None, None
        return refresh, Before.of(look, round_.bucket, metadata=True), look

    def _in_graph(
        self, index: int, round_: Round, truth: RoundTruth, salt: int, references: References
    ) -> tuple[Refresh, Replay]:
        """Poison, launch the graph that refreshes and reads, snapshot both."""
        if not self.probes:
            replay = self._replay(index, round_, truth, None)
            return self._instruments.plain_refresh(self._look(), truth), replay
        observer = self._instruments.refresh_observer(self.sut, truth, salt, references)
        observer.poison()
        before = None if self._delayed(index) else Before.of(self._look(), round_.bucket, metadata=False)
        replay = self._replay(index, round_, truth, before)
        look = self._look()
        return observer.result_in_graph(look, self._walk(look), replay.read), replay

    def _interleaved(self, round_: Round, truth: RoundTruth, salt: int) -> tuple[Refresh, Replay]:
        """Let the system run its own loop, in which every draft step's refresh is followed by its replay."""
        sut = self.sut
        if not isinstance(sut, Interleaved):
            raise NotDrivable(f"{sut.name} has no loop of refreshes and replays")
        captured = self._graphs[round_.bucket]
        turns = Turns(
            sut, self.engine, self._instruments, captured.graph, captured.outputs[0], truth, salt,
            probes=self.probes,
        )  # fmt: skip
        with _system(f"draft steps of round {round_.name}"):
            return turns.run()

    def _delayed(self, index: int) -> bool:
        chosen = self.program.delayed
        held = self.case.drill is Drill.DELAYED if chosen is None else index in chosen
        return held and self.probes and index + 1 < len(self.program.rounds)

    def _replay(
        self, index: int, round_: Round, truth: RoundTruth, before: Before | None, look: Look | None = None
    ) -> Replay:
        if self._delayed(index):
            return self._delayed_replay(round_, truth, self.program.rounds[index + 1])
        return self._prompt_replay(round_, truth, before, look)

    def _prompt_replay(
        self, round_: Round, truth: RoundTruth, before: Before | None, look: Look | None
    ) -> Replay:
        captured = self._graphs[round_.bucket]
        observer = self._instruments.replay_observer(truth, captured.outputs, before, read=self.probes)
        staged = Staged(self.sut.inputs()) if self.probes else None
        freed: tuple[str, ...] = ()
        with _system(f"replay of round {round_.name}"):
            self.engine.launch(captured.graph)
            try:
                self.engine.synchronize()
            except FreedStorageError as error:
                freed = (str(error),)
        if look is None:
            look = self._look()
            self._walk(look)
        replay = observer.result(look, self._instruments.last_walk, freed=freed)
        return replay if staged is None else replace(replay, inputs_changed=staged.changed(self.sut.inputs()))

    def _delayed_replay(self, round_: Round, truth: RoundTruth, following: Round) -> Replay:
        """Hold the replay back while the next round is staged and refreshed, as a busy GPU would."""
        captured = self._graphs[round_.bucket]
        observer = self._instruments.replay_observer(truth, captured.outputs, None, read=True)
        freed: tuple[str, ...] = ()
        inputs = self._round_truth(following).inputs
        with _system(f"delayed replay of round {round_.name}"):
            self.engine.launch(captured.graph, delayed=True)
            with self.engine.ordering():
                self.sut.stage(inputs)
                self.sut.refresh(following.bucket)
            try:
                self.engine.synchronize()
            except FreedStorageError as error:
                freed = (str(error),)
        look = self._look()
        replay = observer.result(look, self._walk(look), freed=freed, delayed=True)
        if not self.case.path.in_graph and following.bucket == round_.bucket:
            cells = self._instruments.cells(look, self._round_truth(following))
            replay = replace(replay, after=cells)
        return replace(replay, races=self.engine.races())

    def _synchronize(self) -> None:
        with _system("synchronize"):
            self.engine.synchronize()


@contextmanager
def _system(what: str) -> Iterator[None]:
    """Run code under test; any exception of it is the run's result, in one line.

    Only errors that speak about the harness's own use (UsageError), that skip the case (NotDrivable) or that
    the driver records itself (CaptureError, FreedStorageError) pass through.
    """
    try:
        yield
    except (UsageError, NotDrivable, SystemFailure, CaptureError, FreedStorageError):
        raise
    except Exception as error:  # the boundary to code under test: its exception is what we observe
        lines = str(error).strip().splitlines() or [""]
        raise SystemFailure(f"{what}: {type(error).__name__}: {lines[0]}") from error
