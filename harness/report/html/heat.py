"""The heat map: how each check ended on each model and path."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from harness.findings import CaseResult, Verdict

WORST = (Verdict.FAILED, Verdict.KNOWN, Verdict.PASSED)


@dataclass(frozen=True)
class Cell:
    """One check over all cases of a row."""

    check: str
    verdict: str
    failed: int
    known: int
    passed: int
    not_applicable: int
    elements: int

    @property
    def words(self) -> str:
        """Say how the cases ended."""
        parts = [
            (self.failed, "failed"),
            (self.known, "with known findings only"),
            (self.passed, "passed"),
            (self.not_applicable, "not applicable"),
        ]
        return ", ".join(f"{number} {word}" for number, word in parts if number) or "not run"


@dataclass(frozen=True)
class Line:
    """One row: a model and path, of one system, engine and release."""

    model: str
    path: str
    whose: str
    """System, engine and release; empty where the report has one of each."""
    group: str
    """What its cases carry as `data-group`."""
    cases: int
    skipped: int
    cells: tuple[Cell, ...]


def check_names(results: Sequence[CaseResult], order: Sequence[str]) -> tuple[str, ...]:
    """Return the checks that occur, in report order, others last."""
    seen = dict.fromkeys(check.check for result in results for check in result.checks)
    return (*(name for name in order if name in seen), *sorted(seen.keys() - set(order)))


def whose(result: CaseResult) -> str:
    """Name a result's system, release and engine."""
    return " ".join(result.axes[name] for name in ("sut", "version", "engine") if result.axes.get(name))


def group_of(result: CaseResult) -> str:
    """Return the key of a result's row."""
    return "|".join((whose(result), result.axes.get("model", ""), result.axes.get("path", "")))


def heat(results: Sequence[CaseResult], checks: Sequence[str]) -> tuple[Line, ...]:
    """Return the rows, ordered by model, path and system."""
    several = len({whose(result) for result in results}) > 1
    groups: dict[str, list[CaseResult]] = {}
    for result in results:
        groups.setdefault(group_of(result), []).append(result)
    lines = []
    for key, group in groups.items():
        first = group[0]
        lines.append(
            Line(
                model=first.axes.get("model", ""),
                path=first.axes.get("path", ""),
                whose=whose(first) if several else "",
                group=key,
                cases=sum(not one.skipped for one in group),
                skipped=sum(bool(one.skipped) for one in group),
                cells=tuple(_cell(name, group) for name in checks),
            )
        )
    return tuple(sorted(lines, key=lambda line: (line.model, line.path, line.whose)))


def _cell(name: str, group: Sequence[CaseResult]) -> Cell:
    found = [check for result in group for check in result.checks if check.check == name]
    verdicts = [check.verdict for check in found]
    worst = next((one for one in WORST if one in verdicts), Verdict.NOT_APPLICABLE)
    return Cell(
        check=name,
        verdict=worst.value,
        failed=verdicts.count(Verdict.FAILED),
        known=verdicts.count(Verdict.KNOWN),
        passed=verdicts.count(Verdict.PASSED),
        not_applicable=verdicts.count(Verdict.NOT_APPLICABLE),
        elements=sum(check.elements for check in found),
    )
