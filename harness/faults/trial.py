"""One entry tried: its case driven with the injection, judged as any run is, and what became of it."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from enum import StrEnum

from harness.case import Case
from harness.checks.registry import CHECKS
from harness.checks.subject import Subject
from harness.driver import drive
from harness.engine.protocol import Engine
from harness.errors import HarnessError
from harness.faults.catalogue import Entry, Fault
from harness.faults.mechanisms.combined import Unchanged
from harness.faults.scene import Opener, Trace
from harness.faults.wrapped import faulty
from harness.findings import CaseResult, Finding
from harness.golden.collect import collect, default_policy
from harness.golden.model import Golden
from harness.judge import judge
from harness.known import KnownFinding
from harness.observation import Observation
from harness.ordinary import is_reference, ordinary_of, reference_key
from harness.rounds import Program
from harness.sut.protocol import SutFactory
from harness.traffic import build_program
from harness.truth import Truth
from harness.types import EngineKind

ORDER = {check.name: position for position, check in enumerate(CHECKS)}


class Fate(StrEnum):
    """What became of an entry."""

    KILLED = "killed"
    """A check that has to speak spoke."""
    ELSEWHERE = "elsewhere"
    """Only checks spoke that need not."""
    SURVIVED = "survived"
    """No check spoke of a fault."""
    UNREACHED = "unreached"
    """The injection never ran, or never changed anything: the case does not show this entry."""
    CLEAN = "clean"
    """No check spoke of a harmless change."""
    FLAGGED = "flagged"
    """A check spoke of a harmless change."""

    @property
    def good(self) -> bool:
        """Whether it is as it should be."""
        return self in (Fate.KILLED, Fate.CLEAN)


@dataclass(frozen=True)
class Tried:
    """One entry on one case."""

    id: str
    cls: str
    case: str
    fate: Fate
    reached: int
    changed: int
    spoke: Mapping[str, int] = field(default_factory=dict)
    """By check: refreshes and replays done when its first finding was there to be seen."""
    first: str = ""
    """The check that could have spoken first; of several at once the first in the registry."""
    expected: str = ""
    """The check that has to speak."""
    messages: tuple[str, ...] = ()
    """The first finding of each check that spoke."""
    seconds: float = 0.0

    @property
    def operations(self) -> int:
        """Refreshes and replays until it was seen; 0 where nothing spoke, or before the first refresh."""
        return self.spoke.get(self.first, 0)


class Laboratory:
    """Tries entries of one system on one engine; references of equal cases are driven once."""

    def __init__(
        self,
        opener: Opener,
        engine: Engine,
        kind: EngineKind,
        known: tuple[KnownFinding, ...] = (),
    ) -> None:
        """Try on `engine`, which is of `kind`, with these known findings."""
        self._opener, self._engine, self._kind = opener, engine, kind
        self._known = known
        self._truth = Truth(rounds=512)
        self._references: dict[tuple[object, ...], Observation] = {}
        self._settled = False

    def attempt(self, entry: Entry) -> list[Tried]:
        """Try an entry on each of its cases."""
        tried = []
        for case in entry.cases:
            with _collected_after():
                tried.append(self._try(entry, replace(case, engine=self._kind)))
            if not self._settled:  # what the first run imported stays, too
                gc.freeze()
                self._settled = True
        return tried

    def _try(self, entry: Entry, case: Case) -> Tried:
        start = time.perf_counter()
        trace = Trace()
        observation, result = self.run(entry, case, trace)
        findings = [finding for finding in result.findings if not finding.known]
        spoke = _spoke(observation, findings)
        first = min(spoke, key=lambda name: (spoke[name], ORDER.get(name, len(ORDER))), default="")
        return Tried(
            id=entry.id,
            cls=entry.cls,
            case=case.id,
            fate=_fate(entry, trace, spoke),
            reached=trace.reached,
            changed=trace.changed,
            spoke=spoke,
            first=first,
            expected=entry.expected if isinstance(entry, Fault) else "",
            messages=_messages(findings),
            seconds=time.perf_counter() - start,
        )

    def run(self, entry: Entry, case: Case, trace: Trace) -> tuple[Observation, CaseResult]:
        """Drive and judge an entry's injection on a case; `trace` counts what the injection does."""
        subject = self.subject(entry, case, trace)
        return subject.observation, judge(subject, self._known)

    def subject(self, entry: Entry, case: Case, trace: Trace) -> Subject:
        """Drive an entry's injection on a case, as `run`; return what the checks judge."""
        program = build_program(case)
        if entry.rounds is not None:
            program = entry.rounds(program)
        injection = entry.injection
        observation = self._drive(case, program, faulty(self._opener, injection, trace))
        ordinary = None if is_reference(case) else self._ordinary(entry, case, program)
        golden = self._accepted(case, program) if entry.golden else None
        return Subject.of(observation, self._truth, ordinary, golden, golden_checked=entry.golden)

    def _accepted(self, case: Case, program: Program) -> Golden:
        """Return the golden that would be accepted of the system as it is."""
        plain = self._drive(case, program, faulty(self._opener, Unchanged(), Trace()))
        return collect(plain, default_policy(case), "the system without the change")

    def _drive(
        self, case: Case, program: Program, factory: SutFactory, *, probes: bool = True
    ) -> Observation:
        try:
            return drive(case, program, self._truth, factory, self._engine, probes=probes)
        finally:
            with suppress(HarnessError):  # what a run that ended early left queued is not the next one's
                self._engine.synchronize()

    def _ordinary(self, entry: Entry, case: Case, program: Program) -> Observation:
        everywhere = isinstance(entry, Fault) and entry.everywhere
        key, own = reference_key(case), everywhere or entry.rounds is not None
        if not own and key in self._references:
            return self._references[key]
        reference = ordinary_of(case)
        if entry.rounds is None:  # a drill may run a part of the rounds that its reference runs
            program = build_program(reference)
        planted = entry.injection if everywhere else Unchanged()
        factory = faulty(self._opener, planted, Trace())
        driven = self._drive(reference, program, factory, probes=False)
        if not everywhere and (driven.problems or len(driven.rounds) < len(program.rounds)):
            raise HarnessError(f"{driven.case.id}: the ordinary reference did not run: {driven.problems}")
        if not own:
            self._references[key] = driven
        return driven


@contextmanager
def _collected_after() -> Iterator[None]:
    """Collect cyclic garbage, which may keep graphs and buffers, once after a run and not in its midst."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
        gc.collect()


def _fate(entry: Entry, trace: Trace, spoke: Mapping[str, int]) -> Fate:
    if not trace.reached or not trace.changed:
        return Fate.UNREACHED
    if not isinstance(entry, Fault):
        return Fate.FLAGGED if spoke else Fate.CLEAN
    if any(check in spoke for check in entry.checks):
        return Fate.KILLED
    return Fate.ELSEWHERE if spoke else Fate.SURVIVED


def _spoke(observation: Observation, findings: list[Finding]) -> dict[str, int]:
    """Return the operations after which each check had something to say.

    A finding without a round is one of the capture, or of the run as a whole: it is placed by its check.
    """
    done, operations = 0, {}
    for record in observation.rounds:
        done += len(record.refreshes) + (record.replay is not None)
        operations[record.name] = done
    spoke: dict[str, int] = {}
    for finding in findings:
        seen = operations.get(finding.rounds[0], done) if finding.rounds else _without_round(finding, done)
        spoke[finding.check] = min(seen, spoke.get(finding.check, seen))
    return spoke


def _without_round(finding: Finding, done: int) -> int:
    """At capture: what was made then, host values and writes of a forward. At the end: the run as a whole."""
    return 0 if finding.check in ("address", "aliasing", "readonly", "refresh") else done


def _messages(findings: list[Finding]) -> tuple[str, ...]:
    said: dict[str, str] = {}
    for finding in findings:
        said.setdefault(finding.check, f"{finding.check}: {finding.message}")
    return tuple(said.values())
