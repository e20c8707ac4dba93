"""Hand-made results: two paths of one model, one of them with a known and an unexpected finding."""

from dataclasses import replace

from harness.findings import CaseResult, CheckResult, Difference, Finding, Verdict
from harness.picture import Around, Neighbour

STALE = "freshness"
_LINES = (*((row, column, str(10 * row + column)) for row in (5, 6) for column in (0, 1)), (7, 0, "1"))
AROUND = Around(
    0, 0, 7, "b4.03", "grown", (1, 2),
    (*(Neighbour(row, column, text, text) for row, column, text in _LINES), Neighbour(7, 1, "3", "2")),
)  # fmt: skip
"""The lines around the first finding of a result that has one."""


def finding(case: str, *, steps: tuple[int, ...] = (0, 1, 2), known: str = "", **changes: object) -> Finding:
    values: dict[str, object] = {
        "check": STALE,
        "kind": "stale",
        "case": case,
        "field": "paged_mqa_schedule_metadata",
        "bucket": 4,
        "steps": steps,
        "rounds": ("b4.03", "b4.05"),
        "message": "step 0 keeps the schedule of an earlier round [see row 7].",
        "hint": "derive the schedule again after the copy",
        "elements": 12,
        "first": Difference(7, 1, "3", "2", "the value of round b4.02"),
        "known": known,
    }
    return Finding(**{**values, **changes})  # type: ignore[arg-type]


def result(
    case: str,
    *findings: Finding,
    path: str = "shared",
    steps: str = "5",
    skipped: str = "",
    seconds: float = 0.25,
    sut: str = "embedded",
) -> CaseResult:
    unexpected = any(not found.known for found in findings)
    failed = Verdict.FAILED if unexpected else Verdict.KNOWN
    checks = (
        CheckResult("aliasing", Verdict.PASSED, (), 40),
        CheckResult(STALE, failed if findings else Verdict.PASSED, findings, 1000),
        CheckResult("ordering", Verdict.NOT_APPLICABLE, (), 0, "no delayed reader in this drill"),
    )
    return CaseResult(
        case=case,
        axes={"sut": sut, "engine": "tape", "model": "tiny", "fusion": "on", "path": path, "steps": steps},
        checks=() if skipped else checks,
        replays=0 if skipped else 8,
        refreshes=0 if skipped else 10,
        fused_copies=0.0 if path == "shared" else 4.0,
        bytes_owned=1_048_576,
        seconds=seconds,
        facts={"device": "cpu"},
        skipped=skipped,
    )


def released(one: CaseResult, version: str) -> CaseResult:
    """Return a result as that of a release that was asked for."""
    return replace(one, axes={**one.axes, "version": version})
