"""Claim: a draft forward changes no metadata byte and binds no attribute."""

from __future__ import annotations

from harness.checks.subject import Findings, Outcome, Subject, staged
from harness.fields import COUNTER, Dims
from harness.observation import Capture, Observation


def check(subject: Subject) -> Outcome:
    """Judge writes and leaf sets while captured, and bytes before and after each replay."""
    observation = subject.observation
    found = subject.findings("readonly")
    facts = 0
    for capture in observation.captures:
        facts += 1
        dims = Dims.of(observation.case, capture.bucket)
        for entry in capture.forward_writes:
            if staged(dims, entry.name):
                continue  # the forward moves the runner's inputs on to the next draft step
            if entry.name.rpartition("/")[2] == COUNTER:
                continue  # a forward counts in it, and has to leave it zero: judged around each replay
            where = f"while bucket {capture.bucket} was captured"
            message = f"the forward wrote {entry.name} of step {entry.step} {where}"
            found.add(
                "forward_write", message, subject=entry.name, bucket=capture.bucket, step=entry.step,
                hint="shared metadata is read by every later step: a forward may only read it",
            )  # fmt: skip
        if not capture.error and observation.walks:
            facts += _bound(observation, capture, found)
    for record in observation.rounds:
        replay = record.replay
        if replay is None:
            continue
        facts += 1
        for name in replay.inputs_changed:
            message = f"the replay of round {record.name} changed its input {name}"
            found.add("input_written", message, subject=name, round_name=record.name)
        for change in replay.changed:
            if subject.staged(record, change.name):
                continue
            message = (
                f"the replay of round {record.name} changed {change.bytes} bytes of {change.name},"
                f" step {change.step}, first at element {change.first}"
            )
            found.add(
                "bytes_changed", message, subject=change.name, bucket=subject.round(record).bucket,
                step=change.step, round_name=record.name, elements=change.bytes,
                hint="a kernel of the forward writes into metadata, in place or past its own buffer's end",
            )  # fmt: skip
        for step, before, after in replay.counter_nonzero:
            message = (
                f"KV counter of step {step} is not zero around round {record.name}:"
                f" {before} elements before, {after} after"
            )
            found.add(
                "counter_dirty", message, subject=COUNTER, step=step,
                round_name=record.name, hint="a launch must leave its counter as it found it: zero",
            )  # fmt: skip
    return Outcome(found.result(), facts)


def _bound(observation: Observation, capture: Capture, found: Findings) -> int:
    """A forward may bind no attribute: the same leaves and host values before and after its capture.

    No code of the system runs in a replay, so its capture is where it could.
    """
    before, after = observation.walks[capture.walk_before], observation.walks[capture.walk]
    where = f"while bucket {capture.bucket} was captured"
    old = {(leaf.step, leaf.bucket, leaf.name): leaf for leaf in before.leaves}
    new = {(leaf.step, leaf.bucket, leaf.name): leaf for leaf in after.leaves}
    for step, bucket, name in sorted(key for key in old.keys() | new.keys() if old.get(key) != new.get(key)):
        verb = "removed" if (step, bucket, name) not in new else "bound"
        message = f"the forward {verb} {name} of step {step} {where}"
        found.add("bound", message, subject=name, bucket=bucket, step=step)
    hosts = {(fact.step, fact.bucket, fact.name): fact.value for fact in before.hosts}
    for fact in after.hosts:
        key = fact.step, fact.bucket, fact.name
        if hosts.get(key) != fact.value and key not in old:
            message = f"the forward set {fact.name} of step {fact.step} to {fact.value} {where}"
            found.add("host_set", message, subject=fact.name, bucket=fact.bucket, step=fact.step)
    return len(old)
