"""Truth: computed once per round, bounded, shared by cases with equal inputs."""

from __future__ import annotations

from harness.oracle import expected
from harness.truth import Truth
from harness.types import Mode, Path
from tests.helpers import make_case, make_program, tiny_model

MODEL = tiny_model()
PROGRAM = make_program(MODEL, 4, (((65, 257, 900, 13), (3, 1, 4, 2)), ((600, 700, 10), (5, 6, 7))))


def test_values_are_the_oracles_live_ones() -> None:
    truth = Truth().of(make_case(MODEL), PROGRAM, PROGRAM.rounds[0])
    values = expected(truth.dims, truth.inputs)
    assert truth.expected.keys() == values.keys()
    lengths = truth.expected["cache_seqlens_int32"].live
    assert lengths.tolist() == [65, 257, 900, 13]
    assert truth.expected["page_table_1"].live.size == sum((65, 257, 900, 13))


def test_padded_rows_have_the_modes_fill() -> None:
    truth = Truth().of(make_case(MODEL, mode=Mode.DRAFT_EXTEND), PROGRAM, PROGRAM.rounds[1])
    fill = truth.dims.draft_tokens + MODEL.index_kpool
    assert truth.inputs.lengths.tolist() == [600, 700, 10, fill]
    assert truth.inputs.requests.tolist() == [5, 6, 7, 0]
    decode = Truth().of(make_case(MODEL), PROGRAM, PROGRAM.rounds[1])
    assert decode.inputs.lengths.tolist() == [600, 700, 10, 1]


def test_cases_with_equal_inputs_share_one_truth() -> None:
    truth = Truth()
    one = truth.of(make_case(MODEL, path=Path.SHARED, steps=3), PROGRAM, PROGRAM.rounds[0])
    two = truth.of(make_case(MODEL, path=Path.INDEPENDENT, steps=6), PROGRAM, PROGRAM.rounds[0])
    other = truth.of(make_case(MODEL), PROGRAM, PROGRAM.rounds[1])
    assert one is two
    assert other is not one


def test_the_cache_is_bounded() -> None:
    truth = Truth(rounds=1)
    case = make_case(MODEL)
    first = truth.of(case, PROGRAM, PROGRAM.rounds[0])
    truth.of(case, PROGRAM, PROGRAM.rounds[1])
    assert truth.of(case, PROGRAM, PROGRAM.rounds[0]) is not first


def test_an_unwritten_plan_is_not_judged() -> None:
    program = make_program(MODEL, 1, (((65,), (3,)),))
    truth = Truth().of(make_case(MODEL, bucket=1), program, program.rounds[0])
    assert not truth.judged("topk_v2_plan")
    assert truth.judged("paged_mqa_schedule_metadata")
    assert not truth.judged("no_such_leaf")
