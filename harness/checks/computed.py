"""Outputs of steps held against each other: what to compare with, where the first difference lies."""

from __future__ import annotations

import numpy as np

from harness.checks.subject import Array, Subject
from harness.compare import decode
from harness.findings import Difference
from harness.observation import OUT_OF_RANGE, Cell, RoundRecord
from harness.types import Precision


def counterpart(subject: Subject, record: RoundRecord, cell: Cell) -> Cell | None:
    """Return the ordinary path's output of the same inputs, step and name; None where it has none.

    A reference of one backend serves every step.
    """
    other = subject.counterpart(record)
    if subject.ordinary is None or other is None or other.replay is None:
        return None
    step = 0 if subject.ordinary.case.backends == 1 else cell.step
    cells = other.replay.outputs
    return next((one for one in cells if (one.step, one.name) == (step, cell.name)), None)


def output_difference(
    subject: Subject, expected: Array, got: Array, note: str = ""
) -> tuple[int, Difference | None]:
    """Return how many elements of an output differ and the first of them.

    The row is the output's own (a request, or a draft token of one), the column counts the elements of
    the row.
    """
    if expected.shape != got.shape or expected.dtype != got.dtype:
        shapes = (f"{expected.dtype}{list(expected.shape)}", f"{got.dtype}{list(got.shape)}")
        return max(expected.size, got.size), Difference(0, 0, *shapes, note=note or "dtype or shape")
    wide, found = by_row(expected), by_row(got)
    differing = np.argwhere(wide != found)
    if not differing.size:
        return 0, None
    row, column = map(int, differing[0])
    texts = (text(subject, wide[row, column]), text(subject, found[row, column]))
    return len(differing), Difference(row, column, *texts, note)


def by_row(values: Array) -> Array:
    """Return an output as `[rows, elements of a row]`."""
    return values.reshape(values.shape[0], -1) if values.size else values.reshape(0, 0)


def text(subject: Subject, value: np.generic) -> str:
    """Return an element as text; bf16, which NumPy lacks, as the number that its bits mean."""
    raw = value.dtype == np.uint16 and subject.observation.case.precision is Precision.BF16
    return str(decode(np.asarray(value)[None], "bfloat16")[0] if raw else value)


def equals_round(subject: Subject, record: RoundRecord, cell: Cell) -> str:
    """Say of which other round an output is, as the ordinary path computes it; empty where of none."""
    for other in reversed(subject.observation.rounds):
        if other.name == record.name:
            continue
        same = counterpart(subject, other, cell)
        if same is not None and same.value == cell.value and cell.name != OUT_OF_RANGE:
            return f"equals the ordinary path's of round {other.name}"
    return ""
