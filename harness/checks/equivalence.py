"""Claim: every defined element equals the oracle's and the ordinary path's, fusion on or off."""

from __future__ import annotations

from harness.checks.subject import Findings, Judged, Outcome, State, Subject
from harness.observation import RoundRecord


def check(subject: Subject) -> Outcome:
    """Judge cells that are neither poisoned nor stale (those are freshness's) against both references."""
    found = subject.findings("equivalence")
    elements = 0
    for judged in subject.judged:
        elements += subject.observation.values[judged.cell.value].size
        if judged.state is State.WRONG:
            _wrong(subject, judged, found)
        elif judged.state is State.UNKNOWN:
            name = judged.cell.name
            message = f"{name} has no expected value: neither a formula nor a reference of the system"
            hint = "a leaf that the field table does not know: describe it in harness/fields.py"
            found.add("unknown_leaf", message, subject=name, step=judged.cell.step, hint=hint)
    elements += _against_ordinary(subject, found)
    return Outcome(found.result(), elements)


def _wrong(subject: Subject, judged: Judged, found: Findings) -> None:
    cell, record = judged.cell, judged.record
    differing, first = subject.difference(record, cell)
    found.add(
        "wrong_value",
        f"{cell.name} of step {cell.step} differs from the oracle in {differing} elements"
        f" of round {record.name}",
        subject=cell.name, bucket=subject.round(record).bucket, step=cell.step, round_name=record.name,
        elements=differing, first=first,
        hint="wrong row, stride, rounding, mode or fill value; or partly refreshed",
    )  # fmt: skip


def _against_ordinary(subject: Subject, found: Findings) -> int:
    """Compare the last refresh of each round with the ordinary path's, step 0's and every other's."""
    if subject.ordinary is None:
        return 0
    elements = 0
    for record in subject.observation.rounds:
        other = subject.counterpart(record)
        if other is None:
            message = f"the ordinary path has no round {record.name}"
            found.add("no_counterpart", message, round_name=record.name)
            continue
        elements += _round(subject, record, other, found)
    return elements


def _round(subject: Subject, record: RoundRecord, other: RoundRecord, found: Findings) -> int:
    assert subject.ordinary is not None
    states = subject.states[record.index]
    advances = bool(subject.truths[record.index].later)
    cells = {(cell.step, cell.name): cell for cell in other.refreshes[-1].cells if advances or not cell.step}
    elements = 0
    for cell in record.refreshes[-1].cells:
        counterpart = cells.get((cell.step if advances else 0, cell.name))
        got = subject.observation.values[cell.value]
        elements += got.size
        if states.get((cell.step, cell.name)) not in (State.RIGHT, State.UNKNOWN):
            continue  # stated already
        if subject.padded_otherwise(record, cell.name):
            continue  # the oracle has judged it: only padded rows differ between the paths
        if counterpart is None or counterpart.value != cell.value:
            message = f"{cell.name} of step {cell.step} differs from the ordinary path in round {record.name}"
            found.add(
                "differs_from_ordinary", message, subject=cell.name, bucket=subject.round(record).bucket,
                step=cell.step, round_name=record.name,
                hint="the two paths disagree where the oracle has no opinion, or the ordinary path is wrong",
            )  # fmt: skip
    return elements
