"""What driving a trace printed and kept as data."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from harness.fuzz.trial import LEFT_OUT
from harness.report.terminal import describe
from harness.trace.setup import Stage, describe_setting
from harness.trace.verify import Driven

SCHEMA = 1
SHOWN = 4
"""Findings that are printed in full, of different checks."""


def lines(driven: Driven, stage: Stage, note: str) -> Iterator[str]:
    """Yield the report of one trace in one setting."""
    yield f"system    {describe_setting(stage.setting)}"
    by_name = ", ".join(f"{name} {count}" for name, count in sorted(driven.checks.items()))
    yield f"judged    {driven.windows} windows: {by_name}"
    yield from (f"left out  {name}: {reason}" for name, reason in LEFT_OUT.items())
    yield "left out  outputs against the ordinary path: `fuzz --replay` of a shrunk case compares them"
    if driven.folded:
        yield f"folded    {driven.folded:,} lengths were too long for the model's width"
    if note:
        yield f"note      {note}"
    yield from (f"known     {name} in {count} findings" for name, count in driven.known.items())
    firsts = {finding.check: finding for finding in reversed(driven.findings)}
    for finding in list(firsts.values())[::-1][:SHOWN]:
        yield from f"{finding.check}: {describe(finding)}".splitlines()
    yield verdict(driven)


def verdict(driven: Driven) -> str:
    """Return the last line."""
    rate = 1000 * driven.seconds / max(driven.replays, 1)
    figures = (
        f"{driven.operations:,} records, {driven.replays:,} replays, {driven.refreshes:,} refreshes, "
        f"{driven.elements:,} elements compared in {driven.seconds:.1f} s ({rate:.1f} ms a replay)"
    )
    if not driven.findings:
        return f"OK: nothing unexpected; {figures}"
    count = len(driven.findings)
    where = f" first at record {driven.failed_at}" if driven.failed_at else ""
    return f"FAILED: {count} unexpected finding{'s' if count > 1 else ''}{where}; {figures}"


def document(driven: Driven, stage: Stage, note: str) -> dict[str, Any]:
    """Return one trace in one setting as JSON-ready data."""
    return {
        "schema": SCHEMA,
        "setting": describe_setting(stage.setting),
        "facts": driven.facts,
        "records": driven.operations,
        "windows": driven.windows,
        "replays": driven.replays,
        "refreshes": driven.refreshes,
        "elements": driven.elements,
        "seconds": round(driven.seconds, 1),
        "checks": dict(sorted(driven.checks.items())),
        "left_out": dict(LEFT_OUT),
        "known": dict(driven.known),
        "folded": driven.folded,
        "note": note,
        "failed_at": driven.failed_at,
        "findings": [f"{finding.check}: {finding.message}" for finding in driven.findings],
    }
