"""Claim: the path that ran is the one asked for; nothing fell back, warned or raised on the way."""

from __future__ import annotations

from harness.checks.subject import Outcome, Subject


def check(subject: Subject) -> Outcome:
    """Compare the route taken with the declared one; every printed line and exception is a finding."""
    observation = subject.observation
    found = subject.findings("routing")
    wanted = observation.expectation.route
    facts = 1
    if observation.rounds and observation.route != wanted:
        found.add(
            "other_path", f"{observation.route or 'no path'} ran where {wanted} has to",
            hint="a gate was not met, a kernel is missing, or an exception was caught on the way",
        )  # fmt: skip
    for line in observation.problems:
        facts += 1
        found.add("raised", line, hint="the system under test raised: the run ended there")
    for capture in observation.captures:
        facts += 1
        for line in capture.printed:
            found.add(
                "printed", f"capture of bucket {capture.bucket} said: {line}", bucket=capture.bucket,
                hint="a warning in a capture usually means that another path was taken",
            )  # fmt: skip
    for record in observation.rounds:
        for refresh in record.refreshes:
            facts += 1
            for line in refresh.printed:
                found.add(
                    "printed", f"refresh of round {record.name} said: {line}", round_name=record.name,
                    hint="a warning in a refresh usually means that another path was taken",
                )  # fmt: skip
    return Outcome(found.result(), facts)
