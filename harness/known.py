"""Known findings: faults of a released path, declared with their reason and their preconditions.

A declared finding that shows is marked and does not fail the run; one whose preconditions held and
that did not show fails it, as does anything beyond the declaration.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path as FilePath

import msgspec

from harness.case import Case
from harness.checks.subject import Subject
from harness.errors import CaseError
from harness.findings import CheckResult, Finding, Verdict
from harness.truth import RoundTruth
from harness.types import Mode, Path


class KnownFinding(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One declared fault."""

    id: str
    reason: str
    sut: str
    paths: tuple[Path, ...]
    """Refresh paths that have it."""
    fields: tuple[str, ...]
    steps: tuple[int, ...]
    """The steps that show it, those below the case's number of backends."""
    checks: tuple[str, ...]
    """Checks that may speak of it."""
    modes: tuple[Mode, ...] = (Mode.DECODE,)
    min_steps: int = 0
    """Precondition: S is at least this."""
    fusion_in_force: bool | None = None
    """Precondition: None where it does not matter."""
    pooled: bool | None = None
    """Precondition: P > 1, or P = 1; None where it does not matter."""
    together: bool = False
    """Whether several findings show the steps together: a wrong value may meet a sentinel or an older
    value."""
    versions: tuple[str, ...] = ()
    """Releases that have it, as the fact named like the system says; empty: every one."""

    def covers(self, subject: Subject) -> bool:
        """Whether this entry speaks about the case at all."""
        return self.covers_case(subject.observation.case, subject.observation.facts)

    def covers_case(self, case: Case, facts: Mapping[str, str]) -> bool:
        """Whether this entry speaks about a case of a system that says this of itself."""
        version = facts.get(case.sut, "")
        return (
            case.sut == self.sut
            and case.path in self.paths
            and case.mode in self.modes
            and case.variant.steps >= self.min_steps
            and self.fusion_in_force in (None, case.fusion_in_force)
            and self.pooled in (None, case.model.index_kpool > 1)
            and (not self.versions or version in self.versions)
        )

    def expected_fields(self, truths: tuple[RoundTruth, ...]) -> tuple[str, ...]:
        """Return the fields that have to show: defined (a plan: written) in a round after the first."""
        return tuple(name for name in self.fields if any(truth.judged(name) for truth in truths))

    def explains(self, finding: Finding, backends: int) -> bool:
        """Whether a finding is this one, in exactly the declared field and steps."""
        wanted, shown = self.expected_steps(backends), set(finding.steps)
        exact = shown <= wanted if self.together else shown == wanted
        return finding.check in self.checks and finding.field in self.fields and exact

    def expected_steps(self, backends: int) -> set[int]:
        """Return the steps that have to show it, of a case with so many backends."""
        return {step for step in self.steps if step < backends}


class _KnownFile(msgspec.Struct, forbid_unknown_fields=True):
    finding: tuple[KnownFinding, ...] = ()


def load_known(path: FilePath) -> tuple[KnownFinding, ...]:
    """Read the declared findings; a missing file declares none. Raises CaseError in one line."""
    if not path.exists():
        return ()
    try:
        return msgspec.convert(tomllib.loads(path.read_text()), _KnownFile).finding
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise CaseError(f"{path}: {error}; see docs/known-findings.md for the keys") from error


def mark(
    results: tuple[CheckResult, ...], subject: Subject, known: tuple[KnownFinding, ...]
) -> tuple[CheckResult, ...]:
    """Mark declared findings in the check results and add a finding for each declared one that is absent."""
    entries = [entry for entry in known if entry.covers(subject)]
    if not entries:
        return results
    backends = subject.observation.case.backends
    marked = []
    for result in results:
        findings = tuple(_marked(finding, entries, backends) for finding in result.findings)
        marked.append(replace(result, findings=findings, verdict=_verdict(result.verdict, findings)))
    absent = tuple(_absent(entry, marked, subject) for entry in entries)
    missing = tuple(finding for findings in absent for finding in findings)
    if missing:
        marked.append(CheckResult("known", Verdict.FAILED, missing, len(entries)))
    else:
        marked.append(CheckResult("known", Verdict.PASSED, (), len(entries)))
    return tuple(marked)


def _marked(finding: Finding, entries: list[KnownFinding], backends: int) -> Finding:
    for entry in entries:
        if entry.explains(finding, backends):
            return replace(finding, known=entry.id)
    return finding


def _verdict(verdict: Verdict, findings: tuple[Finding, ...]) -> Verdict:
    if not findings:
        return verdict
    return Verdict.KNOWN if all(finding.known for finding in findings) else Verdict.FAILED


def _absent(entry: KnownFinding, results: list[CheckResult], subject: Subject) -> tuple[Finding, ...]:
    wanted = entry.expected_steps(subject.observation.case.backends)
    steps: dict[str, set[int]] = {}
    for finding in (f for result in results for f in result.findings if f.known == entry.id):
        steps.setdefault(finding.field, set()).update(finding.steps)
    seen = {name for name, shown in steps.items() if shown == wanted}
    return tuple(
        Finding(
            check="known",
            kind="absent",
            case=subject.observation.case.id,
            field=name,
            bucket=0,
            steps=entry.steps,
            rounds=(),
            message=f"known finding {entry.id}: {name} was right although its preconditions held",
            hint="the fault was mended, or the harness no longer sees it: find out, then edit the entry",
        )
        for name in entry.expected_fields(subject.truths)
        if name not in seen
    )
