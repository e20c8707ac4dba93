from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from harness.case import Case
from harness.errors import HarnessError
from harness.golden.collect import (
    collect,
    default_policy,
    entry_key,
    inputs_digest,
    keyed_rounds,
    label,
    output_key,
    round_of,
    structure_key,
)
from harness.observation import Walk
from harness.rounds import Program, Round
from harness.types import Drill, EngineKind, Kernel, Mode, Precision
from harness.types import Path as RefreshPath
from tests.golden.sample import observe, sample_case, sample_program
from tests.helpers import tiny_model

CASE = sample_case()
MAIN = sample_case(steps=5)  # of the model's default variant
PROGRAM = sample_program(CASE)


def digest(case: Case = CASE, program: Program = PROGRAM, **changes: Any) -> str:
    return inputs_digest(case, program, replace(program.rounds[1], **changes))


def with_page(request: int, column: int) -> Program:
    """Return the program with another page of one request in round 1's table."""
    table = PROGRAM.tables["t2"].copy()
    table[request, column] += 1000
    return replace(PROGRAM, tables={**PROGRAM.tables, "t2": table})


# Round 1: lengths 65, 255, 301 of requests 2, 5, 1 in a bucket of 4; model pages of 256 tokens.


@pytest.mark.parametrize(
    "changes",
    [
        {"lengths": (65, 255, 302)},
        {"requests": (2, 1, 5)},
        {"accepted": (1, 1, 1)},
        {"table": "t1"},
        {"lengths": (65, 255), "requests": (2, 5)},
        {"bucket": 8},
    ],
)
def test_the_digest_depends_on_every_input(changes: dict[str, Any]) -> None:
    assert digest(**changes) != digest()


@pytest.mark.parametrize("changes", [{"name": "other"}, {"why": "because"}])
def test_the_digest_does_not_depend_on_names(changes: dict[str, Any]) -> None:
    assert digest(**changes) == digest()


@pytest.mark.parametrize(
    ("request_row", "column", "live"),
    [(2, 0, True), (5, 0, True), (1, 1, True), (1, 2, False), (5, 1, False), (3, 0, False), (4, 3, False)],
)
def test_only_live_pages_of_live_requests_count(request_row: int, column: int, live: bool) -> None:
    assert (digest(program=with_page(request_row, column)) != digest()) == live


def test_target_verify_reads_further() -> None:
    verify = sample_case(mode=Mode.TARGET_VERIFY)  # 255 + N reaches the second page
    assert digest(verify, with_page(5, 1)) != digest(verify)
    assert digest(verify) != digest()


def test_keys_of_a_round() -> None:
    keyed = keyed_rounds(CASE, PROGRAM)["b4.01"]
    assert (keyed.index, keyed.round, keyed.dims.bucket) == (1, PROGRAM.rounds[1], 4)
    assert entry_key(CASE, keyed, "") == f"decode/N6/bs4/{keyed.inputs}"
    assert entry_key(CASE, keyed, "flashmla_kv") == f"decode/N6/bs4/flashmla_kv/{keyed.inputs}"
    assert label(CASE, "b4.01", "") == "tape/decode/6/4/0/plain/b4.01"
    assert output_key(CASE, "b4.01") == "embedded/fp32/fa3/S4/tape/decode/6/4/0/plain/b4.01"
    assert structure_key(CASE, 2) == "embedded/shared/fusion-off/4-1-5/decode/fa3/bs2"


@pytest.mark.parametrize(
    ("choices", "same_label", "same_output", "same_structure"),
    [
        ({"path": RefreshPath.INDEPENDENT}, True, True, False),
        ({"fusion": True}, True, True, False),
        ({"drill": Drill.CHURN}, True, True, True),
        ({"drill": Drill.REPEAT}, False, False, True),
        ({"kernel": Kernel.TRTLLM}, True, False, False),
        ({"precision": Precision.BF16}, True, False, True),
        ({"sut": "other"}, True, False, False),
        ({"mode": Mode.TARGET_VERIFY}, False, False, False),
        ({"steps": 5}, True, False, False),  # no decode value depends on N
    ],
)
def test_what_keys_depend_on(
    choices: dict[str, Any], same_label: bool, same_output: bool, same_structure: bool
) -> None:
    other = sample_case(**choices)
    assert (label(other, "r", "") == label(CASE, "r", "")) == same_label
    assert (output_key(other, "r") == output_key(CASE, "r")) == same_output
    assert (structure_key(other, 4) == structure_key(CASE, 4)) == same_structure


def test_a_round_that_the_program_lacks() -> None:
    observation = observe(CASE)
    record = replace(observation.rounds[0], name="gone")
    with pytest.raises(HarnessError, match="a round gone that its program does not have"):
        round_of(keyed_rounds(CASE, PROGRAM), record)


def test_collected_values_are_those_of_step_0() -> None:
    def edit(round_name: str, step: int, name: str, value: Any) -> Any:
        return value + step if name == "cache_seqlens_int32" else value

    golden = collect(observe(CASE, edit=edit), default_policy(CASE), "because")
    entry = golden.entries[golden.by_label["tape/decode/6/4/0/plain/b4.01"]]
    full = entry.values["cache_seqlens_int32"].full
    assert full is not None
    assert full.tolist() == [65, 255, 301, 1]
    assert entry.by == "embedded/shared"
    outputs = golden.outputs["embedded/fp32/fa3/S4/tape/decode/6/4/0/plain/b4.00"]
    assert [
        step["draft_token"].full.tolist() for step in outputs.steps if step["draft_token"].full is not None
    ] == [[3 + step, 1 + step, 4 + step, 2 + step] for step in range(3)]


def test_rounds_with_equal_inputs_share_an_entry() -> None:
    program = replace(PROGRAM, rounds=(*PROGRAM.rounds, replace(PROGRAM.rounds[1], name="again")))
    golden = collect(observe(MAIN, program), default_policy(MAIN), "because")
    assert len(golden.entries) == 4
    key = golden.by_label["tape/decode/6/4/0/plain/again"]
    assert golden.entries[key].labels == (
        "tape/decode/6/4/0/plain/again",
        "tape/decode/6/4/0/plain/b4.01",
    )
    assert golden.programs == {"tape/decode/6/4/0/plain"}


def test_long_programs_keep_some_rounds_only() -> None:
    lengths = [(5 + i, 70 + i, 300, 256 + i) for i in range(20)]
    rounds = tuple(Round(f"r{i:02d}", 4, lengths[i], (1, 2, 3, 4), "t1") for i in range(20))
    program = replace(PROGRAM, rounds=rounds)
    for case, kept in (
        (MAIN, ["r00", "r04", "r08", "r11", "r15", "r19"]),
        (sample_case(mode=Mode.TARGET_VERIFY), ["r00", "r06", "r13", "r19"]),  # N = 5 is not the default
    ):
        golden = collect(observe(case, program), default_policy(case), "because")
        assert sorted(label.rpartition("/")[2] for label in golden.by_label) == kept
        last = [key.rpartition("/")[2] for key in golden.outputs]
        assert last == (["r00", "r19"] if case is MAIN else ["r00"])


def test_a_round_without_refresh_or_replay_is_not_collected() -> None:
    observation = observe(CASE)
    records = [replace(record, refreshes=(), replay=None) for record in observation.rounds]
    golden = collect(replace(observation, rounds=tuple(records)), default_policy(CASE), "because")
    assert not golden.entries
    assert not golden.outputs
    assert not golden.structures


def test_a_run_without_walks_has_no_structure() -> None:
    golden = collect(replace(observe(CASE), walks=()), default_policy(CASE), "because")
    assert golden.entries
    assert not golden.structures


def test_structure_is_that_of_the_rounds_bucket() -> None:
    observation = observe(CASE)
    leaves = observation.walks[0].leaves
    other = [replace(leaf, bucket=8) for leaf in leaves if leaf.name == "page_table_1"]
    golden = collect(
        replace(observation, walks=(Walk((*leaves, *other), (), ()),)), default_policy(CASE), "because"
    )
    (structure,) = golden.structures.values()
    assert structure.across == ["page_table_1"]
    assert structure.alias["real_page_table"] == ["own", "@0", "@0"]
    assert structure.alias["state.multi_ctas_kv_counter_buffer"] == ["own", "own", "own"]
    assert structure.spans == {"derived_refresh": [0, 1, 0, 0], "precompute": [1, 0, 0, 0]}


def test_policies_by_engine() -> None:
    assert default_policy(CASE).tier == "tensors"
    assert default_policy(replace(CASE, engine=EngineKind.CUDA_GRAPH)).tier == "digests"
    assert default_policy(CASE).full_draft_tokens == tiny_model().default_variant.draft_tokens


def test_values_do_not_share_memory_with_the_observation() -> None:
    observation = observe(CASE)
    golden = collect(observation, default_policy(CASE), "because")
    kept = [s.full for entry in golden.entries.values() for s in entry.values.values() if s.full is not None]
    assert kept
    assert not any(np.shares_memory(one, value) for one in kept[:40] for value in observation.values.values())
