"""Claim: memory is shared exactly where the path and the specification say so, in every bucket and leaf."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod

from harness.checks.subject import Findings, Outcome, Subject
from harness.fields import COUNTER, RUNNER, Dims, FieldSpec, Sharing, fields_for
from harness.observation import LeafFact, Walk
from harness.types import Path

_VIEWS = {
    Sharing.VIEW_OF_LENGTHS: "cache_seqlens_int32",
    Sharing.VIEW_OF_EXPANDED: "dsa_seqlens_expanded",
}
_COPY = "step built its own leaf instead of taking step 0's object for this bucket"


def check(subject: Subject) -> Outcome:
    """Judge every distinct walk: sharing between steps, overlaps within a step and across buckets."""
    observation = subject.observation
    found = subject.findings("aliasing")
    facts = 0
    for walk in observation.walks:
        facts += len(walk.leaves)
        if observation.expectation.shared:
            _shared(subject, walk, found)
        else:
            _apart(walk, found)
        _counters(walk, found)
        _counter_sizes(subject, walk, found)
        _overlaps(subject, walk, found)
    facts += _active(subject, found)
    findings, case = found.result(), observation.case
    if not findings and case.path in (Path.SHARED, Path.SHARED_IN_GRAPH) and not case.sharing_applies:
        return Outcome((), facts, "one backend (S = 2, or a single-backend mode) has nothing to share with")
    return Outcome(findings, facts)


def _shared(subject: Subject, walk: Walk, found: Findings) -> None:
    """Steps 1.. occupy exactly step 0's bytes and own nothing but what the path declares."""
    first = {(leaf.bucket, leaf.name): leaf for leaf in walk.leaves if leaf.step == 0 and leaf.bucket}
    for step in range(1, subject.observation.case.backends):
        own = {(leaf.bucket, leaf.name): leaf for leaf in walk.leaves if leaf.step == step and leaf.bucket}
        for key in sorted(first.keys() | own.keys()):
            bucket, name = key
            one, other = first.get(key), own.get(key)
            if one is None or other is None:
                where = "step 0" if one is None else f"step {step}"
                message = f"{name} of bucket {bucket} is missing in {where}"
                found.add("leaf_missing", message, subject=name, bucket=bucket, step=step, hint=_COPY)
            elif _place(one) != _place(other):
                message = f"{name} of bucket {bucket}, step {step}, does not occupy step 0's bytes"
                found.add("not_shared", message, subject=name, bucket=bucket, step=step, hint=_COPY)
    allowed = set(subject.observation.expectation.state_leaves)
    for leaf in walk.leaves:
        if leaf.step > 0 and leaf.bucket == 0 and leaf.name not in allowed and leaf.stop > leaf.start:
            message = f"step {leaf.step} owns {leaf.name} ({leaf.stop - leaf.start} bytes) though it shares"
            hint = "graph state of steps 1.. was initialised in full"
            found.add("owns_state", message, subject=leaf.name, step=leaf.step, hint=hint)


def _apart(walk: Walk, found: Findings) -> None:
    """Without sharing no two steps have a byte in common."""
    for one, other in _overlapping(walk.leaves):
        if one.step != other.step:
            later = max(one, other, key=lambda leaf: leaf.step)
            message = (
                f"{other.name} of step {other.step} overlaps {one.name} of step {one.step}"
                " though this path does not share"
            )
            found.add("steps_overlap", message, subject=later.name, bucket=later.bucket, step=later.step)


def _counters(walk: Walk, found: Findings) -> None:
    """KV counters are disjoint from everything else, on every path."""
    for one, other in _overlapping(walk.leaves):
        if COUNTER in (one.name, other.name):
            message = (
                f"{COUNTER}: {one.name} of step {one.step} and {other.name} of step {other.step} overlap;"
                " two launches in flight would count in one buffer"
            )
            found.add("counter_shared", message, subject=COUNTER, step=max(one.step, other.step))


def _counter_sizes(subject: Subject, walk: Walk, found: Findings) -> None:
    """Where there are KV counters, every step has one of its own that is large enough."""
    observation = subject.observation
    least = observation.expectation.counter_elements
    if not least:
        return
    sizes = {leaf.step: prod(leaf.shape) for leaf in walk.leaves if leaf.name == COUNTER and not leaf.bucket}
    for step in range(observation.case.backends):
        if sizes.get(step, 0) < least:
            message = f"{COUNTER} of step {step} has {sizes.get(step, 0)} elements, {least} are declared"
            hint = "a launch past its end counts in foreign memory, or in a private buffer that a graph frees"
            found.add("counter_small", message, subject=COUNTER, step=step, hint=hint)


def _overlaps(subject: Subject, walk: Walk, found: Findings) -> None:
    """Within a step, and across buckets of one backend, only declared overlaps occur."""
    case = subject.observation.case
    buckets = {leaf.bucket for leaf in walk.leaves if leaf.bucket}
    dimensions = {bucket: Dims.of(case, bucket) for bucket in buckets}
    fields = {bucket: fields_for(dims) for bucket, dims in dimensions.items()}
    sharing = {
        bucket: {name: field.sharing(dimensions[bucket]) for name, field in known.items()}
        for bucket, known in fields.items()
    }
    _runner_views(walk, fields, found)
    for one, other in _overlapping(leaf for leaf in walk.leaves if leaf.bucket):
        if one.step != other.step:
            continue
        bases = [
            fields[leaf.bucket][leaf.name].view_of
            for leaf in (one, other)
            if leaf.name in fields[leaf.bucket]
        ]
        if len(bases) == 2 and bases[0] and bases[0] == bases[1]:
            continue  # views of one buffer of the runner's
        if one.bucket == other.bucket:
            if not _declared_view(sharing[one.bucket], one, other):
                message = f"{one.name} and {other.name} of step {one.step} overlap; not a declared view"
                found.add("leaves_overlap", message, subject=other.name, bucket=one.bucket, step=one.step)
        elif (
            one.name != other.name
            or sharing[one.bucket].get(one.name, Sharing.OWN) is not Sharing.BUCKET_SLICE
        ):
            message = f"{other.name} of bucket {other.bucket} overlaps {one.name} of bucket {one.bucket}"
            found.add("buckets_overlap", message, subject=other.name, bucket=other.bucket, step=one.step)


def _runner_views(walk: Walk, fields: Mapping[int, Mapping[str, FieldSpec]], found: Findings) -> None:
    """What is declared a view of the runner's buffers lies in them, in every step and bucket."""
    buffers = {leaf.name.removeprefix(f"{RUNNER}."): leaf for leaf in walk.leaves if not leaf.bucket}
    for leaf in walk.leaves:
        spec = fields.get(leaf.bucket, {}).get(leaf.name)
        if spec is None or not spec.view_of or leaf.start == leaf.stop:
            continue
        base = buffers.get(spec.view_of)
        if (
            base is None
            or base.region != leaf.region
            or not base.start <= leaf.start <= leaf.stop <= base.stop
        ):
            message = f"{leaf.name} of step {leaf.step} does not lie in the runner's {spec.view_of}"
            found.add(
                "not_a_view", message, subject=leaf.name, bucket=leaf.bucket, step=leaf.step,
                hint="a copy made while the metadata was built, which the runner no longer writes",
            )  # fmt: skip


def _declared_view(sharing: dict[str, Sharing], one: LeafFact, other: LeafFact) -> bool:
    """Two leaves of one step may overlap if they are views of the same base, the base included."""
    bases = {_VIEWS.get(sharing.get(leaf.name, Sharing.OWN), leaf.name) for leaf in (one, other)}
    return len(bases) == 1


def _active(subject: Subject, found: Findings) -> int:
    """After a refresh every step's active metadata is the bucket's own."""
    facts = 0
    walks = subject.observation.walks
    in_graph = subject.observation.case.path.in_graph
    for record in subject.observation.rounds:
        bucket = subject.round(record).bucket
        overtaken = in_graph and record.replay is not None and record.replay.delayed
        for refresh in record.refreshes:
            if refresh.walk >= len(walks) or overtaken:
                continue  # overtaken: the next round was staged before this walk
            for step, active in enumerate(walks[refresh.walk].active):
                facts += 1
                if active != bucket:
                    message = (
                        f"step {step} has bucket {active}'s metadata active in a round of bucket {bucket}"
                    )
                    found.add(
                        "wrong_active", message, bucket=bucket, step=step, round_name=record.name,
                        hint="the step was not pointed at this bucket's metadata before the replay",
                    )  # fmt: skip
    return facts


def _place(leaf: LeafFact) -> tuple[object, ...]:
    return leaf.region, leaf.start, leaf.stop, leaf.shape, leaf.stride, leaf.dtype


def _overlapping(leaves: Iterator[LeafFact] | tuple[LeafFact, ...]) -> Iterator[tuple[LeafFact, LeafFact]]:
    """Yield pairs of leaves that have bytes in common, by a sweep over each region's intervals."""
    ordered = sorted(
        (leaf for leaf in leaves if leaf.stop > leaf.start), key=lambda leaf: (leaf.region, leaf.start)
    )
    open_: list[LeafFact] = []
    for leaf in ordered:
        open_ = [other for other in open_ if other.region == leaf.region and other.stop > leaf.start]
        for other in open_:
            yield tuple(sorted((other, leaf), key=lambda one: (one.step, one.bucket, one.name)))  # type: ignore[misc]
        open_.append(leaf)
