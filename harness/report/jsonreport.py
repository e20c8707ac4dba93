"""The JSON report: the same bytes for the same outcome, apart from `environment` and `seconds`.

Schema 1. `summary` has the totals of `tally.Tally`. `cases` has one object per case, skipped ones
included, with a verdict per check; `findings` has every finding, known ones included, with the id
of the known finding in `known`. Units: seconds, bytes, elements.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec

from harness.errors import UsageError
from harness.findings import CaseResult, Finding
from harness.report.environment import environment
from harness.report.tally import ordered, tally

SCHEMA = 1


def document(results: Iterable[CaseResult], seconds: float) -> dict[str, Any]:
    """Return the report as JSON-ready data, ordered by system, engine, release and case id."""
    done = ordered(results)
    return {
        "schema": SCHEMA,
        "environment": environment(done),
        "summary": asdict(tally(done, round(seconds, 3))),
        "cases": [_case(result) for result in done],
        "findings": [
            _finding(result, finding)
            for result in done
            for finding in sorted(result.findings, key=_finding_order)
        ],
    }


def check_writable(path: Path) -> None:
    """Make the report's folder; raise UsageError now, not after the run, where it cannot be written."""
    if path.is_dir():
        raise UsageError(f"--json {path}: is a folder; name a file")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"--json {path}: cannot make folder {path.parent}: {error.strerror}") from error
    if not os.access(path.parent, os.W_OK):
        raise UsageError(f"--json {path}: folder {path.parent} is not writable")


def write(path: Path, report: dict[str, Any]) -> None:
    """Write the report whole or not at all: to a temporary file beside `path`, then renamed."""
    text = json.dumps(report, indent=1, allow_nan=False, ensure_ascii=False) + "\n"
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        temporary.write_text(text, encoding="utf-8")
        os.replace(temporary, path)
    except OSError as error:
        raise UsageError(f"--json {path}: {error.strerror or error}") from error
    finally:
        temporary.unlink(missing_ok=True)


def _case(result: CaseResult) -> dict[str, Any]:
    return {
        "case": result.case,
        "axes": dict(sorted(result.axes.items())),
        "verdict": result.verdict.value,
        "skipped": result.skipped,
        "replays": result.replays,
        "refreshes": result.refreshes,
        "fused_copies": result.fused_copies,
        "bytes_owned": result.bytes_owned,
        "seconds": round(result.seconds, 3),
        "checks": [
            {
                "check": check.check,
                "verdict": check.verdict.value,
                "elements": check.elements,
                "findings": len(check.findings),
                "reason": check.reason,
            }
            for check in result.checks
        ],
    }


def _finding(result: CaseResult, finding: Finding) -> dict[str, Any]:
    plain: dict[str, Any] = msgspec.to_builtins(finding)
    version = result.axes.get("version", "")
    return plain | ({"version": version} if version else {})


def _finding_order(finding: Finding) -> tuple[Any, ...]:
    return (
        finding.check,
        finding.kind,
        finding.field,
        finding.bucket,
        finding.steps,
        finding.rounds,
        finding.message,
    )
