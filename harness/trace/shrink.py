"""From a failing trace to the shortest case that still fails: records first, then what they hold.

The trace is driven once, until something is found. What came long before rarely matters: ever longer ends of
the trace are run by themselves until one fails alone. Records of that one are left out by delta debugging,
and what is left goes through the fuzzer's reducer: fewer requests, plain ids, shorter lengths.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import msgspec

from harness.errors import CaseError, NotDrivable
from harness.findings import Finding
from harness.fuzz import sequence as plain
from harness.fuzz.reduce import Reducer, size_of
from harness.fuzz.sequence import Capture, Operation
from harness.fuzz.trial import Bench, Trial
from harness.trace.mapping import Mapping, operations
from harness.trace.reader import Trace
from harness.trace.setup import Contents, Stage
from harness.trace.verify import Driven, Follow, verify

FIRST_END = 2
"""Records of the shortest end that is tried."""
RUNS = 400
"""Runs that shrinking may take."""
Say = Callable[[str], None]


@dataclass(frozen=True)
class Shrunk:
    """A failure of a trace and the smallest sequence found for it."""

    driven: Driven
    """The trace, until it failed."""
    sequence: plain.Sequence
    trial: Trial
    """The sequence, run once more by itself."""
    alone: int
    """Operations of the shortest end of the trace that failed by itself."""
    runs: int

    @property
    def steady(self) -> bool:
        """Whether the sequence failed when it was run by itself once more."""
        return bool(self.trial.unexpected)


@dataclass
class Shrinker:
    """One shrinking in progress."""

    stage: Stage
    bench: Bench
    kinds: frozenset[tuple[str, str]]
    """(check, kind) of what was found: another finding is another failure."""
    most_runs: int = RUNS
    runs: int = 0
    _seen: dict[bytes, bool] = field(default_factory=dict)

    def shows(self, sequence: plain.Sequence) -> bool:
        """Run a sequence by itself and say whether it fails in the same way; each is run once."""
        key = msgspec.json.encode(sequence)
        if key not in self._seen:
            self.runs += 1
            try:
                self._seen[key] = self.same(self.bench.run(sequence).unexpected)
            except (CaseError, NotDrivable):
                self._seen[key] = False
        return self._seen[key]

    def same(self, findings: Sequence[Finding]) -> bool:
        """Whether one of these findings is of a kind that was found."""
        return any((finding.check, finding.kind) in self.kinds for finding in findings)

    def sequence(self, made: Sequence[Operation]) -> plain.Sequence:
        """Return operations as a sequence, on the model's own batch sizes where those are enough."""
        setting = self.stage.setting
        own = self.stage.models[setting.model].buckets
        if set(setting.buckets) <= set(own):
            setting = msgspec.structs.replace(setting, buckets=())
        return plain.Sequence(setting=setting, operations=tuple(made))

    def end_of(self, made: Sequence[Operation]) -> tuple[Operation, ...] | None:
        """Return the shortest end, by doubling, that fails by itself; None where not even all of it does."""
        length = FIRST_END
        while True:
            end = with_captures(made, max(0, len(made) - length))
            if self.shows(self.sequence(end)):
                return end
            if length >= len(made):
                return None
            length *= 2

    def fewer(self, made: Sequence[Operation]) -> tuple[Operation, ...]:
        """Leave out records by delta debugging (Zeller's ddmin): halves, then ever smaller parts."""
        current, parts = list(made), 2
        while len(current) > 1 and self.runs < self.most_runs:
            size = -(-len(current) // parts)
            for start in range(0, len(current), size):
                candidate = current[:start] + current[start + size :]
                if runnable(candidate) and self.shows(self.sequence(candidate)):
                    current, parts = candidate, max(parts - 1, 2)
                    break
            else:
                if size == 1:
                    break
                parts = min(len(current), 2 * parts)
        return tuple(current)


def shrink(
    trace: Trace,
    found: Contents,
    stage: Stage,
    *,
    fit: bool = False,
    most_runs: int = RUNS,
    say: Say = lambda line: None,
    follow: Follow = lambda driven: None,
) -> Shrunk | Driven:
    """Drive a trace and shrink what it shows; returns what was driven where nothing is found.

    Errors as of `verify.verify`.
    """
    driven = verify(trace, found, stage, fit=fit, follow=follow)
    if not driven.findings:
        return driven
    last = driven.failed_at or driven.operations
    say(f"found at record {last}: {driven.findings[0].message}")
    made = []
    for one in operations(trace.moments(), Mapping(stage.case, fit=fit), stage.setting.mode.value):
        made.append(one)
        if len(made) == last:
            break
    kinds = frozenset((finding.check, finding.kind) for finding in driven.findings)
    bench = Bench(stage.models, stage.factory, stage.engine, stage.known)
    shrinker = Shrinker(stage, bench, kinds, most_runs)
    end = shrinker.end_of(made)
    if end is None:
        whole = shrinker.sequence(made)
        return Shrunk(driven, whole, bench.run(whole), len(made), shrinker.runs)
    say(f"the last {len(end)} operations fail alone")
    sequence = shrinker.sequence(shrinker.fewer(end))
    say(f"{len(sequence.operations)} operations after {shrinker.runs} runs")
    reducer = Reducer(stage.models, shrinker.shows, max(most_runs - shrinker.runs, 0))
    smallest = reducer.reduce(sequence)
    if size_of(smallest) > size_of(sequence):
        smallest = sequence
    smallest = msgspec.structs.replace(smallest, why=_why(trace, last, driven.findings[0]))
    return Shrunk(driven, smallest, bench.run(smallest), len(end), shrinker.runs)


def with_captures(made: Sequence[Operation], start: int) -> tuple[Operation, ...]:
    """Return operations from `start` on, with the captures before it that are in force and needed."""
    end = list(made[start:])
    needed = {one.bucket for one in end if isinstance(one, plain.Replay)}
    captures: dict[int, Capture] = {}
    for one in made[:start]:
        if isinstance(one, Capture) and one.bucket in needed:
            captures[one.bucket] = one
    return (*captures.values(), *end)


def runnable(made: Sequence[Operation]) -> bool:
    """Whether every replay's bucket was captured before it, and something is."""
    captured: set[int] = set()
    for one in made:
        if isinstance(one, Capture):
            captured.add(one.bucket)
        elif isinstance(one, plain.Replay) and one.bucket not in captured:
            return False
    return bool(captured)


def _why(trace: Trace, last: int, finding: Finding) -> str:
    return f"shrunk from record {last} of {trace.file.name}: {finding.check}, {finding.kind} {finding.field}"
