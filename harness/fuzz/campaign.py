"""A fuzzing run: batches of examples until the time is up or something is found, then shrinking.

The examples follow from the seed alone: every batch has a seed of its own, and the time only decides how
many batches there are. Shrinking is bounded by runs, not by time, so that it ends the same way everywhere.
"""

from __future__ import annotations

import gc
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path as FilePath

import msgspec
from hypothesis import HealthCheck, Phase, Verbosity, seed, settings
from hypothesis.database import DirectoryBasedExampleDatabase, ExampleDatabase
from hypothesis.errors import Flaky
from hypothesis.stateful import run_state_machine_as_test

from harness.errors import CaseError, NotDrivable
from harness.findings import Finding, Verdict
from harness.fuzz.machine import machine_of
from harness.fuzz.reduce import Reducer, size_of
from harness.fuzz.sequence import Sequence
from harness.fuzz.space import Space
from harness.fuzz.trial import Bench, Trial

HYPOTHESIS_RUNS = 30
"""Runs that Hypothesis may spend on shrinking; the reducer, which does it better, has the rest."""

COLLECT_EVERY = 10
"""Runs between two collections of cyclic garbage; the collector's own choice costs a fifth of the time."""


@dataclass(frozen=True)
class Limits:
    """How far a run goes."""

    seconds: float
    """Until no new example is begun; one is, however short the time."""
    sequences: int = sys.maxsize
    """After which none is begun either."""
    steps: int = 14
    """Operations of one sequence, at most, after the first capture."""
    examples: int = 25
    """Of one batch; the time is looked at before each example, so this only decides about seeds."""
    hypothesis_runs: int = HYPOTHESIS_RUNS
    """Runs that Hypothesis may spend on shrinking."""
    reducer_runs: int = 200
    """Runs that the reducer may spend after it."""


@dataclass
class Tally:
    """What was done so far, shrinking left out."""

    sequences: int = 0
    operations: int = 0
    replays: int = 0
    refreshes: int = 0
    elements: int = 0
    ordinary: int = 0
    """Sequences held against the ordinary path as well."""
    checks: Counter[str] = field(default_factory=Counter)
    """By check: sequences that it judged; where it had no subject is not counted."""
    skipped: Counter[str] = field(default_factory=Counter)
    """By reason: sequences that could not be driven."""
    known: Counter[str] = field(default_factory=Counter)
    """By id: sequences that showed a known finding."""

    def add(self, trial: Trial) -> None:
        """Count one sequence."""
        result = trial.result
        self.sequences += 1
        self.operations += len(trial.sequence.operations)
        self.replays += result.replays
        self.refreshes += result.refreshes
        self.elements += result.elements
        self.ordinary += trial.sequence.ordinary
        self.checks.update(one.check for one in result.checks if one.verdict is not Verdict.NOT_APPLICABLE)
        self.known.update({finding.known for finding in result.findings if finding.known})


@dataclass(frozen=True)
class Found:
    """A failure and what it was shrunk to."""

    first: Sequence
    """As it was drawn."""
    spoke: tuple[str, ...]
    """Checks that spoke about it as it was drawn."""
    trial: Trial
    """The shrunk sequence, run once more."""
    seconds: float
    """From the start of the run until it was seen."""
    sequences: int
    """Sequences run until then, the failing one included."""
    shrinking: int
    """Runs spent on shrinking."""
    steady: bool
    """Whether the shrunk sequence failed again when it was run once more."""

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What is wrong, unexpected findings only."""
        return self.trial.unexpected


@dataclass(frozen=True)
class Outcome:
    """A finished run."""

    seed: int
    tally: Tally
    seconds: float
    found: Found | None = None


class SequenceFailed(Exception):
    """A sequence has an unexpected finding: how an example of the state machine fails."""


class Campaign:
    """One fuzzing run over a space, on a bench."""

    def __init__(
        self,
        bench: Bench,
        space: Space,
        limits: Limits,
        *,
        seed: int,
        database: FilePath | None = None,
        reuse: bool = False,
        progress: Callable[[Tally, float], None] | None = None,
    ) -> None:
        """Prepare a run.

        database: folder that keeps failing examples, None for none. reuse: try kept ones first; then a
        seed alone no longer decides what runs. progress: called after each sequence with the seconds so far.
        """
        self._bench, self._space, self._limits, self._seed = bench, space, limits, seed
        self._database: ExampleDatabase | None = None
        if database is not None:
            self._database = DirectoryBasedExampleDatabase(database)
        self._reuse = reuse
        self._progress = progress
        self._tally = Tally()
        self._runs = 0
        self._start = 0.0
        self._failure: Failure | None = None

    def run(self) -> Outcome:
        """Draw and run sequences until the time is up or one fails; shrink that one."""
        self._start = time.monotonic()
        batch, found = 0, None
        with _collector_off():
            while self._failure is None and not self._done():
                self._batch(batch)
                batch += 1
            if self._failure is not None:
                found = self._shrunk(self._failure)
        return Outcome(self._seed, self._tally, self._seconds(), found)

    def _batch(self, number: int) -> None:
        machine = seed(self._seed * 1_000_003 + number)(machine_of(self._space, self._play))
        phases = [*([Phase.reuse] if self._reuse and number == 0 else []), Phase.generate, Phase.shrink]
        chosen = settings(
            max_examples=self._limits.examples,
            stateful_step_count=1 + self._limits.steps,
            deadline=None,
            database=self._database,
            phases=phases,
            suppress_health_check=list(HealthCheck),
            verbosity=Verbosity.quiet,
            report_multiple_bugs=False,
            print_blob=False,
        )
        with suppress(SequenceFailed, Flaky):  # the failure is kept in `_failure`, flaky ones too
            run_state_machine_as_test(machine, settings=chosen)

    def _play(self, sequence: Sequence) -> None:
        """Run one example; raise where it has an unexpected finding. Called by the state machine."""
        if self._failure is not None:
            if self._failure.shows(sequence, self._trial):
                raise SequenceFailed
            return
        if self._done():
            return
        trial = self._trial(sequence)
        if trial is None:
            return
        self._tally.add(trial)
        if self._progress is not None:
            self._progress(self._tally, self._seconds())
        if trial.unexpected:
            self._failure = Failure(
                trial, self._seconds(), self._tally.sequences, self._limits.hypothesis_runs
            )
            raise SequenceFailed

    def _trial(self, sequence: Sequence) -> Trial | None:
        """Run a sequence; None, with the reason counted, where it cannot be driven."""
        self._runs += 1
        if self._runs % COLLECT_EVERY == 0:
            gc.collect()
        try:
            return self._bench.run(sequence)
        except (NotDrivable, CaseError) as reason:
            if self._failure is None:
                self._tally.skipped[str(reason)] += 1
            return None

    def _shrunk(self, failure: Failure) -> Found:
        """Shrink what Hypothesis left, and run it once more."""

        def shows(sequence: Sequence) -> bool:
            trial = self._trial(sequence)
            return trial is not None and failure.same(trial)

        reducer = Reducer(self._bench.models, shows, self._limits.reducer_runs)
        smallest = reducer.reduce(failure.best.sequence)
        again = self._trial(smallest)
        steady = again is not None and bool(again.unexpected)
        return Found(
            first=failure.first.sequence,
            spoke=tuple(dict.fromkeys(finding.check for finding in failure.first.unexpected)),
            trial=again if again is not None and steady else failure.first,
            seconds=failure.seconds,
            sequences=failure.sequences,
            shrinking=failure.runs + reducer.runs,
            steady=steady,
        )

    def _done(self) -> bool:
        begun = self._tally.sequences + self._tally.skipped.total()
        late = begun > 0 and self._seconds() >= self._limits.seconds
        return late or begun >= self._limits.sequences

    def _seconds(self) -> float:
        return time.monotonic() - self._start


@contextmanager
def _collector_off() -> Iterator[None]:
    """Leave cyclic garbage, which keeps graphs and buffers, to the collections that a campaign asks for."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


class Failure:
    """The first failing example and the smallest one that fails in the same way, while Hypothesis shrinks."""

    def __init__(self, first: Trial, seconds: float, sequences: int, most_runs: int) -> None:
        self.first = self.best = first
        self.seconds, self.sequences, self.runs = seconds, sequences, 0
        self._most_runs = most_runs
        self._kinds = {(one.check, one.kind) for one in first.unexpected}
        self._seen: dict[bytes, bool] = {msgspec.json.encode(first.sequence): True}

    def same(self, trial: Trial) -> bool:
        """Whether a trial fails in a way in which the first one does."""
        return any((one.check, one.kind) in self._kinds for one in trial.unexpected)

    def shows(self, sequence: Sequence, run: Callable[[Sequence], Trial | None]) -> bool:
        """Whether a sequence fails in the same way; each is run once, and none once the runs are spent."""
        key = msgspec.json.encode(sequence)
        if key not in self._seen:
            if self.runs >= self._most_runs:
                return False
            self.runs += 1
            trial = run(sequence)
            self._seen[key] = trial is not None and self.same(trial)
            if trial is not None and self._seen[key] and size_of(sequence) < size_of(self.best.sequence):
                self.best = trial
        return self._seen[key]
