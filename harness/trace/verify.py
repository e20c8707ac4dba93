"""Driving a trace through a system, window by window, with all checks that a sequence can answer to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice

from harness.findings import Finding, Verdict
from harness.fuzz.sequence import Capture, Operation
from harness.life import WINDOW, living
from harness.trace.mapping import Mapping, operations
from harness.trace.reader import Trace
from harness.trace.setup import Contents, Stage

Follow = Callable[["Driven"], None]


@dataclass
class Driven:
    """What was driven so far, and what was found."""

    operations: int = 0
    windows: int = 0
    replays: int = 0
    refreshes: int = 0
    elements: int = 0
    seconds: float = 0.0
    checks: Counter[str] = field(default_factory=Counter)
    """By check: windows that it judged."""
    known: Counter[str] = field(default_factory=Counter)
    folded: int = 0
    """Lengths that were folded into the model's width."""
    findings: tuple[Finding, ...] = ()
    """Unexpected ones, of the first window that has any."""
    facts: dict[str, str] = field(default_factory=dict)

    @property
    def failed_at(self) -> int:
        """Number, from 1, of the first operation in which a finding shows; 0 where none names a round."""
        numbers = [round_number(name) for finding in self.findings for name in finding.rounds]
        return min((number for number in numbers if number), default=0)


def round_number(name: str) -> int:
    """Return the number of the operation that a round of a life is named after; 0 for another name."""
    digits = name.rpartition(".")[2].removeprefix("capture")
    return int(digits) if digits.isdigit() else 0


def verify(
    trace: Trace, found: Contents, stage: Stage, *, fit: bool = False, follow: Follow = lambda driven: None
) -> Driven:
    """Drive a trace until its end or the first window with an unexpected finding.

    follow: called after each window. Raises UsageError where a record does not fit, TraceError where the
    trace is damaged, NotDrivable where the system says so.
    """
    mapping = Mapping(stage.case, fit=fit)
    made = operations(trace.moments(), mapping, stage.setting.mode.value)
    return drive(made, stage, mapping, follow)


def drive(
    made: Iterable[Operation],
    stage: Stage,
    mapping: Mapping | None = None,
    follow: Follow = lambda driven: None,
) -> Driven:
    """Drive operations as `verify` does."""
    driven = Driven()
    with living(stage.case, stage.setting, stage.factory, stage.engine, stage.known) as life:
        for window in windows(made):
            result = life.window(window)
            driven.windows += 1
            driven.operations = life.operations
            driven.replays += result.replays
            driven.refreshes += result.refreshes
            driven.elements += result.elements
            driven.seconds += result.seconds
            driven.facts = dict(result.facts)
            driven.checks.update(
                one.check for one in result.checks if one.verdict is not Verdict.NOT_APPLICABLE
            )
            driven.known.update({finding.known for finding in result.findings if finding.known})
            driven.findings = tuple(finding for finding in result.findings if not finding.known)
            driven.folded = mapping.folded if mapping is not None else 0
            follow(driven)
            if driven.findings or life.over:
                break
    return driven


def windows(made: Iterable[Operation], size: int = WINDOW) -> Iterator[list[Operation]]:
    """Yield operations in windows; the captures that everything begins with stay in the first one."""
    rest = iter(made)
    first: list[Operation] = []
    for one in rest:
        first.append(one)
        if len(first) >= size and not isinstance(one, Capture):
            break
    while first:
        yield first
        first = list(islice(rest, size))
