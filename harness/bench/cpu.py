"""Figures of the harness itself: the CPU matrix end to end, and the comparison of ten million elements."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
from rich.console import Console

from harness import session
from harness.compare import compare
from harness.report.tally import tally

if TYPE_CHECKING:
    from harness.options import RunOptions

ELEMENTS = 10_000_000
REPEATS = 5


def cpu(options: RunOptions, console: Console) -> Iterator[str]:
    """Yield lines: the comparison, then the matrix of `options` with its rates. Progress on `console`."""
    yield f"comparison        {compare_seconds():8.3f} s for {ELEMENTS:,} equal int32 elements, bit for bit"
    outcome = session.verify([options], console)
    total = tally(outcome.results, outcome.seconds)
    refreshes = sum(result.refreshes for result in outcome.results)
    yield f"matrix            {total.seconds:8.1f} s wall time, {total.cases:,} cases"
    for name, number in (("elements", total.elements), ("checks", total.checks), ("refreshes", refreshes)):
        yield f"{name:<18}{number / total.seconds:8,.0f} per second, {number:,} in all"
    found = "nothing unexpected" if not total.unexpected else f"{total.unexpected} unexpected findings"
    yield f"verdict           {found}; run `replay-harness verify` for the report"


def compare_seconds(elements: int = ELEMENTS, repeats: int = REPEATS) -> float:
    """Return the best of `repeats` times, seconds, to compare two equal int32 arrays of `elements`."""
    expected = np.arange(elements, dtype=np.int32)
    got = expected.copy()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        mismatch = compare(expected, got)
        times.append(time.perf_counter() - start)
        assert mismatch is None, mismatch
    return min(times)
