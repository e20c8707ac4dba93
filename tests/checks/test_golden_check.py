from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from harness.checks.golden import check
from harness.findings import Difference, Finding
from harness.golden.model import Golden
from harness.observation import LeafFact, LedgerEntry, Observation
from harness.types import Drill, EngineKind, Kernel, Mode, Precision
from harness.types import Path as RefreshPath
from tests.golden.sample import (
    BATCHES,
    at,
    make_store,
    observe,
    plus_one,
    sample_case,
    sample_program,
)
from tests.helpers import tiny_model

CASE = sample_case()
PROGRAM = sample_program(CASE)
CLEAN = observe(CASE)


@pytest.fixture(scope="module")
def golden(tmp_path_factory: pytest.TempPathFactory) -> Golden:
    verify = observe(sample_case(mode=Mode.TARGET_VERIFY))
    bf16 = observe(sample_case(precision=Precision.BF16))
    flashmla = observe(sample_case(path=RefreshPath.INDEPENDENT))
    return make_store(tmp_path_factory.mktemp("golden"), CLEAN, verify, bf16, flashmla).load(
        "unit-p4", "tape"
    )


def only(observation: Observation, golden: Golden) -> Finding:
    (finding,) = check(observation, golden)[0]
    assert finding.check == "golden"
    assert finding.case == observation.case.id
    assert not finding.known
    return finding


def test_a_clean_run_passes_and_counts_what_it_compared(golden: Golden) -> None:
    findings, elements = check(CLEAN, golden)
    assert findings == []
    refreshes = [record.refreshes[0] for record in CLEAN.rounds]
    cells = sum(CLEAN.values[cell.value].size for refresh in refreshes for cell in refresh.cells)
    replays = [CLEAN.rounds[0].replay, CLEAN.rounds[-1].replay]  # the rounds whose outputs are kept
    outputs = sum(CLEAN.values[cell.value].size for replay in replays if replay for cell in replay.outputs)
    ledger, spans, alias = 20 * 3, 2 * 4, 21 * 3
    assert elements == cells + outputs + len(CLEAN.rounds) * (ledger + spans + alias)


def test_no_golden(golden: Golden) -> None:
    findings, elements = check(CLEAN, None)
    assert [finding.kind for finding in findings] == ["missing"]
    assert elements == 0
    assert findings[0].message == "there is no golden for unit-p4 on tape"


def test_a_golden_of_another_geometry(golden: Golden) -> None:
    wider = msgspec.structs.replace(tiny_model(width=2048), name="unit-p4")
    findings, elements = check(observe(sample_case(wider)), golden)
    assert [finding.kind for finding in findings] == ["other_configuration"]
    assert elements == 0


def test_a_value_that_differs_in_one_step(golden: Golden) -> None:
    finding = only(observe(CASE, edit=at("b4.02", 1, "cu_seqlens_k", plus_one)), golden)
    assert finding.kind == "value_differs"
    assert (finding.field, finding.bucket, finding.steps) == ("cu_seqlens_k", 4, (1,))
    assert (finding.rounds, finding.elements) == (("b4.02",), 1)
    assert finding.first is not None
    assert (finding.first.row, finding.first.column) == (1, 0)
    assert (finding.first.expected, finding.first.got) == ("66", "67")


def test_one_finding_for_all_steps_and_rounds(golden: Golden) -> None:
    def edit(round_name: str, step: int, name: str, value: Any) -> Any:
        return plus_one(value) if name == "cu_seqlens_k" and round_name in ("b4.01", "b4.03") else value

    finding = only(observe(CASE, edit=edit), golden)
    assert (finding.steps, finding.rounds) == ((0, 1, 2), ("b4.01", "b4.03"))


def test_a_wide_value_differs_where_it_is_sampled(golden: Golden) -> None:
    def last(value: Any) -> Any:
        value = value.copy()
        value[-1] += 1
        return value

    finding = only(observe(CASE, edit=at("b4.02", None, "page_table_1", last)), golden)
    assert finding.first is not None
    assert (finding.first.row, finding.first.column) == (3, 999)  # row 3 has 1000 tokens


def test_a_wide_value_differs_where_it_is_not_sampled(golden: Golden) -> None:
    finding = only(observe(CASE, edit=at("b4.02", None, "page_table_1", plus_one)), golden)
    assert finding.elements == 66 + 256 + 302 + 1000
    assert finding.first is not None
    assert finding.first.note == "value as a whole"
    assert finding.first.expected.startswith("sha256 ")


def test_a_stale_value_is_named_as_the_other_rounds(golden: Golden) -> None:
    stale = observe(CASE).rounds[1].refreshes[0].cells
    old = next(cell.value for cell in stale if cell.name == "cache_seqlens_int32")
    value = CLEAN.values[old]
    finding = only(observe(CASE, edit=at("b4.02", None, "cache_seqlens_int32", lambda _: value)), golden)
    assert finding.first is not None
    assert finding.first.note == "equals the accepted value of round b4.01"


@pytest.mark.parametrize(
    ("change", "expected", "got", "what"),
    [
        (lambda value: value.astype(np.int64), "int32", "int64", "dtype"),
        (lambda value: value[:-1], "4 elements", "3 elements", "shape"),
        (lambda value: value.reshape(-1, 1), "[4]", "[4, 1]", "shape"),
        (lambda value: np.concatenate([value, value]).reshape(2, 4), "[4]", "[2, 4]", "shape"),
    ],
    ids=["dtype", "size", "shape", "larger"],
)
def test_dtype_and_shape_are_part_of_a_value(
    golden: Golden, change: Callable[[Any], Any], expected: str, got: str, what: str
) -> None:
    finding = only(observe(CASE, edit=at("b4.02", 0, "cache_seqlens_int32", change)), golden)
    assert finding.kind == "value_differs"
    assert finding.first == Difference(0, 0, expected, got, f"{what} as a whole")
    assert finding.elements == (8 if got == "[2, 4]" else 4)


def test_cells_that_still_hold_poison_are_freshness_matter(golden: Golden) -> None:
    def poisoned(round_name: str, step: int, name: str) -> int:
        return int((round_name, name) == ("b4.02", "cu_seqlens_k"))

    observation = observe(CASE, edit=at("b4.02", None, "cu_seqlens_k", plus_one), poisoned=poisoned)
    findings, elements = check(observation, golden)
    assert findings == []
    assert elements == check(CLEAN, golden)[1] - 3 * 5


def test_cells_whose_fault_is_stated_elsewhere_are_left_out(golden: Golden) -> None:
    observation = observe(CASE, edit=at("b4.02", None, "cu_seqlens_k", plus_one))
    stated = {(2, 0, step, "cu_seqlens_k") for step in (0, 1)}
    (finding,), _ = check(observation, golden, stated)
    assert finding.steps == (2,)
    assert check(observation, golden, stated | {(2, 0, 2, "cu_seqlens_k")})[0] == []


def test_every_refresh_of_a_round_is_compared(golden: Golden) -> None:
    wrong = observe(CASE, edit=at("b4.00", 0, "cu_seqlens_k", plus_one))
    audited = replace(CLEAN.rounds[0], refreshes=(wrong.rounds[0].refreshes[0], CLEAN.rounds[0].refreshes[0]))
    observation = replace(CLEAN, rounds=(audited, *CLEAN.rounds[1:]), values={**CLEAN.values, **wrong.values})
    assert only(observation, golden).field == "cu_seqlens_k"


def test_a_round_without_refresh_or_replay_is_not_compared(golden: Golden) -> None:
    rounds = tuple(replace(record, refreshes=(), replay=None) for record in CLEAN.rounds)
    findings, elements = check(replace(CLEAN, rounds=rounds), golden)
    assert findings == []
    assert elements == 0


def test_a_round_under_another_name_matches_by_its_inputs(golden: Golden) -> None:
    case = sample_case(drill=Drill.REPEAT)
    rounds = tuple(replace(round_, name=f"again.{round_.name}") for round_ in PROGRAM.rounds)
    program = replace(PROGRAM, rounds=rounds)
    findings, elements = check(observe(case, program), golden)
    assert findings == []
    assert elements > 10_000
    wrong = observe(case, program, edit=at("again.b4.01", 2, "cu_seqlens_k", plus_one))
    assert only(wrong, golden).rounds == ("again.b4.01",)


def test_another_path_is_held_against_the_same_values(golden: Golden) -> None:
    case = sample_case(path=RefreshPath.SIBLING_COPY)
    assert check(observe(case), golden)[0] == []
    wrong = observe(case, edit=at("b4.02", 2, "kpool_write_plan.write_loc", plus_one))
    assert only(wrong, golden).field == "kpool_write_plan.write_loc"


def test_rounds_beyond_the_golden_do_not_count(golden: Golden) -> None:
    case = sample_case(drill=Drill.REPEAT)
    other = sample_program(case, (((7, 8, 9, 10), (1, 2, 3, 4)),))
    findings, elements = check(observe(case, other), golden)
    assert findings == []
    assert elements == 20 * 3 + 2 * 4 + 21 * 3  # structure only


def test_some_rounds_beyond_the_golden_do_not_count(golden: Golden) -> None:
    program = sample_program(CASE, (*BATCHES, ((7, 8, 9, 10), (1, 2, 3, 4))))
    findings, elements = check(observe(CASE, program), golden)
    assert findings == []
    assert elements == check(CLEAN, golden)[1] + 20 * 3 + 2 * 4 + 21 * 3


def test_inputs_that_changed(golden: Golden) -> None:
    program = sample_program(CASE, (*BATCHES[:3], ((66, 256, 302, 999), (2, 5, 1, 7))))
    finding = only(observe(CASE, program), golden)
    assert (finding.kind, finding.rounds, finding.bucket) == ("inputs_changed", ("b4.03",), 4)


def test_a_round_that_is_gone(golden: Golden) -> None:
    program = replace(PROGRAM, rounds=PROGRAM.rounds[:3])
    finding = only(observe(CASE, program), golden)
    assert (finding.kind, finding.rounds) == ("round_gone", ("b4.03",))


def test_rounds_that_are_gone_from_a_later_mode(golden: Golden) -> None:
    case = sample_case(mode=Mode.TARGET_VERIFY)
    findings, _ = check(observe(case, replace(PROGRAM, rounds=PROGRAM.rounds[:2])), golden)
    assert [(one.kind, sorted(one.rounds)) for one in findings] == [("round_gone", ["b4.02", "b4.03"])]


def test_rounds_that_changed_places_are_found_by_their_inputs(golden: Golden) -> None:
    first, second, *rest = PROGRAM.rounds
    program = replace(
        PROGRAM, rounds=(replace(second, name=first.name), replace(first, name=second.name), *rest)
    )
    assert check(observe(CASE, program), golden)[0] == []


def test_a_program_of_which_nothing_is_found(golden: Golden) -> None:
    rounds = tuple(
        replace(round_, name=f"new.{round_.name}", lengths=tuple(n + 1 for n in round_.lengths))
        for round_ in PROGRAM.rounds
    )
    findings, elements = check(observe(CASE, replace(PROGRAM, rounds=rounds)), golden)
    assert [finding.kind for finding in findings] == ["round_gone", "not_covered"]
    assert elements == 4 * (20 * 3 + 2 * 4 + 21 * 3)


def without(name: str, step: int | None = None) -> Observation:
    rounds = []
    for record in CLEAN.rounds:
        refresh = record.refreshes[0]
        cells = tuple(c for c in refresh.cells if c.name != name or step not in (None, c.step))
        rounds.append(replace(record, refreshes=(replace(refresh, cells=cells),)))
    return replace(CLEAN, rounds=tuple(rounds))


def test_a_field_that_is_gone(golden: Golden) -> None:
    finding = only(without("topk_v2_plan"), golden)
    assert (finding.kind, finding.field) == ("field_gone", "topk_v2_plan")
    assert check(without("topk_v2_plan", 2), golden)[0] == []  # shared: other steps need not be listed


def test_a_field_that_is_new(tmp_path: Path) -> None:
    golden = make_store(tmp_path, without("topk_v2_plan")).load("unit-p4", "tape")
    finding = only(CLEAN, golden)
    assert (finding.kind, finding.field, finding.steps) == ("field_new", "topk_v2_plan", (0, 1, 2))


def test_leaves_without_a_formula_are_compared(tmp_path: Path) -> None:
    case = sample_case(tiny_model(pool=1), kernel=Kernel.FLASHMLA_KV)
    golden = make_store(tmp_path, observe(case)).load("unit-p1", "tape")
    other_kernel = sample_case(tiny_model(pool=1))
    assert check(observe(case), golden)[0] == []
    assert check(observe(other_kernel), golden)[0] == []
    name = "flashmla_metadata.flashmla_metadata"
    assert only(observe(case, edit=at("b4.01", 1, name, plus_one)), golden).field == name


# Outputs: the golden keeps those of the first round


def scaled(factor: float) -> Callable[[Any], Any]:
    return lambda value: value * np.float32(factor)


def nan_beside_the_samples(value: Any) -> Any:
    value = value.copy()
    value.reshape(-1)[1] = np.nan
    return value


@pytest.mark.parametrize(
    ("name", "change", "differs"),
    [
        ("attention", scaled(1.00001), False),
        ("attention", scaled(1.001), True),
        ("attention", nan_beside_the_samples, True),
        ("attention", lambda value: value.astype(np.float64), True),
        ("draft_token", plus_one, True),
        ("draft_token", lambda value: value.astype(np.int32), True),
    ],
    ids=["within", "beyond", "nan", "dtype", "token", "token-dtype"],
)
def test_outputs(golden: Golden, name: str, change: Callable[[Any], Any], differs: bool) -> None:
    findings, _ = check(observe(CASE, edit=at("b4.00", 1, name, change)), golden)
    assert [(f.kind, f.field, f.steps) for f in findings] == [("output_differs", name, (1,))] * differs
    assert check(observe(CASE, edit=at("b4.01", 1, name, change)), golden)[0] == []  # not kept


def test_bf16_outputs_have_their_own_tolerance(golden: Golden) -> None:
    case = sample_case(precision=Precision.BF16)

    def next_code(value: Any) -> Any:
        return value + np.uint16(1)

    def far(value: Any) -> Any:
        return value + np.uint16(8)

    def nan(value: Any) -> Any:
        value = value.copy()
        value.reshape(-1)[1] = 0x7FC0
        return value

    assert check(observe(case, edit=at("b4.00", 1, "attention", next_code)), golden)[0] == []
    for change in (far, nan):
        wrong = observe(case, edit=at("b4.00", 1, "attention", change))
        assert only(wrong, golden).kind == "output_differs"


def test_large_outputs_are_sampled_but_no_nan_escapes(tmp_path: Path) -> None:
    def enlarge(value: Any) -> Any:
        return np.tile(value, (1, 1, 9))

    def edit(change: Callable[[Any], Any]) -> Observation:
        return observe(CASE, edit=at("b4.00", None, "attention", lambda value: change(enlarge(value))))

    golden = make_store(tmp_path, edit(lambda value: value)).load("unit-p4", "tape")
    clean = edit(lambda value: value)
    assert check(clean, golden)[0] == []
    assert check(clean, golden)[1] == check(CLEAN, golden)[1]  # 256 of 2304 elements, as CLEAN has in full
    finding = only(edit(nan_beside_the_samples), golden)
    assert finding.first is not None
    assert (finding.kind, finding.first.column, finding.first.got) == ("output_differs", 1, "nan")


def test_outputs_of_other_inputs_precisions_and_delayed_replays_are_not_compared(golden: Golden) -> None:
    edit = at("b4.00", None, "draft_token", plus_one)
    delayed = observe(CASE, edit=edit)
    record = delayed.rounds[0]
    assert record.replay is not None
    for replay in (replace(record.replay, delayed=True), None):
        rounds = (replace(record, replay=replay), *delayed.rounds[1:])
        assert check(replace(delayed, rounds=rounds), golden)[0] == []
    other = sample_case(kernel=Kernel.TRTLLM)
    assert check(observe(other, edit=edit), golden)[0] == []


def test_outputs_are_held_against_each_other_both_ways(golden: Golden) -> None:
    record = CLEAN.rounds[0]
    assert record.replay is not None
    cells = record.replay.outputs
    renamed = tuple(replace(cell, name="renamed") if cell.name == "draft_token" else cell for cell in cells)
    rounds = (replace(record, replay=replace(record.replay, outputs=renamed)), *CLEAN.rounds[1:])
    findings, _ = check(replace(CLEAN, rounds=rounds), golden)
    assert [(f.kind, f.field, f.steps) for f in findings] == [
        ("output_gone", "draft_token", (0, 1, 2)),
        ("output_new", "renamed", (0, 1, 2)),
    ]


# Structure


def test_a_leaf_written_twice(golden: Golden) -> None:
    def twice(ledger: tuple[LedgerEntry, ...]) -> tuple[LedgerEntry, ...]:
        return (replace(ledger[0], writes=2), *ledger[1:])

    finding = only(observe(CASE, ledger=twice), golden)
    assert (finding.kind, finding.field, finding.bucket) == ("structure_differs", "refresh ledger", 4)
    assert finding.rounds == ("b4.00", "b4.01", "b4.02", "b4.03")
    assert finding.message == (
        "the refresh ledger of bucket 4 is not the accepted one: cache_seqlens_int32, step 0: 1 -> 2"
    )


def test_a_step_with_its_own_leaf(golden: Golden) -> None:
    def moved(leaves: tuple[LeafFact, ...]) -> tuple[LeafFact, ...]:
        return tuple(
            replace(leaf, region=77) if (leaf.step, leaf.name) == (2, "topk_v2_plan") else leaf
            for leaf in leaves
        )

    finding = only(observe(CASE, walk=moved), golden)
    assert finding.field == "alias map"
    assert finding.message.endswith("topk_v2_plan, step 2: @0 -> own")


def test_many_differences_are_summed_up(golden: Golden) -> None:
    finding = only(observe(CASE, ledger=lambda ledger: ledger[10:]), golden)
    assert finding.elements == 10
    assert finding.message.endswith(" (and 7 more)")


def test_a_structure_that_is_not_kept_is_not_compared(golden: Golden) -> None:
    case = sample_case(path=RefreshPath.SIBLING_COPY)
    findings, elements = check(observe(case, ledger=lambda ledger: ()), golden)
    assert findings == []
    assert elements < check(CLEAN, golden)[1]


def test_a_golden_that_is_missing_comes_with_the_command_that_makes_it() -> None:
    (finding,) = check(CLEAN, None)[0]
    assert finding.hint == 'make it: replay-harness golden update new --model unit-p4 --reason "..."'
    elsewhere = replace(CLEAN, case=replace(CASE, sut="sglang", engine=EngineKind.CUDA_GRAPH))
    (finding,) = check(elsewhere, None)[0]
    assert "--model unit-p4 --sut sglang --engine cuda_graph --reason" in finding.hint
