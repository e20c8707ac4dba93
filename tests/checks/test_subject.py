"""What checks look at: right values, differences, states."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from harness.checks.computed import by_row, output_difference
from harness.checks.subject import State, Subject, first_difference
from harness.fields import Live
from harness.findings import Difference
from tests.checks.sheet import Sheet, driven, plus, specified, truth


def test_goldens_are_checked_unless_they_are_switched_off() -> None:
    observation = driven("shared").observation
    assert Subject.of(observation, truth()).golden_checked
    assert not Subject.of(observation, truth(), golden_checked=False).golden_checked


def test_a_leaf_without_a_right_value_differs_in_nothing() -> None:
    subject = driven("shared")
    record = subject.observation.rounds[0]
    cell = record.refreshes[0].cells[0]
    assert subject.difference(record, cell) == (0, None)
    assert subject.difference(record, replace(cell, name="made_up")) == (0, None)


def test_a_difference_of_a_leaf_that_no_table_has_is_placed_by_its_element() -> None:
    right = driven("shared").truths[0]
    array = np.arange(4)
    assert first_difference(right, "made_up", array, array.copy()) == (0, None)
    other = plus(5, 3)(array.copy())
    assert first_difference(right, "made_up", array, other) == (1, Difference(3, 0, "3", "8", ""))


def test_only_what_is_stale_is_of_another_round() -> None:
    sheet = Sheet.of("shared")
    last = "rounds.2.refreshes.0.cells"
    old = sheet.observation.rounds[1].refreshes[0].cells[0]
    sheet.cells(last, old.name, value=old.value)
    sheet.cells(last, "cu_seqlens_k", array=plus(1))
    sheet.cells(last, "topk_v2_plan", array=plus(1), poisoned=1)
    sheet.cells(last, "dsa_cu_seqlens_k", name="made_up")
    found = {judged.state: judged.stale_of for judged in sheet.judged().judged}
    assert found == {
        State.RIGHT: "",
        State.STALE: "round b4.01",
        State.WRONG: "",
        State.POISONED: "",
        State.UNKNOWN: "",
    }


def test_a_difference_is_placed_by_the_fields_of_its_step() -> None:
    with specified():
        subject = driven("growing")
        truth_of_round = subject.truths[2]
        second = replace(
            truth_of_round.fields["twice"], live=Live.MASKED, mask=lambda dims, inputs: np.arange(4) > 1
        )
        later = tuple(replace(one, fields={**one.fields, "twice": second}) for one in truth_of_round.later)
        subject = replace(subject, truths=(*subject.truths[:2], replace(truth_of_round, later=later)))
        cell = next(cell for cell in subject.observation.rounds[2].refreshes[0].cells if cell.name == "twice")
        for step, row in ((1, 2), (2, 2)):
            count, first = subject.difference(subject.observation.rounds[2], replace(cell, step=step))
            assert count == 4
            assert first is not None
            assert first.row == row


def test_outputs_that_are_equal_or_empty() -> None:
    subject = driven("shared")
    array = np.arange(6.0).reshape(2, 3)
    assert output_difference(subject, array, array.copy()) == (0, None)
    assert output_difference(subject, array, plus(1, 4)(array.copy())) == (
        1,
        Difference(1, 1, "4.0", "5.0", ""),
    )
    assert output_difference(subject, array[:0], array[:0].copy()) == (0, None)
    assert by_row(np.zeros((0, 16))).shape == (0, 0)
    assert by_row(np.zeros((2, 3, 4))).shape == (2, 12)
