"""Claim: after a refresh no defined element is the sentinel's or an older round's."""

from __future__ import annotations

from harness.checks.subject import Outcome, State, Subject


def check(subject: Subject) -> Outcome:
    """Judge every defined leaf of every refresh of every step."""
    found = subject.findings("freshness")
    elements = 0
    for judged in subject.judged:
        cell, record = judged.cell, judged.record
        elements += subject.observation.values[cell.value].size
        if judged.state not in (State.POISONED, State.STALE):
            continue
        stale = judged.state is State.STALE
        what = f"the value of {judged.stale_of}" if stale else "the sentinel written before the refresh"
        differing, first = subject.difference(record, cell, f"equals {what}")
        found.add(
            "stale" if stale else "poison_left",
            f"{cell.name} of step {cell.step} holds {what} after the refresh of round {record.name}",
            subject=cell.name, bucket=subject.round(record).bucket, step=cell.step, round_name=record.name,
            elements=differing, first=first,
            hint="derived once and kept under a key that did not change, skipped on this path or step,"
            " or written to a buffer that the graph does not read",
        )  # fmt: skip
    return Outcome(found.result(), elements)
