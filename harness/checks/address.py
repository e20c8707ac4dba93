"""Claim: every captured leaf stays where the graph found it, alive, from its capture to the last replay.

What a graph freezes besides addresses, host values, has to be right at its capture and the same afterwards.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from harness.checks.subject import Findings, Outcome, Subject
from harness.observation import Capture, Walk

_REBOUND = "assigned instead of copied into, grown on demand, or made anew by an eager call or an eviction"


def check(subject: Subject) -> Outcome:
    """Compare every walk with the walk of the capture in force, per bucket."""
    found = subject.findings("address")
    facts = sum(_frozen(subject, capture, found) for capture in subject.observation.captures)
    frozen = subject.frozen_hosts()
    for capture, walk, name in _in_force(subject):
        captured = subject.observation.walks[capture.walk]
        facts += _compare(captured, walk, capture.bucket, name, found, frozen)
    facts += _built(subject, found)
    return Outcome(found.result(), facts)


def _frozen(subject: Subject, capture: Capture, found: Findings) -> int:
    """Hold the host values that a graph froze against those that its system declares."""
    declared = subject.observation.expected_of(capture.bucket).host_values
    if capture.error or not declared:
        return 0
    hosts = subject.observation.walks[capture.walk].hosts
    there = {(fact.step, fact.name): fact.value for fact in hosts if fact.bucket == capture.bucket}
    steps = sorted({leaf.step for leaf in subject.observation.walks[capture.walk].leaves})
    for step in steps:
        for name, value in declared.items():
            frozen = there.get((step, name), "absent")
            if frozen != value:
                message = f"the graph froze {name} of step {step} as {frozen}; it has to be {value}"
                found.add(
                    "host_wrong", message, subject=name, bucket=capture.bucket, step=step,
                    hint="made from another batch, mode or width than the bucket's",
                )  # fmt: skip
    return len(steps) * len(declared)


def _in_force(subject: Subject) -> Iterator[tuple[Capture, Walk, str]]:
    """Yield (capture, a later walk, round name) while that capture's graph may still be replayed."""
    observation = subject.observation
    for position, capture in enumerate(observation.captures):
        if capture.error:
            continue
        ends = [
            later.before_round
            for later in observation.captures[position + 1 :]
            if later.bucket == capture.bucket
        ]
        last = ends[0] if ends else len(observation.rounds)
        for record in observation.rounds[capture.before_round : last]:
            walks = [refresh.walk for refresh in record.refreshes]
            walks += [record.replay.walk] if record.replay is not None else []
            for walk in dict.fromkeys(walks):
                if walk < len(observation.walks):
                    yield capture, observation.walks[walk], record.name


def _built(subject: Subject, found: Findings) -> int:
    """Hold declared host values against what a build gives: of the batch, or of the capture.

    Where the refresh is in the graph nothing is built between two replays: the values are the capture's.
    """
    observation, facts = subject.observation, 0
    captured = observation.case.path.in_graph
    for record in observation.rounds:
        truth = subject.truths[record.index]
        known = (
            {} if truth.dims.own is None else {host.name: host for host in truth.dims.own.hosts(truth.dims)}
        )
        walks = {refresh.walk for refresh in record.refreshes if refresh.walk < len(observation.walks)}
        for fact in (fact for walk in walks for fact in observation.walks[walk].hosts):
            if fact.bucket != truth.dims.bucket or fact.name not in known:
                continue
            facts += 1
            wanted = repr(known[fact.name].value(truth.dims, truth.inputs, captured))
            if wanted != fact.value:
                message = (
                    f"{fact.name} of step {fact.step} is {fact.value} in round {record.name}, not {wanted}"
                )
                found.add(
                    "host_wrong", message, subject=fact.name, bucket=fact.bucket, step=fact.step,
                    round_name=record.name, hint="a Python value that a build got wrong",
                )  # fmt: skip
    return facts


def _compare(
    captured: Walk, now: Walk, bucket: int, round_name: str, found: Findings, frozen: Collection[str]
) -> int:
    before = {
        (leaf.step, leaf.bucket, leaf.name): leaf for leaf in captured.leaves if leaf.bucket in (0, bucket)
    }
    after = {(leaf.step, leaf.bucket, leaf.name): leaf for leaf in now.leaves}
    for key, leaf in before.items():
        step, where, name = key
        place = f"bucket {where}" if where else "backend state"
        other = after.get(key)
        if other is None:
            message = f"{name} of step {step} ({place}) is gone in round {round_name}"
            found.add(
                "gone", message, subject=name, bucket=where, step=step, round_name=round_name, hint=_REBOUND
            )
        elif leaf.start == leaf.stop and other.shape == leaf.shape:
            continue  # no byte of it is read, wherever it lies
        elif other != leaf:
            changed = "moved" if (other.region, other.start) != (leaf.region, leaf.start) else "reshaped"
            message = (
                f"{name} of step {step} ({place}) {changed} since capture:"
                f" {leaf.dtype}{list(leaf.shape)} stride {list(leaf.stride)}"
                f" -> {other.dtype}{list(other.shape)} stride {list(other.stride)}"
            )
            found.add(
                changed, message, subject=name, bucket=where, step=step, round_name=round_name, hint=_REBOUND
            )
    for step, where, name in now.freed:
        lost = before.get((step, where, name))
        if where in (0, bucket) and (lost is None or lost.start < lost.stop):
            message = f"the storage of {name}, step {step}, that the graph captured was freed"
            found.add(
                "freed", message, subject=name, bucket=where, step=step, round_name=round_name, hint=_REBOUND
            )
    return len(before) + _hosts(captured, now, bucket, round_name, found, frozen)


def _hosts(
    captured: Walk, now: Walk, bucket: int, round_name: str, found: Findings, frozen: Collection[str]
) -> int:
    """A graph froze the Python values that were there: none of them changes, none comes later.

    frozen: what a new build may set otherwise, by declaration.
    """
    hosts = {(fact.step, fact.name): fact.value for fact in captured.hosts if fact.bucket == bucket}
    there = {(leaf.step, leaf.bucket, leaf.name) for leaf in captured.leaves}
    for fact in now.hosts:
        old = hosts.get((fact.step, fact.name))
        key = fact.step, fact.bucket, fact.name
        if fact.bucket == bucket and old is None and key not in there:
            message = f"host value {fact.name} of step {fact.step} came after the capture: {fact.value}"
            found.add(
                "host_late", message, subject=fact.name, bucket=bucket, step=fact.step,
                round_name=round_name, hint="the graph was captured without it and never sees it",
            )  # fmt: skip
        elif fact.bucket == bucket and old not in (None, fact.value) and fact.name not in frozen:
            message = f"host value {fact.name} of step {fact.step} is {fact.value}; the graph froze {old}"
            found.add(
                "host_value", message, subject=fact.name, bucket=bucket, step=fact.step,
                round_name=round_name, hint="a graph keeps the Python value of capture",
            )  # fmt: skip
    return len(hosts)
