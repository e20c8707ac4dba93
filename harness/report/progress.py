"""Progress while cases run: a bar on a terminal, a plain line every ten seconds elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from harness.errors import HarnessError
from harness.findings import CaseResult

SECONDS_BETWEEN_LINES = 10.0


class Interrupted(HarnessError):
    """The user stopped the run; the text says how far it came."""


@dataclass
class _Count:
    """What a progress line says."""

    total: int
    """0 where it is not known."""
    done: int = 0
    findings: int = 0
    elements: int = 0
    results: list[CaseResult] = field(default_factory=list)

    def add(self, result: CaseResult) -> None:
        self.results.append(result)
        self.done += 1
        self.findings += sum(1 for finding in result.findings if not finding.known)
        self.elements += result.elements

    def __str__(self) -> str:
        noun = "finding" if self.findings == 1 else "findings"
        of = f" of {self.total}" if self.total else ""
        return f"{self.done}{of} cases, {self.findings} unexpected {noun}"


def follow(
    results: Iterable[CaseResult],
    total: int,
    console: Console,
    clock: Callable[[], float] = time.monotonic,
) -> list[CaseResult]:
    """Collect results as they finish and show how far the run is.

    total: cases to come, 0 where unknown. console: where progress goes (stderr). clock: seconds,
    monotonic. Raises Interrupted on Ctrl-C, after closing `results` so that workers end.
    """
    count = _Count(total)
    try:
        if console.is_terminal:
            _bar(results, count, console)
        else:
            _lines(results, count, console, clock)
    except KeyboardInterrupt:
        close = getattr(results, "close", None)
        if close is not None:
            close()
        raise Interrupted(f"interrupted: {count}") from None
    return count.results


def _bar(results: Iterable[CaseResult], count: _Count, console: Console) -> None:
    columns = (
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left:"),
        TimeRemainingColumn(),
        TextColumn("{task.description}"),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("starting", total=count.total or None)
        for result in results:
            count.add(result)
            progress.update(task, completed=count.done, description=_tail(count))


def _tail(count: _Count) -> str:
    findings = f", {count.findings} unexpected" if count.findings else ""
    return f"{count.elements:,} elements compared{findings}"


def _lines(
    results: Iterable[CaseResult], count: _Count, console: Console, clock: Callable[[], float]
) -> None:
    start = said = clock()
    for result in results:
        count.add(result)
        now = clock()
        if now - said >= SECONDS_BETWEEN_LINES and count.done != count.total:
            said = now
            left = f", about {(now - start) / count.done * (count.total - count.done):.0f} s left"
            since = f"{count}, {now - start:.0f} s{left if count.total else ''}"
            console.print(since, highlight=False, markup=False)
