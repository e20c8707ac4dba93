"""The figures of `bench gpu` for people: one table per point."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from harness.bench.figures import FLOOR, NOTHING, ORDINARY, Figures, Measured, Report, Spread
from harness.bench.meter import Activities

MIB = 1 << 20


def render(console: Console, report: Report) -> None:
    """Print every point's table; times in microseconds, quartiles in brackets."""
    for measured in report.measured:
        console.print()
        console.print(_table(measured))
    console.print()
    device, effort = report.device, report.effort
    console.print(
        f"{device['name']}, torch {report.software['torch']}, {report.date}; microseconds: median (quartiles) "
        f"of {effort.rounds * effort.host} host times, {effort.rounds * effort.spans} spans, "
        f"{effort.rounds * effort.gaps} gaps, taken in turns",
        soft_wrap=True,
    )


def _table(measured: Measured) -> Table:
    lengths = measured.lengths
    table = Table(
        title=f"{measured.point}; lengths {min(lengths)} to {max(lengths)}", title_justify="left", box=None
    )
    for heading in ("system", "path"):
        table.add_column(heading, no_wrap=True)
    for heading in (
        "host", "GPU span", "gap", "kernels\n+ copies", "eager", "MiB\nowned", "MiB\nwritten", "MiB\ntemp.",
        "host /\nordinary", "span /\nordinary", "span /\nlaunch",
    ):  # fmt: skip
        table.add_column(heading, justify="right", no_wrap=True)
    for figures in (*measured.floors, *measured.figures):
        table.add_row(*_row(measured, figures))
    return table


def _row(measured: Measured, one: Figures) -> list[str]:
    row = [one.system, one.path]
    if one.path == NOTHING:
        return [*row, "", "", _spread(one.gap)]
    row += [_spread(one.host), _spread(one.span), _spread(one.gap)]
    if one.system == FLOOR:
        return [*row, _launches(one.activities), _launches(one.eager)]
    row += [_launches(one.activities), _launches(one.eager)]
    row += [f"{size / MIB:.2f}" for size in (one.bytes_owned, one.bytes_written, one.bytes_temporary)]
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
    return f"{spread.median:.1f} ({spread.low:.1f}-{spread.high:.1f})"


def _launches(one: Activities) -> str:
    copies = one.memcpys + one.memsets
    return f"{one.kernels} + {copies}"
