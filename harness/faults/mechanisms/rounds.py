"""Changes of a case's rounds: what happens between them, and rounds that prove too little."""

from __future__ import annotations

from dataclasses import replace

from harness.faults.catalogue import Rounds
from harness.rounds import Disturbance, Program


def captured_batch_only(program: Program) -> Program:
    """Return only replays of the captured batches, on the captured pages."""
    rounds = tuple(
        replace(program.capture[bucket], name=f"b{bucket}.same{index}")
        for bucket in program.buckets
        for index in range(3)
    )
    return replace(program, rounds=rounds, before={})


def happening(disturbance: Disturbance, *before: int) -> Rounds:
    """Return the change: this happens before the rounds with these indices, too."""

    def change(program: Program) -> Program:
        events = dict(program.before)
        for index in before:
            events[index] = (*events.get(index, ()), disturbance)
        return replace(program, before=events)

    return change
