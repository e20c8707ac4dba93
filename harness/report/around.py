"""The lines around a first difference on a terminal: got, and below it what was expected."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from rich.table import Table
from rich.text import Text

from harness.findings import CaseResult, Finding
from harness.picture import Around
from harness.report.tally import Cause
from harness.report.window import Spot, Window, window

ROWS = 1
"""Rows on each side of the first difference."""
COLUMNS = ((110, 3), (70, 2), (0, 1))
"""(least width of the terminal, columns on each side)."""

Place = tuple[Finding, str, str, str]


def by_finding(results: Iterable[CaseResult]) -> Mapping[Place, Around]:
    """Return the neighbours of all findings, by finding, system, release and engine."""
    found = {}
    for result in results:
        sut, version, engine = (result.axes.get(name, "") for name in ("sut", "version", "engine"))
        for one in result.around:
            found[result.findings[one.finding], sut, version, engine] = one
    return found


def around(cause: Cause, known: Mapping[Place, Around], width: int) -> Table | None:
    """Return the lines around the first difference of a cause's first finding; None where it has none.

    width: of the terminal, columns.
    """
    first = cause.findings[0]
    found = known.get((first, cause.sut, cause.version, cause.engine))
    if found is None:
        return None
    columns = next(most for least, most in COLUMNS if width >= least)
    return grid(window(found, first).near(ROWS, columns))


def grid(shown: Window) -> Table:
    """Lay a window out: a line per row, and a second one with what was expected where it is wrong."""
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(style="dim")
    for _ in shown.columns:
        table.add_column(justify="right", overflow="fold")
    if len(shown.columns) > 1 or shown.columns != (0,):
        table.add_row("column", *(Text(str(column), style="dim") for column in shown.columns))
    for row, spots in shown.rows:
        table.add_row(f"row {row}", *map(_got, spots))
        if any(spot is not None and spot.differs for spot in spots):
            table.add_row("  expected", *map(_expected, spots))
    return table


def _got(spot: Spot | None) -> Text:
    if spot is None:
        return Text("")
    if spot.first:
        return Text(f"[{spot.got}]", style="bold red")
    return Text(spot.got, style="red" if spot.differs else "")


def _expected(spot: Spot | None) -> Text:
    return Text(spot.expected if spot is not None and spot.differs else "", style="green")
