"""Claim: a refresh writes what its path declares, as often as it declares, and the ledger saw every write."""

from __future__ import annotations

from harness.checks.subject import Findings, Outcome, Subject
from harness.observation import Expectation, LedgerEntry, Span


def check(subject: Subject) -> Outcome:
    """Compare every refresh's ledger and spans with the declared ones; in-graph, those of the capture."""
    observation = subject.observation
    found = subject.findings("refresh")
    facts = 0
    in_graph = observation.case.path.in_graph
    if in_graph:
        for capture in observation.captures:
            where = f"capture of bucket {capture.bucket}"
            expectation = observation.expected_of(capture.bucket)
            facts += _ledger(expectation.writes, capture.refresh_writes, where, "", found)
            facts += _spans(expectation, capture.refresh_spans, where, "", found)
    for record in observation.rounds:
        for refresh in record.refreshes:
            if not in_graph:
                where = f"round {record.name}"
                expectation = observation.expected_of(subject.round(record).bucket)
                inputs = subject.truths[record.index].inputs
                declared = expectation.ledger(padded=inputs.live < inputs.bucket)
                facts += _ledger(declared, refresh.ledger, where, record.name, found)
                facts += _spans(expectation, refresh.spans, where, record.name, found)
            for entry in refresh.staging:
                if subject.staged(record, entry.name):
                    continue  # a view of what staging is there to write
                found.add(
                    "written_while_staged",
                    f"{entry.name} of step {entry.step} was written {entry.writes} times while the inputs of"
                    f" round {record.name} were put in place",
                    subject=entry.name, step=entry.step, round_name=record.name,
                    hint="a second refresh, outside the one that the path declares",
                )  # fmt: skip
            for name in refresh.inputs_changed:
                found.add(
                    "input_written", f"the refresh of round {record.name} changed its input {name}",
                    subject=name, round_name=record.name,
                    hint="the next step of the server reads the same tensor",
                )  # fmt: skip
            for step, name, changed in refresh.unattributed:
                found.add(
                    "unattributed",
                    f"{changed} bytes of {name}, step {step}, changed without a write in the ledger",
                    subject=name, step=step, round_name=record.name, elements=changed,
                    hint="something writes past the dispatcher: another thread, NumPy, a raw pointer",
                )  # fmt: skip
    return Outcome(found.result(), facts)


def _ledger(
    declared: tuple[LedgerEntry, ...],
    ledger: tuple[LedgerEntry, ...],
    where: str,
    round_name: str,
    found: Findings,
) -> int:
    expected = {(entry.step, entry.name): entry.writes for entry in declared}
    actual = {(entry.step, entry.name): entry.writes for entry in ledger}
    for key in sorted(expected.keys() | actual.keys()):
        step, name = key
        wanted, got = expected.get(key, 0), actual.get(key, 0)
        if wanted == got:
            continue
        if wanted == 0:
            kind, hint = "unexpected_write", "this leaf is no part of this path's refresh, or of this bucket"
        elif got == 0:
            kind, hint = "not_written", "the refresh leaves this leaf out"
        else:
            kind, hint = "write_count", "a step refreshes again, or only partly, what the path refreshes once"
        message = f"{name} of step {step} written {got} times in {where}, declared {wanted}"
        found.add(kind, message, subject=name, step=step, round_name=round_name, hint=hint)
    return len(expected.keys() | actual.keys())


def _spans(
    expectation: Expectation, spans: tuple[Span, ...], where: str, round_name: str, found: Findings
) -> int:
    actual: dict[str, int] = {}
    for span in spans:
        actual[span.name] = actual.get(span.name, 0) + 1
        if span.writes == 0 and expectation.spans.get(span.name, 0):
            message = f"{span.name} ran in {where} (step {span.step}) and wrote nothing"
            found.add("empty_span", message, subject=span.name, step=span.step, round_name=round_name)
    names = sorted((expectation.spans.keys() | actual.keys()) - {"refresh", "forward"})
    for name in names:
        wanted, got = expectation.spans.get(name, 0), actual.get(name, 0)
        if wanted != got:
            message = f"{got} x {name} in {where}, declared {wanted}"
            hint = "refreshed once per step instead of once, or not at all"
            found.add("span_count", message, subject=name, round_name=round_name, hint=hint)
    return len(names)
