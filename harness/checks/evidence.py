"""Claim: the run proved something. Too little evidence is a failure, never a pass."""

from __future__ import annotations

from harness.checks.subject import Findings, Outcome, Subject
from harness.fields import Live
from harness.observation import OUT_OF_RANGE, Replay
from harness.types import Drill, Role

_WEAK = "the rounds are too uniform for this case: extend its program"


def check(subject: Subject) -> Outcome:
    """Judge the run itself: poison landed, inputs changed, padding, plans and planned replays occurred."""
    observation = subject.observation
    found = subject.findings("evidence")
    if len(observation.rounds) < 2:
        found.add("too_few_rounds", f"{len(observation.rounds)} rounds ran; one replay proves nothing")
        return Outcome(found.result(), 1)
    missing = [round_.name for round_ in observation.program.rounds[len(observation.rounds) :]]
    if missing:
        found.add("rounds_missing", f"{len(missing)} planned rounds did not run, first {missing[0]}")
    facts = _poison(subject, found)
    facts += _captured(subject, found)
    facts += _judged(subject, found)
    facts += _inputs(subject, found)
    facts += _plans(subject, found)
    facts += _references(subject, found)
    facts += _own_fields(subject, found)
    facts += _pauses(subject, found)
    facts += _replays(subject, found)
    return Outcome(found.result(), facts)


def _poison(subject: Subject, found: Findings) -> int:
    facts = 0
    for record, refresh in ((r, f) for r in subject.observation.rounds for f in r.refreshes):
        truth = subject.truths[record.index]
        for fact in refresh.poison:
            facts += 1
            if not fact.landed:
                message = f"the sentinel did not land in {fact.name} of step {fact.step}"
                found.add("poison_missed", message, subject=fact.name, step=fact.step, round_name=record.name)
        for cell in refresh.cells:
            field = truth.fields.get(cell.name)
            refreshed = field is not None and field.role is Role.REFRESHED
            if refreshed and cell.poisoned is None:
                message = (
                    f"{cell.name} of step {cell.step} was not poisoned: a stale value could pass as fresh"
                )
                found.add("not_poisoned", message, subject=cell.name, step=cell.step, round_name=record.name)
    return facts


def _captured(subject: Subject, found: Findings) -> int:
    captured = {capture.bucket for capture in subject.observation.captures if not capture.error}
    for bucket in subject.observation.program.buckets:
        if bucket not in captured:
            found.add("not_captured", f"bucket {bucket} was not captured", bucket=bucket)
    replayed = {subject.round(r).bucket for r in subject.observation.rounds if r.replay is not None}
    if not replayed:
        found.add("no_replay", "no graph was replayed")
    return len(captured)


def _judged(subject: Subject, found: Findings) -> int:
    """Every defined field of every step is in every refresh."""
    facts = 0
    for record, refresh in ((r, f) for r in subject.observation.rounds for f in r.refreshes):
        truth = subject.truths[record.index]
        seen = {(cell.step, cell.name) for cell in refresh.cells}
        for step in range(subject.observation.case.backends):
            for name in truth.fields:
                facts += 1
                if truth.judged(name) and (step, name) not in seen:
                    message = f"{name} of step {step} does not exist: the specification has it in this mode"
                    found.add("field_missing", message, subject=name, step=step, round_name=record.name)
    return facts


def _inputs(subject: Subject, found: Findings) -> int:
    """Lengths change from round to round and from capture; live batch below the bucket occurs."""
    observation = subject.observation
    rounds = [subject.round(record) for record in observation.rounds]
    seen = {round_.lengths for round_ in rounds}
    if len(seen) < 2:
        found.add("lengths_constant", "every round has the same lengths", hint=_WEAK)
    captures = observation.program.capture
    if all(round_.lengths == captures[round_.bucket].lengths for round_ in rounds):
        found.add("only_capture_batch", "every round replays the captured batch", hint=_WEAK)
    wide = [round_ for round_ in rounds if round_.bucket > 1]
    if wide and all(len(round_.lengths) == round_.bucket for round_ in wide):
        found.add("no_padding", "no round has a live batch below its bucket", hint=_WEAK)
    if wide and all(len(set(round_.lengths)) == 1 for round_ in wide):
        found.add("lengths_equal", "all requests of every round have one length: mixed-up rows cannot show")
    if observation.case.drill is Drill.BUCKET_SWITCH and len({round_.bucket for round_ in rounds}) < 2:
        found.add("no_switch", "the bucket never changed", hint=_WEAK)
    return len(rounds)


def _plans(subject: Subject, found: Findings) -> int:
    """Where plans are written, some round has rows above the threshold, and the plan changes."""
    facts = 0
    names = {name for truth in subject.truths for name, f in truth.fields.items() if f.live is Live.PLAN}
    for name in sorted(names):
        values = [t.expected[name].live for t in subject.truths if t.judged(name)]
        if not values:
            continue  # undefined at these batch sizes: nothing to prove
        if not _reachable(subject, name):
            continue  # no length of this width gets above the lowest threshold
        facts += 1
        if not any(int(value[1]) for value in values):
            message = f"{name} never held a row: lengths stayed below the threshold"
            found.add("plan_empty", message, subject=name, hint=_WEAK)
    return facts


def _references(subject: Subject, found: Findings) -> int:
    """What has no formula changes from round to round, too: else a stale one could not be told."""
    seen: dict[str, set[str]] = {}
    for key, digest in subject.observation.references.items():
        seen.setdefault(key.rpartition("/")[2], set()).add(digest)
    for name, values in sorted(seen.items()):
        if len(values) == 1:
            message = f"the reference of {name} is the same in every round: a stale one could not be told"
            found.add("reference_constant", message, subject=name, hint=_WEAK)
    return len(seen)


def _own_fields(subject: Subject, found: Findings) -> int:
    """So does every field that a system declares by itself: the rounds were designed for DSA's."""
    seen: dict[str, set[str]] = {}
    for truth in subject.truths:
        if truth.dims.own is None or truth.dims.bucket != subject.observation.case.bucket:
            continue
        for name, value in truth.expected.items():
            if truth.fields[name].role is Role.REFRESHED and not truth.fields[name].constant:
                seen.setdefault(name, set()).add(value.digest)
    for name, values in sorted(seen.items()):
        if len(values) == 1:
            message = f"{name} has the same right value in every round: a stale one could not be told"
            hint = "declare it INIT_ONCE, or give the case file rounds in which it differs"
            found.add("field_constant", message, subject=name, hint=hint)
    return len(seen)


def _pauses(subject: Subject, found: Findings) -> int:
    """A pause took the leaves' memory away: what it left in place, the next refresh need not write."""
    for fact in subject.observation.pauses:
        if not fact.zeroed:
            found.add(
                "pause_missed",
                f"{fact.name} of step {fact.step} kept values over a pause",
                subject=fact.name, bucket=fact.bucket, step=fact.step,
                hint="the pause released nothing, so resuming proves nothing",
            )  # fmt: skip
    return len(subject.observation.pauses)


def _reachable(subject: Subject, name: str) -> bool:
    """Whether a row can be long enough for a plan: pooled lengths reach width // P only."""
    dims = subject.truths[0].dims
    lengths = subject.truths[0].fields[name].plan_lengths
    longest = dims.width // dims.pool if "pool" in lengths else dims.width
    return longest > dims.plan.candidates[0][0]


def _replays(subject: Subject, found: Findings) -> int:
    observation = subject.observation
    facts = 0
    computed: dict[str, set[str]] = {}
    replays = 0
    for record in observation.rounds:
        facts += 1
        if record.replay is None:
            message = f"round {record.name} was not replayed: {record.skipped}"
            found.add("not_replayed", message, round_name=record.name)
            continue
        facts += _steps_read(subject, record.replay, record.name, found)
        replays += 1
        for cell in record.replay.outputs:
            if cell.step == 0 and cell.name != OUT_OF_RANGE:
                computed.setdefault(cell.name, set()).add(cell.value)
    if replays > 1 and computed and all(len(values) == 1 for values in computed.values()):
        found.add("outputs_constant", "step 0 computed the same in every round though its inputs differ")
    delayed = [r for r in observation.rounds if r.replay is not None and r.replay.delayed]
    if observation.case.drill is Drill.DELAYED and not delayed:
        found.add("nothing_delayed", "no replay was held back")
    return facts


def _steps_read(subject: Subject, replay: Replay, round_name: str, found: Findings) -> int:
    read = {cell.step for cell in replay.read}
    for step in range(subject.observation.case.backends):
        if step not in read:
            message = f"step {step} read no metadata in the replay of round {round_name}"
            found.add("step_absent", message, step=step, round_name=round_name)
    return len(read)
