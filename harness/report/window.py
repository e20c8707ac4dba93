"""The lines around a first difference, as a small table for any report."""

from __future__ import annotations

from dataclasses import dataclass, replace

from harness.findings import Finding
from harness.picture import Around
from harness.report.words import listed

LENGTHS = 8
"""Lengths of a batch that are named; the rest are counted."""


@dataclass(frozen=True)
class Spot:
    """One element of a window."""

    expected: str
    got: str
    first: bool
    """Whether it is the difference that the finding names."""

    @property
    def differs(self) -> bool:
        """Whether the element is wrong."""
        return self.expected != self.got


@dataclass(frozen=True)
class Window:
    """A window: rows of spots, None where the leaf defines nothing."""

    caption: str
    batch: str
    """The round's inputs in words."""
    columns: tuple[int, ...]
    rows: tuple[tuple[int, tuple[Spot | None, ...]], ...]

    def near(self, rows: int, columns: int) -> Window:
        """Return the window cut to so many rows and columns on each side of the first difference."""
        at = [
            (n, m)
            for n, (_, spots) in enumerate(self.rows)
            for m, one in enumerate(spots)
            if one and one.first
        ]
        if not at:
            return self
        (n, m), *_ = at
        across = slice(max(m - columns, 0), m + columns + 1)
        kept = self.rows[max(n - rows, 0) : n + rows + 1]
        return replace(
            self, columns=self.columns[across], rows=tuple((row, spots[across]) for row, spots in kept)
        )


def window(around: Around, finding: Finding) -> Window:
    """Lay the neighbours of a finding's first difference out by row and column."""
    rows = sorted({one.row for one in around.elements})
    columns = sorted({one.column for one in around.elements})
    first = finding.first
    spots = {
        (one.row, one.column): Spot(
            one.expected, one.got, first is not None and (one.row, one.column) == (first.row, first.column)
        )
        for one in around.elements
    }
    request = f", request {around.request}" if around.request >= 0 else ""
    more = f" and {len(around.lengths) - LENGTHS} more" if len(around.lengths) > LENGTHS else ""
    return Window(
        caption=f"{finding.field} of step {around.step}, round {around.round_name}{request}",
        batch=f"{around.why}{'; ' if around.why else ''}lengths {listed(around.lengths[:LENGTHS])}{more}",
        columns=tuple(columns),
        rows=tuple((row, tuple(spots.get((row, column)) for column in columns)) for row in rows),
    )
