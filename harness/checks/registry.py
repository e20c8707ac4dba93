"""All checks in report order, with what each claims, how it sees it and what usually mends it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from harness.checks import (
    address,
    aliasing,
    equivalence,
    evidence,
    freshness,
    golden,
    ordering,
    output,
    readonly,
    refresh,
    routing,
)
from harness.checks.subject import Outcome, State, Subject
from harness.specification import specification_of


@dataclass(frozen=True)
class Check:
    """One check."""

    name: str
    claim: str
    sees: str
    """How it can tell."""
    mend: str
    """What usually mends a finding."""
    run: Callable[[Subject], Outcome]


def golden_outcome(subject: Subject) -> Outcome:
    """Run the golden check, or say that goldens are switched off."""
    if not subject.golden_checked:
        return Outcome((), 0, "goldens are switched off for this run")
    own = specification_of(subject.observation.case.sut)
    if own is not None and not own.goldens:
        return Outcome((), 0, "no goldens are kept of this system: every field has a formula")
    stated = frozenset(
        (judged.record.index, judged.refresh, judged.cell.step, judged.cell.name)
        for judged in subject.judged
        if judged.state in (State.POISONED, State.STALE, State.WRONG)
    )
    findings, elements = golden.check(subject.observation, subject.golden, stated)
    return Outcome(tuple(findings), elements)


CHECKS: tuple[Check, ...] = (
    Check(
        "aliasing",
        "On the shared path steps 1.. occupy exactly step 0's bytes, for every bucket and every leaf, nested"
        " and optional ones too; on the others steps are disjoint. KV counters are disjoint always.",
        "A recursive walk over every leaf at capture, after each refresh and each replay, as byte intervals"
        " of numbered allocations.",
        "Point the bucket's entry and the active metadata of steps 1.. at step 0's object, in every bucket.",
        aliasing.check,
    ),
    Check(
        "refresh",
        "A refresh writes the leaves that its path declares, as often as it declares, and nothing else.",
        "A ledger of every write (dispatcher, launches), held against the path's declared ledger and span"
        " counts; poison with two sentinels finds writes that the ledger missed.",
        "Refresh once per replay, in step 0; declare a new write where the path really changed.",
        refresh.check,
    ),
    Check(
        "freshness",
        "After a refresh no defined element holds the sentinel or an older round's value.",
        "Every refreshed leaf is filled with a sentinel before the refresh; derived fields are compared with"
        " every earlier round's right value.",
        "Re-derive schedules and plans from this round's lengths, in place, in every step and bucket.",
        freshness.check,
    ),
    Check(
        "address",
        "Storage, offset, shape, stride, dtype and host values of captured leaves stay, and stay alive.",
        "Walks compared with the walk of the capture in force; weak references to storages.",
        "Copy into the captured buffer instead of assigning; size buffers once, before capture.",
        address.check,
    ),
    Check(
        "readonly",
        "A draft forward changes no metadata byte and binds no attribute; KV counters are zero around it.",
        "The ledger while the forward is captured, and a byte comparison around every replay.",
        "Write to a buffer of the forward's own.",
        readonly.check,
    ),
    Check(
        "equivalence",
        "Every defined element equals the oracle's and the ordinary path's, bit for bit, fusion on or off.",
        "The NumPy oracle, and an observation of the ordinary path over the same rounds.",
        "Follow the first differing row and column to the formula in the specification.",
        equivalence.check,
    ),
    Check(
        "output",
        "What each captured step read and computed equals the ordinary path's, bit for bit.",
        "Copies of every leaf made inside the graph, and the attention output of every step.",
        "See what the step read first: the computed difference follows from it.",
        output.check,
    ),
    Check(
        "golden",
        "Values and structure (ledger, alias map) equal the stored, accepted ones.",
        "Goldens keyed by the rounds' inputs; outputs within the tolerance of their dtype.",
        "If the change is meant, update the golden with a reason; the oracle must agree.",
        golden_outcome,
    ),
    Check(
        "routing",
        "The path that ran is the one asked for; nothing fell back, warned or raised.",
        "The system's own seams, its printed lines, its exceptions.",
        "Read the first printed line or exception.",
        routing.check,
    ),
    Check(
        "ordering",
        "A replay that is still reading never sees the next round.",
        "The delayed drill: the next round is staged and refreshed while the replay is held back.",
        "Let the refresh stream wait for the replay that reads the same buffers.",
        ordering.check,
    ),
    Check(
        "evidence",
        "The run proved something: poison landed, lengths changed, padding and populated plans occurred,"
        " every planned round was replayed.",
        "The program's inputs, the poison facts and the replays of the observation.",
        "Extend the case's rounds, or mend what kept a replay from running.",
        evidence.check,
    ),
)
