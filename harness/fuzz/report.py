"""The fuzzer's report: what was judged and how much, and a failure with its file and its command."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from harness.findings import Finding
from harness.fuzz.campaign import Found, Outcome, Tally
from harness.fuzz.store import dump_sequence
from harness.fuzz.trial import LEFT_OUT, Trial
from harness.report.terminal import describe

SCHEMA = 1
FINDINGS_SHOWN = 4
"""Findings of a failure that are printed in full, of different checks; the rest are counted."""


def lines(outcome: Outcome, *, settings: int, again: str = "") -> list[str]:
    """Return the report of a run; `settings` could be drawn, the command `again` runs the found sequence."""
    tally = outcome.tally
    report = [f"settings  {settings}"]
    report += [f"judged    {_judged(tally)}"]
    report += [f"left out  {name}: {reason}" for name, reason in LEFT_OUT.items()]
    report += [f"skipped   {count} x {reason}" for reason, count in tally.skipped.items()]
    report += [f"known     {name} in {count} sequences" for name, count in tally.known.items()]
    if outcome.found is not None:
        report += ["", *failure(outcome.found, again)]
    return [*report, "", verdict(outcome)]


def failure(found: Found, again: str) -> list[str]:
    """Return a failure: what is wrong, the sequence as a file, how to run it again."""
    first, last = len(found.first.operations), len(found.trial.sequence.operations)
    steady = "" if found.steady else "; it did not fail again when run once more: printed as it was drawn"
    head = (
        f"found after {found.sequences} sequences ({found.seconds:.1f} s); "
        f"{first} operations shrunk to {last} in {found.shrinking} runs{steady}"
    )
    shown = [head, "", *_findings(found.trial), "", dump_sequence(found.trial.sequence).rstrip()]
    return [*shown, "", f"again     {again}"] if again else shown


def _findings(trial: Trial) -> list[str]:
    """Return the first finding of each check in full, and how many more there are."""
    firsts: dict[str, Finding] = {}
    for finding in trial.unexpected:
        firsts.setdefault(finding.check, finding)
    shown = list(firsts.values())[:FINDINGS_SHOWN]
    lines = [line for one in shown for line in f"{one.check}: {describe(one)}".splitlines()]
    more = len(trial.unexpected) - len(shown)
    return [*lines, f"and {more} more"] if more > 0 else lines


def verdict(outcome: Outcome) -> str:
    """Return the last line: the verdict and the figures."""
    tally = outcome.tally
    figures = (
        f"{tally.sequences} sequences, {tally.operations} operations, {tally.replays} replays, "
        f"{sum(tally.checks.values())} checks, {tally.elements:,} elements compared in "
        f"{outcome.seconds:.1f} s, seed {outcome.seed}"
    )
    if outcome.found is None:
        return f"OK: nothing found; {figures}"
    return f"FAILED: {_count(outcome.found.findings)}; {figures}"


def replayed(trial: Trial, file: str) -> list[str]:
    """Return the report of one sequence that was run from a file."""
    result = trial.result
    if not trial.unexpected:
        known = "known findings only" if result.findings else "nothing found"
        return [f"{file}: {known}; {result.replays} replays, {result.elements:,} elements compared"]
    return [f"{file}: {_count(trial.unexpected)}", *_findings(trial)]


def document(outcome: Outcome, settings: int) -> dict[str, Any]:
    """Return a run as data."""
    tally, found = outcome.tally, outcome.found
    return {
        "schema": SCHEMA,
        "seed": outcome.seed,
        "seconds": round(outcome.seconds, 1),
        "settings": settings,
        "sequences": tally.sequences,
        "operations": tally.operations,
        "replays": tally.replays,
        "refreshes": tally.refreshes,
        "elements": tally.elements,
        "against_ordinary_path": tally.ordinary,
        "checks": dict(sorted(tally.checks.items())),
        "left_out": dict(LEFT_OUT),
        "skipped": dict(tally.skipped),
        "known": dict(tally.known),
        "found": None if found is None else _found_document(found),
    }


def _found_document(found: Found) -> Mapping[str, Any]:
    return {
        "seconds": round(found.seconds, 1),
        "sequences": found.sequences,
        "operations": len(found.trial.sequence.operations),
        "operations_drawn": len(found.first.operations),
        "steady": found.steady,
        "findings": [f"{finding.check}: {finding.message}" for finding in found.findings],
        "sequence": dump_sequence(found.trial.sequence),
    }


def _count(findings: tuple[Finding, ...]) -> str:
    return f"{len(findings)} unexpected finding{'s' if len(findings) != 1 else ''}"


def _judged(tally: Tally) -> str:
    by_name = ", ".join(f"{name} {count}" for name, count in sorted(tally.checks.items()))
    return f"{by_name}; outputs against the ordinary path in {tally.ordinary} of {tally.sequences} sequences"
