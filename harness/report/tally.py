"""Results added up: totals, a row per (model, fusion, path), findings grouped by cause. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from harness.findings import CaseResult, Finding, Verdict


@dataclass(frozen=True)
class Tally:
    """Totals of a run, as the JSON report's `summary` has them."""

    cases: int
    """Cases that ran; skipped ones are not counted."""
    replays: int
    checks: int
    """Checks that ran; those that do not apply are not counted."""
    elements: int
    """Elements (or facts) compared."""
    findings: int
    known_findings: int
    unexpected: int
    seconds: float
    """Wall time of the run."""


@dataclass(frozen=True)
class Row:
    """One line of the table: all cases of a system, release, model, fusion setting and path."""

    sut: str
    version: str
    """The release that was asked for, empty where none was."""
    model: str
    fusion: str
    path: str
    steps: tuple[str, ...]
    """The values of `S` that were run, ascending."""
    cases: int
    """Cases that ran; 0 where all were skipped."""
    replays: int
    refreshes: int
    fused_copies: tuple[float, float]
    """Per refresh: fewest and most over the cases."""
    bytes_owned: tuple[int, int]
    """Fewest and most over the cases."""
    checks: int
    not_applicable: int
    """Checks without a subject in these cases."""
    elements: int
    verdict: Verdict


@dataclass(frozen=True)
class Cause:
    """Findings that show the same thing: check, kind, field, steps, path, system, release, engine."""

    check: str
    kind: str
    field: str
    steps: tuple[int, ...]
    path: str
    sut: str
    version: str
    engine: str
    findings: tuple[Finding, ...]
    """At least one, ordered by case."""
    cases: tuple[str, ...]
    """Ids of the cases that show it, ordered."""


@dataclass(frozen=True)
class Gathered:
    """Causes that differ in the field only: one step's own object shows in every field at once."""

    causes: tuple[Cause, ...]
    """At least one, in order of their fields."""

    @property
    def first(self) -> Cause:
        """The cause that is shown in full."""
        return self.causes[0]

    @property
    def other_fields(self) -> tuple[str, ...]:
        """Fields of the others."""
        return tuple(cause.field for cause in self.causes[1:])


@dataclass(frozen=True)
class Coverage:
    """What was to be run and what was not, with reasons; reasons map to numbers of cases or combinations."""

    planned: int
    not_applicable: Mapping[str, int]
    skipped: Mapping[str, int]


def ordered(results: Iterable[CaseResult]) -> tuple[CaseResult, ...]:
    """Put results into the order of every report: by system, engine, release and case id."""
    axes = ("sut", "engine", "version")
    return tuple(sorted(results, key=lambda result: (*(_axis(result, name) for name in axes), result.case)))


def tally(results: Iterable[CaseResult], seconds: float) -> Tally:
    """Add up results; `seconds` is the wall time of the run, which parallel cases do not add up to."""
    done = [result for result in results if not result.skipped]
    findings = [finding for result in done for finding in result.findings]
    known = sum(1 for finding in findings if finding.known)
    return Tally(
        cases=len(done),
        replays=sum(result.replays for result in done),
        checks=sum(_ran(result) for result in done),
        elements=sum(result.elements for result in done),
        findings=len(findings),
        known_findings=known,
        unexpected=len(findings) - known,
        seconds=seconds,
    )


def rows(results: Iterable[CaseResult]) -> tuple[Row, ...]:
    """Return one row per (system, release, model, fusion, path), ordered by those names."""
    groups: dict[tuple[str, str, str, str, str], list[CaseResult]] = {}
    for result in results:
        sut, version, model, fusion, path = (_axis(result, name) for name in _ROW)
        groups.setdefault((sut, version, model, fusion, path), []).append(result)
    return tuple(_row(key, groups[key]) for key in sorted(groups))


def causes(results: Iterable[CaseResult], *, known: bool) -> tuple[Cause, ...]:
    """Group findings by cause, either the known ones or the others, those that show in most cases first.

    What a run lacks in evidence comes last: where there is another finding, it mostly follows from it.
    """
    groups: dict[tuple[str, str, str, tuple[int, ...], str, str, str, str], list[Finding]] = {}
    for result in ordered(results):
        for finding in result.findings:
            if bool(finding.known) is known:
                path, sut, version, engine = (_axis(result, name) for name in _CAUSE)
                key = (finding.check, finding.kind, finding.field, finding.steps, path, sut, version, engine)
                groups.setdefault(key, []).append(finding)
    found = [
        Cause(*key, findings=tuple(group), cases=tuple(dict.fromkeys(finding.case for finding in group)))
        for key, group in groups.items()
    ]
    return tuple(sorted(found, key=_most_cases_first))


def gathered(found: Iterable[Cause]) -> tuple[Gathered, ...]:
    """Put causes together that show in the same cases and steps in the same way; order is kept."""
    groups: dict[tuple[object, ...], list[Cause]] = {}
    for cause in found:
        whose = (cause.path, cause.sut, cause.version, cause.engine)
        groups.setdefault((cause.check, cause.kind, cause.steps, cause.cases, whose), []).append(cause)
    return tuple(Gathered(tuple(group)) for group in groups.values())


def _most_cases_first(cause: Cause) -> tuple[object, ...]:
    subject = (cause.check, cause.kind, cause.field, cause.steps)
    return (
        cause.check == "evidence",
        -len(cause.cases),
        *subject,
        cause.path,
        cause.sut,
        cause.version,
        cause.engine,
    )


_ROW = ("sut", "version", "model", "fusion", "path")
_CAUSE = ("path", "sut", "version", "engine")


def _row(key: tuple[str, str, str, str, str], all_of_it: Sequence[CaseResult]) -> Row:
    group = [result for result in all_of_it if not result.skipped]
    copies = [result.fused_copies for result in group]
    owned = [result.bytes_owned for result in group]
    return Row(
        *key,
        steps=tuple(sorted({_axis(result, "steps") for result in all_of_it}, key=_natural)),
        cases=len(group),
        replays=sum(result.replays for result in group),
        refreshes=sum(result.refreshes for result in group),
        fused_copies=(min(copies, default=0.0), max(copies, default=0.0)),
        bytes_owned=(min(owned, default=0), max(owned, default=0)),
        checks=sum(_ran(result) for result in group),
        not_applicable=sum(len(result.checks) for result in group) - sum(_ran(result) for result in group),
        elements=sum(result.elements for result in group),
        verdict=_worst(result.verdict for result in group),
    )


def _ran(result: CaseResult) -> int:
    return sum(1 for check in result.checks if check.verdict is not Verdict.NOT_APPLICABLE)


def _worst(verdicts: Iterable[Verdict]) -> Verdict:
    seen = set(verdicts)
    for verdict in (Verdict.FAILED, Verdict.KNOWN, Verdict.PASSED):
        if verdict in seen:
            return verdict
    return Verdict.NOT_APPLICABLE


def _axis(result: CaseResult, name: str) -> str:
    return result.axes.get(name, "")


def _natural(text: str) -> tuple[int, str]:
    return (int(text) if text.isdigit() else 0, text)
