"""The address check: host values that a graph froze, from its capture on."""

from __future__ import annotations

from dataclasses import replace

import pytest

from harness.checks import address
from harness.checks.subject import Subject
from harness.observation import HostFact, Observation
from harness.truth import Truth
from tests.faulty import Bends, bent_subject
from tests.helpers import make_case, make_program, tiny_model

MODEL = tiny_model()
BATCHES = (((65, 257, 900, 13), (3, 1, 4, 2)), ((600, 700, 10), (5, 6, 7)))


@pytest.fixture(scope="module")
def plain() -> Observation:
    return bent_subject(make_case(MODEL), make_program(MODEL, 4, BATCHES), Bends()).observation


def with_width(observation: Observation, declared: str, *there: str) -> Observation:
    """Declare a host value `width` and hang one beside the tensors of the first steps, one value a step."""
    bucket = observation.case.bucket
    hosts = tuple(HostFact(step, bucket, "width", value) for step, value in enumerate(there))
    walks = tuple(replace(walk, hosts=(*walk.hosts, *hosts)) for walk in observation.walks)
    expectation = replace(observation.expectation, host_values={"width": declared})
    return replace(observation, walks=walks, expectation=expectation)


def found(observation: Observation) -> list[tuple[str, tuple[int, ...]]]:
    outcome = address.check(Subject.of(observation, Truth(), golden_checked=False))
    return [(finding.kind, finding.steps) for finding in outcome.findings]


def test_the_declared_value_in_every_step_is_right(plain: Observation) -> None:
    steps = plain.case.backends
    assert found(with_width(plain, "1024", *["1024"] * steps)) == []


def test_a_value_that_was_wrong_already_at_capture_is_found(plain: Observation) -> None:
    values = ["1024"] * plain.case.backends
    values[1] = "512"
    assert found(with_width(plain, "1024", *values)) == [("host_wrong", (1,))]


def test_a_step_without_the_value_is_found(plain: Observation) -> None:
    values = ["1024"] * (plain.case.backends - 1)
    assert found(with_width(plain, "1024", *values)) == [("host_wrong", (plain.case.backends - 1,))]
