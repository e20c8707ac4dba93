"""Claim: what each captured step read, and what it computed, equals the ordinary path's, bit for bit."""

from __future__ import annotations

from harness.checks.computed import counterpart, equals_round, output_difference
from harness.checks.subject import Findings, Outcome, State, Subject
from harness.observation import OUT_OF_RANGE, Cell, Replay, RoundRecord


def check(subject: Subject) -> Outcome:
    """Judge every replay; what a delayed replay read is ordering's."""
    found = subject.findings("output")
    elements = 0
    for record in subject.observation.rounds:
        replay = record.replay
        if replay is None:
            continue
        for line in replay.freed:
            found.add("freed_read", f"round {record.name}: {line}", round_name=record.name)
        if replay.delayed:
            continue
        elements += _read(subject, record, replay, found)
        elements += _range(subject, record, replay, found)
        other = subject.counterpart(record)
        if other is not None and other.replay is not None:
            elements += _computed(subject, record, replay, found)
    return Outcome(found.result(), elements)


def _read(subject: Subject, record: RoundRecord, replay: Replay, found: Findings) -> int:
    """What a step read in the graph is the right value; leaves whose fault is stated already are left out."""
    states = subject.states[record.index]
    elements = 0
    for cell in replay.read:
        expected = subject.expected(record, cell.name, cell.step)
        got = subject.observation.values[cell.value]
        elements += got.size
        state = states.get((cell.step, cell.name), State.RIGHT)
        if expected is None or cell.value == expected[1] or state is not State.RIGHT:
            continue
        differing, first = subject.difference(record, cell)
        found.add(
            "read_differs",
            f"step {cell.step} read a {cell.name} in round {record.name} that differs in {differing} elements"
            " from what the refresh left there",
            subject=cell.name, bucket=subject.round(record).bucket, step=cell.step, round_name=record.name,
            elements=differing, first=first,
            hint="the graph reads another buffer than the one refreshed, or an earlier step wrote into it",
        )  # fmt: skip
    return elements


def _range(subject: Subject, record: RoundRecord, replay: Replay, found: Findings) -> int:
    """Ids outside their range are reported where the step's leaves are right: else they are a consequence."""
    blamed = {step for (step, _), state in subject.states[record.index].items() if state is not State.RIGHT}
    count = 0
    for cell in replay.outputs:
        if cell.name != OUT_OF_RANGE or cell.step in blamed:
            continue
        count += 1
        outside = int(subject.observation.values[cell.value].sum())
        if outside:
            message = (
                f"step {cell.step} met {outside} ids or lengths outside their range in round {record.name}"
            )
            hint = "on a GPU this reads or writes foreign memory"
            found.add("out_of_range", message, step=cell.step, round_name=record.name, hint=hint)
    return count


def _computed(subject: Subject, record: RoundRecord, replay: Replay, found: Findings) -> int:
    elements = 0
    for cell in replay.outputs:
        elements += subject.observation.values[cell.value].size
        if cell.name == OUT_OF_RANGE:
            continue
        other = counterpart(subject, record, cell)
        if other is None or other.value != cell.value:
            _differs(subject, record, cell, other, found)
    return elements


def _differs(subject: Subject, record: RoundRecord, cell: Cell, other: Cell | None, found: Findings) -> None:
    assert subject.ordinary is not None
    if other is None:
        message = f"the ordinary path has no output {cell.name} of step {cell.step}"
        found.add("no_counterpart", message, subject=cell.name, step=cell.step, round_name=record.name)
        return
    values = subject.ordinary.values[other.value], subject.observation.values[cell.value]
    differing, first = output_difference(subject, *values, note=equals_round(subject, record, cell))
    found.add(
        "computed_differs",
        f"{cell.name} of step {cell.step} differs from the ordinary path's in {differing} elements of round"
        f" {record.name}",
        subject=cell.name, bucket=subject.round(record).bucket, step=cell.step, round_name=record.name,
        elements=differing, first=first,
        hint="the step worked on other metadata than the ordinary path did",
    )  # fmt: skip
