"""The lines around a first difference: leaves, what steps read, outputs, replays that were held back."""

import numpy as np
import pytest

from harness.checks.computed import equals_round, output_difference
from harness.findings import Finding
from harness.judge import judge
from harness.neighbours import around, positions
from harness.picture import Around
from harness.sut.protocol import StepOutputs
from harness.types import Drill, Precision
from tests.checks.test_planted import BATCHES, MODEL, stale_schedule, wrong_row
from tests.faulty import Bends, bent_subject
from tests.helpers import make_case, make_program

PROGRAM = make_program(MODEL, 4, BATCHES[:3])


def shown_of(bends: Bends, check: str, kind: str, **case: object) -> tuple[Finding, Around]:
    """Return the first finding of a kind, and its neighbours."""
    subject = bent_subject(make_case(MODEL, **case), PROGRAM, bends)  # type: ignore[arg-type]
    findings = judge(subject).findings
    windows = around(subject, findings)
    return next(
        (findings[one.finding], one)
        for one in windows
        if (findings[one.finding].check, findings[one.finding].kind) == (check, kind)
    )


def bend_row(outputs: tuple[StepOutputs, ...]) -> tuple[StepOutputs, ...]:
    """Let step 1 compute another attention in row 2, element 5."""
    attention = outputs[1].computed["attention"].clone()
    attention[2, 5] += 1
    bent = StepOutputs(outputs[1].read, {**outputs[1].computed, "attention": attention})
    return (outputs[0], bent, *outputs[2:])


@pytest.mark.parametrize("precision", list(Precision))
def test_an_output_is_shown_by_request_and_element(precision: Precision) -> None:
    finding, shown = shown_of(Bends(outputs=bend_row), "output", "computed_differs", precision=precision)
    assert finding.first is not None
    assert (finding.first.row, finding.first.column, finding.elements) == (2, 5, 1)
    assert float(finding.first.got) == pytest.approx(float(finding.first.expected) + 1, rel=0.02)
    assert (shown.step, shown.request) == (1, 2)
    wrong = [(one.row, one.column) for one in shown.elements if one.expected != one.got]
    assert wrong == [(2, 5)]
    assert {(one.row, one.column) for one in shown.elements} >= {(1, 5), (3, 5), (2, 2), (2, 8)}


def test_an_output_of_another_round_says_which() -> None:
    subject = bent_subject(make_case(MODEL), PROGRAM, Bends())
    first, second = (record.replay for record in subject.observation.rounds[:2])
    assert first is not None
    assert second is not None
    (late,) = [cell for cell in first.outputs if (cell.step, cell.name) == (1, "attention")]
    record = subject.observation.rounds[1]
    assert equals_round(subject, record, late) == "equals the ordinary path's of round b4.00"
    (own,) = [cell for cell in second.outputs if (cell.step, cell.name) == (1, "attention")]
    assert equals_round(subject, record, own) == ""


def test_a_refresh_that_overtook_a_replay_is_shown_in_place() -> None:
    """The leaves as that refresh left them belong to the replay before."""
    bends = Bends(side_stream=False)
    finding, shown = shown_of(bends, "ordering", "saw_next_round", drill=Drill.DELAYED)
    assert finding.first is not None
    spots = {(one.row, one.column): one for one in shown.elements}
    assert spots[finding.first.row, finding.first.column].got == finding.first.got


def test_outputs_of_other_shapes_differ_as_a_whole() -> None:
    subject = bent_subject(make_case(MODEL), PROGRAM, Bends())
    count, first = output_difference(subject, np.zeros((2, 3)), np.zeros((3, 2)))
    assert (count, first and (first.expected, first.got)) == (6, ("float64[2, 3]", "float64[3, 2]"))
    assert output_difference(subject, np.zeros((2, 3)), np.zeros((2, 3))) == (0, None)


def test_a_stale_schedule_is_shown_in_place() -> None:
    subject = bent_subject(make_case(MODEL), PROGRAM, Bends(refresh=stale_schedule))
    findings = judge(subject).findings
    shown = around(subject, findings)[0]
    first = findings[shown.finding].first
    assert findings[shown.finding].field == "paged_mqa_schedule_metadata"
    assert first is not None
    (spot,) = [one for one in shown.elements if (one.row, one.column) == (first.row, first.column)]
    assert (spot.expected, spot.got) == (first.expected, first.got)
    assert shown.request == -1
    assert shown.lengths == PROGRAM.rounds[0].lengths


def test_a_wrong_page_is_shown_with_its_request_and_right_neighbours() -> None:
    subject = bent_subject(make_case(MODEL), PROGRAM, Bends(refresh=wrong_row))
    findings = judge(subject).findings
    shown = next(one for one in around(subject, findings) if findings[one.finding].field == "real_page_table")
    assert shown.request == 1
    wrong = [(one.row, one.column) for one in shown.elements if one.expected != one.got]
    assert wrong == [(1, 0)]
    assert any(one.row == 2 and one.expected == one.got for one in shown.elements)


def test_positions_agree_with_the_single_one() -> None:
    from harness.fields import position

    subject = bent_subject(make_case(MODEL), PROGRAM, Bends())
    truth = subject.truths[1]
    for name, value in truth.expected.items():
        rows, columns = positions(truth.fields[name], truth, value.live.size)
        single = [position(truth.fields[name], truth.dims, truth.inputs, at) for at in range(value.live.size)]
        assert list(zip(rows.tolist(), columns.tolist(), strict=True)) == single
