from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.rounds import Round, expand_table, length_fill, pad_round, padded_inputs, rounds_key
from harness.traffic import build_program
from harness.types import Drill, Kernel, Mode, Path, Precision
from tests.programs import BY_POOL, MODELS, project_case


@given(st.integers(1, 5), st.integers(1, 6), st.sampled_from([64, 128, 256]), st.integers(0, 99))
def test_expanded_tables_keep_tokens_of_a_page_together(
    requests: int, columns: int, page_tokens: int, seed: int
) -> None:
    pages = np.random.default_rng(seed).integers(0, 1000, (requests + 1, columns), dtype=np.int32)
    table = expand_table(pages, page_tokens)
    assert table.shape == (requests + 1, columns * page_tokens)
    assert table.dtype == np.int32
    assert not table[0].any()
    for row, token in ((requests, 0), (requests, columns * page_tokens - 1)):
        page, offset = divmod(int(table[row, token]), page_tokens)
        assert (page, offset) == (pages[row, token // page_tokens], token % page_tokens)


@pytest.mark.parametrize(
    ("mode", "pool", "fill"),
    [
        (Mode.DECODE, 1, 1),
        (Mode.DECODE, 4, 1),
        (Mode.TARGET_VERIFY, 4, 1),
        (Mode.DRAFT_EXTEND, 1, 1),
        (Mode.DRAFT_EXTEND, 4, 10),
    ],
)
def test_length_fill_is_the_modes(mode: Mode, pool: int, fill: int) -> None:
    assert length_fill(mode, pool, 6) == fill


def test_padding_fills_what_no_request_has() -> None:
    table = np.zeros((9, 512), np.int32)
    round_ = Round("b4.00", 4, (300, 40), (7, 3), "t", accepted=(2, 5))
    inputs = pad_round(round_, table, Mode.DRAFT_EXTEND, 4, 6)
    assert inputs.lengths.tolist() == [300, 40, 10, 10]
    assert inputs.requests.tolist() == [7, 3, 0, 0]
    assert inputs.accepted.tolist() == [2, 5, 6, 6]
    assert (inputs.bucket, inputs.live) == (4, 2)
    kinds = [array.dtype.name for array in (inputs.lengths, inputs.requests, inputs.accepted)]
    assert kinds == ["int64", "int64", "int32"]


def test_padded_inputs_take_the_rounds_own_table() -> None:
    case = project_case(BY_POOL[4])
    made = build_program(case)
    round_ = next(round_ for round_ in made.rounds if len(round_.lengths) < round_.bucket)
    inputs = padded_inputs(round_, made, case.model, case.mode, case.variant.draft_tokens)
    tokens = case.model.page_tokens
    expected = made.tables[round_.table][list(round_.requests)]
    assert np.array_equal(inputs.table[list(round_.requests), ::tokens] // tokens, expected)
    assert inputs.lengths[len(round_.lengths) :].tolist() == [1] * (round_.bucket - len(round_.lengths))


def test_cases_of_equal_key_have_equal_rounds() -> None:
    case = project_case(BY_POOL[4], Mode.DRAFT_EXTEND)
    others = (
        replace(case, path=Path.INDEPENDENT, fusion=True, kernel=Kernel.TRTLLM, precision=Precision.BF16),
        replace(case, drill=Drill.CHURN),
        replace(case, drill=Drill.DELAYED),
        replace(case, sut="another"),
    )
    rounds = set(build_program(case).rounds)
    assert all(rounds_key(other) == rounds_key(case) for other in others)
    assert all(set(build_program(other).rounds) <= rounds for other in others)


def test_cases_of_other_keys_have_other_rounds() -> None:
    case = project_case(BY_POOL[1], Mode.TARGET_VERIFY)
    variant = next(variant for variant in case.model.variants if variant.draft_tokens == 4)
    others = (
        replace(case, seed=1),
        replace(case, bucket=8),
        replace(case, mode=Mode.DECODE),
        replace(case, variant=variant),
        replace(case, drill=Drill.REPEAT),
        replace(case, drill=Drill.DEAD_COLUMNS),
    )
    keys = {rounds_key(other) for other in (case, *others)}
    assert len(keys) == len(others) + 1
    assert all(build_program(other).rounds != build_program(case).rounds for other in others)
    assert build_program(replace(case, model=MODELS["glm-5"])).rounds != build_program(case).rounds
