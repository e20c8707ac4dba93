"""The figures of `bench gpu` for people: one table per point, and what is not right."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from harness.bench.figures import FLOOR, NOTHING, ORDINARY, Figures, Measured, Report, Spread
from harness.bench.meter import Activities

MIB = 1 << 20
WIDTH = 156
"""Columns that the table needs."""


def render(console: Console, report: Report) -> None:
    """Print every point's table; times in microseconds with half the distance of their quartiles."""
    for measured in report.measured:
        console.print()
        console.print(_table(measured), soft_wrap=True)
        for figures in measured.figures:
            if figures.wrong:
                console.print(f"not right after {figures.name}: {', '.join(figures.wrong)}", soft_wrap=True)
    console.print()
    effort, software = report.effort, report.software
    samples = (effort.rounds * one for one in (effort.host, effort.spans, effort.gaps))
    console.print(
        f"{report.device['name']}, torch {software['torch']}, {report.date}; us: medians of "
        "{} host times, {} spans, {} gaps, taken in turns; +-: half the distance of the quartiles".format(
            *samples
        ),
        soft_wrap=True,
    )


def _table(measured: Measured) -> Table:
    lengths = measured.lengths
    title = f"{measured.point}; lengths {min(lengths)} to {max(lengths)}"
    table = Table(title=title, title_justify="left", box=None, padding=(0, 1))
    table.add_column("", no_wrap=True)
    for heading in (
        "host", "GPU span", "gap", "kernels\n+ copies", "eager", "MiB\nowned", "MiB\nwritten",
        "host /\nordinary", "span /\nordinary", "span /\nlaunch",
    ):  # fmt: skip
        table.add_column(heading, justify="right", no_wrap=True)
    for figures in (*measured.floors, *measured.figures):
        table.add_row(*_row(measured, figures))
    return table


def _row(measured: Measured, one: Figures) -> list[str]:
    if one.path == NOTHING:
        return [one.name, "", "", _spread(one.gap)]
    row = [one.name, _spread(one.host), _spread(one.span), _spread(one.gap)]
    row += [_launches(one.activities), _launches(one.eager)]
    if one.system == FLOOR:
        return row
    row += [f"{size / MIB:.2f}" for size in (one.bytes_owned, one.bytes_written)]
    ordinary = next((o for o in measured.figures if o.path in ORDINARY and _kin(o, one)), None)
    launch = next(floor for floor in measured.floors if floor.path != NOTHING)
    for mine, theirs in (
        (one.host, ordinary and ordinary.host),
        (one.span, ordinary and ordinary.span),
        (one.span, launch.span),
    ):
        row.append(f"{mine.median / theirs.median:.2f}" if theirs and theirs.median else "")
    return row


def _kin(ordinary: Figures, one: Figures) -> bool:
    """Whether two subjects are of the same code: the embedded system, fused or not, or a package."""
    return one.system.startswith(ordinary.system)


def _spread(spread: Spread) -> str:
    return f"{spread.median:.1f} +-{(spread.high - spread.low) / 2:.1f}"


def _launches(one: Activities) -> str:
    return f"{one.kernels} + {one.memcpys + one.memsets}"
