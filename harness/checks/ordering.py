"""Claim: a replay that is still reading never sees the next round."""

from __future__ import annotations

from harness.checks.computed import counterpart, equals_round, output_difference
from harness.checks.subject import Findings, Outcome, State, Subject
from harness.observation import OUT_OF_RANGE, Replay, RoundRecord
from harness.types import Drill

_WAIT = "the refresh runs on another stream and does not wait for the replay before it"


def check(subject: Subject) -> Outcome:
    """Judge delayed replays: every leaf read and every output belongs to the replay's own round."""
    observation = subject.observation
    held = any(record.replay is not None and record.replay.delayed for record in observation.rounds)
    if observation.case.drill is not Drill.DELAYED and not held:
        return Outcome((), 0, "only the delayed drill holds a replay back")
    found = subject.findings("ordering")
    elements = 0
    for record in observation.rounds:
        replay = record.replay
        if replay is None or not replay.delayed:
            continue
        states = subject.states[record.index]
        following = (
            observation.rounds[record.index + 1] if record.index + 1 < len(observation.rounds) else None
        )
        for cell in replay.read:
            expected = subject.expected(record, cell.name, cell.step)
            elements += observation.values[cell.value].size
            right = states.get((cell.step, cell.name), State.RIGHT) is State.RIGHT
            if expected is None or cell.value == expected[1] or not right:
                continue  # right, or its fault is stated already
            after = None if following is None else subject.expected(following, cell.name, cell.step)
            new = after is not None and cell.value == after[1]
            differing, first = subject.difference(
                record, cell, "equals the next round's value" if new else ""
            )
            found.add(
                "saw_next_round" if new else "torn_read",
                f"step {cell.step}'s delayed replay of round {record.name} read a {cell.name} that is"
                f" {'the next round' if new else 'not its own round'}'s",
                subject=cell.name, bucket=subject.round(record).bucket, step=cell.step,
                round_name=record.name, elements=differing, first=first,
                hint=_WAIT,
            )  # fmt: skip
        for line in replay.races:
            message = f"while the replay of round {record.name} was held back: {line}"
            found.add("race", message, round_name=record.name, hint=_WAIT)
        if following is not None:
            elements += _after(subject, following, replay, found)
        elements += _computed(subject, record, replay, found)
    return Outcome(found.result(), elements)


def _computed(subject: Subject, record: RoundRecord, replay: Replay, found: Findings) -> int:
    """What a delayed replay computed is what the ordinary path computes of the same inputs."""
    ordinary, other = subject.ordinary, subject.counterpart(record)
    if ordinary is None or other is None or other.replay is None:
        return 0
    elements = 0
    for cell in replay.outputs:
        got = subject.observation.values[cell.value]
        elements += got.size
        right = counterpart(subject, record, cell)
        if cell.name == OUT_OF_RANGE or (right is not None and right.value == cell.value):
            continue
        differing, first = 0, None
        if right is not None:
            note = equals_round(subject, record, cell)
            differing, first = output_difference(subject, ordinary.values[right.value], got, note)
        found.add(
            "late_output",
            f"{cell.name} of step {cell.step} in the delayed replay of round {record.name} differs",
            subject=cell.name, step=cell.step, round_name=record.name, elements=differing, first=first,
            hint=_WAIT,
        )  # fmt: skip
    return elements


def _after(subject: Subject, following: RoundRecord, replay: Replay, found: Findings) -> int:
    """Once all is done, the leaves hold what the refresh issued meanwhile should have written."""
    observation, states = subject.observation, subject.states[following.index]
    elements = 0
    for cell in replay.after:
        expected = subject.expected(following, cell.name, cell.step)
        elements += observation.values[cell.value].size
        right = states.get((cell.step, cell.name), State.RIGHT) is State.RIGHT
        if expected is None or cell.value == expected[1] or not right:
            continue
        differing, first = subject.difference(following, cell)
        found.add(
            "refreshed_too_early",
            f"{cell.name} of step {cell.step} is wrong after a refresh for round {following.name} that was"
            " issued while a replay was held back",
            subject=cell.name, bucket=subject.round(following).bucket, step=cell.step,
            round_name=following.name, elements=differing, first=first,
            hint="the refresh did not wait for the inputs that are staged before it",
        )  # fmt: skip
    return elements
