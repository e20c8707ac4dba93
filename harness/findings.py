"""What judging produces: differences, findings, verdicts and the result of a case."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from harness.picture import Around, CasePicture


@dataclass(frozen=True)
class Difference:
    """The first differing element of a finding."""

    row: int
    """Request or expanded row; canonical row for plans."""
    column: int
    expected: str
    got: str
    note: str = ""
    """What the wrong value equals, e.g. `the value of round b4.03` or `the sentinel`."""


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong, over all rounds and steps where it shows in the same way."""

    check: str
    kind: str
    """Slug of what happened, e.g. `poison_left`, `stale`, `wrong_value`, `moved`; unique within a check."""
    case: str
    field: str
    """Leaf, output or other subject; empty where the case as a whole is meant."""
    bucket: int
    """0 where no single bucket is meant."""
    steps: tuple[int, ...]
    rounds: tuple[str, ...]
    """Names of the rounds in which it shows, in order; empty for what has no round."""
    message: str
    """One sentence: what, and where it shows first."""
    hint: str = ""
    """What usually causes it."""
    elements: int = 0
    """Differing elements in the first round."""
    first: Difference | None = None
    known: str = ""
    """Id of the known finding that declares it, empty if unexpected."""


class Verdict(StrEnum):
    """Outcome of one check on one case."""

    PASSED = "passed"
    FAILED = "failed"
    KNOWN = "known"
    """Failed exactly as a known finding declares."""
    NOT_APPLICABLE = "not_applicable"
    """The claim has no subject here (sharing at S = 2, KPool fields at P = 1)."""


@dataclass(frozen=True)
class CheckResult:
    """One check's outcome."""

    check: str
    verdict: Verdict
    findings: tuple[Finding, ...]
    elements: int
    """Elements (or facts) compared."""
    reason: str = ""
    """Why it does not apply."""


@dataclass(frozen=True)
class CaseResult:
    """Everything reported about one case; plain data that goes from a worker to the report."""

    case: str
    axes: Mapping[str, str]
    """model, path, fusion, steps, mode, bucket, drill, kernel, precision, sut, engine."""
    checks: tuple[CheckResult, ...]
    replays: int
    refreshes: int
    fused_copies: float
    """Per refresh."""
    bytes_owned: int
    """All steps' metadata and state, without KV counters."""
    seconds: float
    facts: Mapping[str, str] = field(default_factory=dict)
    skipped: str = ""
    """Why the case did not run (no GPU, not supported by the system)."""
    around: tuple[Around, ...] = field(default=(), repr=False)
    """The lines around the first difference of each finding that has one."""
    picture: CasePicture | None = field(default=None, repr=False)
    """What a report draws of it; only where `RunOptions.pictures` asks for it."""

    @property
    def findings(self) -> tuple[Finding, ...]:
        """All findings, in check order."""
        return tuple(finding for check in self.checks for finding in check.findings)

    @property
    def elements(self) -> int:
        """Elements compared by all checks."""
        return sum(check.elements for check in self.checks)

    @property
    def verdict(self) -> Verdict:
        """Failed if anything unexpected was found, known if only known findings, else passed."""
        findings = self.findings
        if any(not finding.known for finding in findings):
            return Verdict.FAILED
        if findings:
            return Verdict.KNOWN
        return Verdict.NOT_APPLICABLE if self.skipped else Verdict.PASSED
