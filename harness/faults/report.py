"""The kill matrix on a terminal, and as JSON-ready data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from harness.checks.registry import CHECKS
from harness.faults.kills import Kills
from harness.faults.trial import Fate, Tried

FIRST, SPOKE, SILENT = "●", "○", ""
HEADING = 5
"""Letters of a check's name that head its column."""
SCHEMA = "replay-harness.faults/1"


def show(kills: Kills, console: Console, texts: Mapping[str, str]) -> None:
    """Print the matrix, what did not end as it should, and the summary. `texts`: by id."""
    console.print(_table(kills))
    for one in kills.bad:
        console.print(Text(f"{one.fate} ", "bold red") + Text(f"{one.id} on {one.case}: {texts[one.id]}"))
        console.print(f"  reached {one.reached} times, changed something {one.changed} times")
        if one.fate is Fate.ELSEWHERE:
            console.print(f"  {one.expected} has to speak")
        for message in one.messages:
            console.print(f"  {message}")
    console.print(summary(kills))


def summary(kills: Kills) -> str:
    """Return the one line that says it all."""
    faults, harmless = len(kills.faults), len(kills.harmless)
    parts = [
        f"faults: {kills.count(Fate.KILLED)} of {faults} killed",
        f"harmless: {kills.count(Fate.FLAGGED)} of {harmless} runs flagged",
    ]
    for fate in (Fate.SURVIVED, Fate.ELSEWHERE, Fate.UNREACHED):
        if count := kills.count(fate):
            parts.append(f"{count} {fate}")
    return "; ".join(parts)


def _table(kills: Kills) -> Table:
    table = Table(
        title=f"Kill matrix ({FIRST} spoke first, {SPOKE} spoke, operations until it was seen)",
        title_justify="left",
    )
    table.add_column("fault")
    for check in CHECKS:
        table.add_column(check.name[:HEADING], justify="center", no_wrap=True)
    table.add_column("ops", justify="right")
    table.add_column("fate")
    for one in kills.tried:
        marks = [_mark(one, check.name) for check in CHECKS]
        seen = str(one.operations) if one.first else ""
        table.add_row(one.id, *marks, seen, f"{one.fate}", style=None if one.fate.good else "red")
    return table


def _mark(one: Tried, check: str) -> str:
    if check not in one.spoke:
        return SILENT
    return FIRST if check == one.first else SPOKE


def show_needed(kills: Kills, problems: Sequence[str], reasons: Mapping[str, str], console: Console) -> None:
    """Print what each check is needed for, and what the reverse gate objects to."""
    table = Table(title="Switched off, these faults survive", title_justify="left")
    table.add_column("check")
    table.add_column("faults")
    table.add_column("which")
    for name, faults in kills.only().items():
        table.add_row(name, str(len(faults)), ", ".join(faults) or reasons.get(name, "none"))
    console.print(table)
    for problem in problems:
        console.print(Text("superfluous ", "bold red") + Text(problem))


def document(kills: Kills, texts: Mapping[str, str], sut: str, engine: str) -> dict[str, Any]:
    """Return everything as JSON-ready data."""
    return {
        "schema": SCHEMA,
        "sut": sut,
        "engine": engine,
        "summary": summary(kills),
        "trials": [
            {
                "id": one.id,
                "class": one.cls,
                "text": texts[one.id],
                "case": one.case,
                "fate": one.fate.value,
                "expected": one.expected,
                "first": one.first,
                "operations": one.operations,
                "spoke": dict(one.spoke),
                "reached": one.reached,
                "changed": one.changed,
                "messages": list(one.messages),
                "seconds": round(one.seconds, 3),
            }
            for one in kills.tried
        ],
        "needed": {name: list(faults) for name, faults in kills.only().items()},
    }
