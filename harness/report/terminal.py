"""The report for people: a table per path, counts with reasons, findings by cause, one verdict line."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence

from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from harness.findings import CaseResult, Finding, Verdict
from harness.report.again import VERIFY, Again, continued
from harness.report.around import around, by_finding
from harness.report.tally import Coverage, Gathered, Row, Tally, causes, gathered, rows, tally

STYLES: Mapping[Verdict, str] = {
    Verdict.PASSED: "green",
    Verdict.FAILED: "bold red",
    Verdict.KNOWN: "yellow",
    Verdict.NOT_APPLICABLE: "dim",
}
WIDTH_OF_LOGS = 132
"""Columns where output does not go to a terminal and nobody set COLUMNS."""
NARROW = 110
"""Columns below which the table becomes two lines a row."""
CASES_NAMED = 3
"""Further cases of a cause that are named; the rest are counted."""
FIELDS_NAMED = 5
"""Further fields of a cause that are named; the rest are counted."""
ROUNDS_NAMED = 6
"""Rounds of a finding that are named; the rest are counted."""

BESIDE = 12
"""Columns to the left of a finding's texts: the indentation and their names."""

FIGURES = ("cases", "replays", "refreshes per replay", "fused copies", "bytes owned", "checks", "elements")

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def make_console(*, stderr: bool = False) -> Console:
    """Return a console: colour on a terminal only, never with NO_COLOR, and a usable width in logs."""
    console = Console(stderr=stderr, highlight=False, emoji=False, markup=False)
    if console.is_terminal or "COLUMNS" in os.environ:
        return console
    return Console(
        stderr=stderr, highlight=False, emoji=False, markup=False, width=WIDTH_OF_LOGS, no_color=True
    )


def render(
    console: Console, results: Sequence[CaseResult], coverage: Coverage, seconds: float, again: Again = VERIFY
) -> None:
    """Print the whole report of a finished run.

    seconds: its wall time. again: how a finding is shown again.
    """
    total = tally(results, seconds)
    table_rows = rows(results)
    if console.width >= NARROW:
        console.print(_table(table_rows))
    else:
        _blocks(console, table_rows)
    _coverage(console, coverage, total, table_rows)
    _findings(console, results, again)
    _known(console, results)
    console.print()
    console.print(verdict_line(total))


def verdict_line(total: Tally) -> Text:
    """Return the last line: whether anything unexpected was found, and how much was looked at."""
    looked = (
        f"{_count(total.cases, 'case')}, {_count(total.replays, 'replay')}, {_count(total.checks, 'check')}, "
        f"{total.elements:,} elements compared in {total.seconds:.1f} s"
    )
    known = f", {_count(total.known_findings, 'known finding')}" if total.known_findings else ""
    if total.unexpected:
        found = _count(total.unexpected, "unexpected finding")
        return Text(f"FAILED: {found}{known}; {looked}", style=STYLES[Verdict.FAILED])
    return Text(f"OK: nothing unexpected{known}; {looked}", style=STYLES[Verdict.PASSED])


def describe(finding: Finding) -> str:
    """Return a finding as plain lines, for a pytest failure or a log."""
    return "\n".join([finding.message, *(f"  {name:<9} {text}" for name, text in details(finding))])


def _table(table_rows: Sequence[Row]) -> Table:
    several_systems = len({row.sut for row in table_rows}) > 1
    releases = any(row.version for row in table_rows)
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    beside = [*(["system"] if several_systems else []), *(["release"] if releases else [])]
    for name in (*beside, "model", "fusion", "path", "steps"):
        table.add_column(name, overflow="fold")
    for name in FIGURES:
        table.add_column(name.replace(" ", "\n", 1), justify="right", overflow="fold")
    table.add_column("verdict", overflow="fold")
    for row in table_rows:
        whose = [*([row.sut] if several_systems else []), *([row.version] if releases else [])]
        cells = (*whose, row.model, row.fusion, row.path, " ".join(row.steps), *_figures(row))
        table.add_row(*map(Text, cells), _verdict(row))
    return table


def _blocks(console: Console, table_rows: Sequence[Row]) -> None:
    for row in table_rows:
        whose = f"{row.sut} {row.version}".rstrip()
        names = f"{whose}, {row.model}, fusion {row.fusion}, {row.path}, steps {' '.join(row.steps)}: "
        console.print(Text(names) + _verdict(row))
        figures = zip(FIGURES, _figures(row), strict=True)
        console.print(_indented(Text(", ".join(f"{name} {figure}" for name, figure in figures))))


def _figures(row: Row) -> tuple[str, ...]:
    """Return the cells under `FIGURES`."""
    return (
        f"{row.cases:,}",
        f"{row.replays:,}",
        _figure(row.refreshes / row.replays) if row.replays else "-",
        _range(_figure(row.fused_copies[0]), _figure(row.fused_copies[1])),
        _range(_bytes(row.bytes_owned[0]), _bytes(row.bytes_owned[1])),
        f"{row.checks:,}",
        f"{row.elements:,}",
    )


def _verdict(row: Row) -> Text:
    if not row.cases:
        return Text("skipped", style=STYLES[Verdict.NOT_APPLICABLE])
    return Text(row.verdict.value.replace("_", " "), style=STYLES[row.verdict])


def _indented(content: RenderableType, columns: int = 3) -> Padding:
    return Padding(content, (0, 0, 0, columns), expand=False)


def _coverage(console: Console, coverage: Coverage, total: Tally, table_rows: Sequence[Row]) -> None:
    console.print()
    impossible, skipped = coverage.not_applicable, coverage.skipped
    lines: tuple[tuple[str, int, str, Mapping[str, int]], ...] = (
        ("planned", coverage.planned, "case", {}),
        ("run", total.cases, "case", {}),
        ("skipped", sum(skipped.values()), "case", skipped),
        ("not applicable", sum(impossible.values()), "combination", impossible),
    )
    for name, number, thing, reasons in lines:
        of = " of the cross product" if thing == "combination" else ""
        console.print(Text(f"{name:<15}{number:>7,} {thing}{'' if number == 1 else 's'}{of}"))
        for reason, times in sorted(reasons.items(), key=lambda item: (-item[1], item[0])):
            console.print(_indented(Text(f"{times:>7,} {reason}", style="dim"), 15))
    beside = sum(row.not_applicable for row in table_rows)
    if beside:
        console.print(Text(f"{'checks':<15}{beside:>7,} not applicable (no subject in their case)"))


def _findings(console: Console, results: Sequence[CaseResult], again: Again) -> None:
    found = causes(results, known=False)
    if not found:
        return
    neighbours = by_finding(results)
    number = sum(len(cause.findings) for cause in found)
    groups = gathered(found)
    console.print()
    console.print(
        Text(f"{_count(number, 'unexpected finding')} of {_count(len(groups), 'cause')}", style="bold red")
    )
    for index, group in enumerate(groups, start=1):
        first = group.first.findings[0]
        console.print()
        console.print(Text(f"{index}. {heading(group)}", style="bold"))
        console.print(_indented(Text(first.message)))
        grid = Table.grid(padding=(0, 1, 0, 0))
        grid.add_column(no_wrap=True, style="dim")
        grid.add_column(overflow="fold")
        for name, text in details(first):
            grid.add_row(name, Text(text))
        near = around(group.first, neighbours, console.width)
        if near is not None:
            grid.add_row("around", near)
        for name, text in _elsewhere(group, again, console.width - BESIDE):
            grid.add_row(name, Text(text))
        console.print(_indented(grid))


def heading(group: Gathered) -> str:
    """Return a cause in one line: check, kind, fields, steps, path, and in how many cases it shows."""
    cause, others = group.first, group.other_fields
    parts = [f"{cause.check}: {cause.kind}"]
    if cause.field:
        parts.append(f"{cause.field} and {_count(len(others), 'other field')}" if others else cause.field)
    if cause.steps:
        parts.append(f"step {cause.steps[0]}" if len(cause.steps) == 1 else f"steps {_list(cause.steps)}")
    if cause.path:
        parts.append(f"path {cause.path}")
    if cause.version:
        parts.append(f"release {cause.version}")
    return f"{', '.join(parts)} ({_count(len(cause.cases), 'case')})"


def details(finding: Finding) -> list[tuple[str, str]]:
    """Return what is known of a finding besides its message, as names and texts; the case comes first."""
    details = [("case", finding.case)]
    where = []
    if finding.rounds:
        where.append(f"round {finding.rounds[0]}")
    if finding.bucket:
        where.append(f"bucket {finding.bucket}")
    if finding.first is not None:
        where.append(f"row {finding.first.row}, column {finding.first.column}")
    if where:
        details.append(("where", ", ".join(where)))
    if finding.first is not None:
        details.append(("expected", finding.first.expected))
        note = f"   ({finding.first.note})" if finding.first.note else ""
        details.append(("got", f"{finding.first.got}{note}"))
    if finding.elements:
        differ = "differs" if finding.elements == 1 else "differ"
        details.append(("extent", f"{_count(finding.elements, 'element')} {differ} in the first round"))
    if finding.rounds:
        again = finding.rounds[1:]
        later = f", again in {_shortened(again, ROUNDS_NAMED)}" if again else ""
        details.append(("since", f"round {finding.rounds[0]}{later}"))
    if finding.hint:
        details.append(("usually", finding.hint))
    return details


def _elsewhere(group: Gathered, again: Again, width: int) -> list[tuple[str, str]]:
    fields, cases = group.other_fields, group.first.cases[1:]
    return [
        *([("fields", f"also {_shortened(fields, FIELDS_NAMED)}")] if fields else []),
        *([("also in", _shortened(cases, CASES_NAMED))] if cases else []),
        ("again", continued(again.command(group.first), width)),
    ]


def _known(console: Console, results: Iterable[CaseResult]) -> None:
    findings: dict[str, list[Finding]] = {}
    for cause in causes(results, known=True):
        for finding in cause.findings:
            findings.setdefault(finding.known, []).append(finding)
    if findings:
        console.print()
        console.print(Text("known findings", style="bold"))
    for identity, group in sorted(findings.items()):
        fields = sorted({finding.field for finding in group if finding.field})
        steps = sorted({step for finding in group for step in finding.steps})
        subject = f": {_list(fields)}" if fields else ""
        at = f" at steps {_list(steps)}" if steps else ""
        cases = _count(len({finding.case for finding in group}), "case")
        console.print(
            Text(f"  {identity}{subject}{at}; {_count(len(group), 'finding')} in {cases}", style="yellow")
        )


def _shortened(names: Sequence[str], most: int) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return f"{_list(names[:most])}{more}"


def _list(items: Iterable[object]) -> str:
    return ", ".join(map(str, items))


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _range(low: str, high: str) -> str:
    return low if low == high else f"{low} - {high}"


def _figure(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")


def _bytes(number: int) -> str:
    value, unit = float(number), 0
    while value >= 1000 and unit < len(_UNITS) - 1:
        value, unit = value / 1024, unit + 1
    return f"{value:.0f} {_UNITS[unit]}" if value >= 100 else f"{value:.3g} {_UNITS[unit]}"
