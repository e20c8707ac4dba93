from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from harness.checks.golden import check
from harness.errors import GoldenError
from harness.findings import Finding
from harness.golden.model import Golden
from harness.golden.store import GoldenStore
from harness.golden.update import GoldenUpdate, prune_files
from harness.observation import Observation
from harness.oracle import expected
from harness.types import Drill, EngineKind, Kernel, Mode
from harness.types import Path as RefreshPath
from tests.golden.sample import (
    BATCHES,
    ENVIRON,
    accept,
    at,
    lying_oracle,
    make_store,
    observe,
    plus_one,
    sample_case,
    sample_program,
)
from tests.helpers import tiny_model

PAIR = ("unit-p4", "tape")
FIELD = "kpool_write_plan.write_start"


def kinds(observation: Observation, golden: Golden) -> list[str]:
    return [finding.kind for finding in check(observation, golden)[0]]


def finding(check_name: str = "freshness", known: str = "") -> Finding:
    return Finding(check_name, "stale", "case", FIELD, 4, (0,), ("b4.01",), "is stale", known=known)


def update_of(
    store: GoldenStore, *observations: Observation, mode: str = "all", findings: Sequence[Finding] = ()
) -> GoldenUpdate:
    update = GoldenUpdate(store, mode, "because", expected, environ=ENVIRON)
    for observation in observations:
        update.add(observation, findings)
    return update


def test_create_pass_change_fail_regenerate_pass(tmp_path: Path) -> None:
    case = sample_case()
    clean = observe(case)
    changed = observe(case, edit=at("b4.01", None, FIELD, plus_one))
    store = make_store(tmp_path, clean)
    golden = store.load(*PAIR)
    findings, elements = check(clean, golden)
    assert not findings
    assert elements > 10_000

    assert kinds(changed, golden) == ["value_differs"]

    # the specification changed as well, so the oracle agrees in that round; the others stay as they are
    def oracle(dims: Any, inputs: Any) -> Any:
        right = inputs.lengths[0] != BATCHES[1][0][0]
        return expected(dims, inputs) if right else lying_oracle(FIELD)(dims, inputs)

    lines = accept(store, changed, mode="changed", reason="write starts moved", oracle=oracle)
    assert lines == (
        f"unit-p4.tape: value {FIELD}: 1 changed, first tape/decode/6/4/0/plain/b4.01:"
        " 1 elements differ, element 1: 254 -> 255",
        "written: unit-p4.tape; why: write starts moved",
    )
    updated = store.load(*PAIR)
    assert not kinds(changed, updated)
    assert kinds(clean, updated) == ["value_differs"]
    assert updated.reason == "write starts moved"


def test_updating_again_changes_nothing(tmp_path: Path) -> None:
    store = make_store(tmp_path, observe(sample_case()))
    before = {path.name: path.stat().st_mtime_ns for path in store.root.iterdir()}
    lines = accept(store, observe(sample_case()), mode="all", reason="again")
    assert lines == ("goldens: nothing to update, all values and structures are as accepted",)
    assert {path.name: path.stat().st_mtime_ns for path in store.root.iterdir()} == before


def test_mode_new_leaves_changed_values_and_says_so(tmp_path: Path) -> None:
    store = make_store(tmp_path, observe(sample_case()))
    structure = observe(sample_case(), ledger=lambda ledger: ledger[1:])
    lines = accept(store, structure, mode="new")
    assert lines[0].startswith("unit-p4.tape: structure refresh ledger: 1 changed (left as it was")
    assert lines[-1] == "written: nothing; why: first goldens"
    assert kinds(observe(sample_case()), store.load(*PAIR)) == []
    accept(store, structure, mode="changed")
    assert kinds(structure, store.load(*PAIR)) == []
    assert kinds(observe(sample_case()), store.load(*PAIR)) == ["structure_differs"]


def test_mode_changed_adds_nothing_new(tmp_path: Path) -> None:
    store = make_store(tmp_path, observe(sample_case()))
    other = observe(sample_case(mode=Mode.TARGET_VERIFY))
    lines = accept(store, other, mode="changed")
    assert all(" new (left as it was" in line for line in lines[:-1])
    assert {key.split("/")[0] for key in store.load(*PAIR).entries} == {"decode"}
    accept(store, other, mode="new")
    assert {key.split("/")[0] for key in store.load(*PAIR).entries} == {"decode", "target_verify"}


def test_what_a_run_does_not_produce_stays(tmp_path: Path) -> None:
    decode, verify = observe(sample_case()), observe(sample_case(mode=Mode.TARGET_VERIFY))
    store = make_store(tmp_path, decode, verify)
    before = store.load(*PAIR)
    accept(store, observe(sample_case(mode=Mode.DRAFT_EXTEND)), mode="all")
    after = store.load(*PAIR)
    assert before.entries.keys() < after.entries.keys()
    assert before.structures.keys() < after.structures.keys()
    for observation in (decode, verify):
        assert kinds(observation, after) == []


def test_a_round_with_other_inputs_moves_only_in_mode_changed(tmp_path: Path) -> None:
    case = sample_case()
    store = make_store(tmp_path, observe(case))
    other = observe(case, sample_program(case, (*BATCHES[:3], ((9, 10, 11, 12), (1, 2, 3, 4)))))
    golden = store.load(*PAIR)
    assert kinds(other, golden) == ["inputs_changed"]
    lines = accept(store, other, mode="new")
    assert lines[0].startswith("unit-p4.tape: inputs: 1 changed (left as it was")
    assert store.load(*PAIR).entries.keys() == golden.entries.keys()
    accept(store, other, mode="changed")
    moved = store.load(*PAIR)
    assert kinds(other, moved) == []
    assert len(moved.entries) == 5
    assert sum(not entry.labels for entry in moved.entries.values()) == 1


def test_pruning_removes_what_the_run_did_not_produce(tmp_path: Path) -> None:
    decode, verify = observe(sample_case()), observe(sample_case(mode=Mode.TARGET_VERIFY))
    store = make_store(tmp_path, decode, verify)
    report = update_of(store, decode).prune()
    assert {change.kind for change in report.changes} == {"removed"}
    golden = store.load(*PAIR)
    assert {key.split("/")[0] for key in golden.entries} == {"decode"}
    assert [key.split("/")[4] for key in golden.structures] == ["decode"]
    assert {key.split("/")[5] for key in golden.outputs} == {"decode"}
    assert golden.reason == "because"
    assert kinds(decode, golden) == []
    assert update_of(store, decode).prune().changes == ()


def test_pruning_removes_a_field_that_no_longer_exists(tmp_path: Path) -> None:
    store = make_store(tmp_path, observe(sample_case()))
    without = without_field(observe(sample_case()), FIELD)
    assert kinds(without, store.load(*PAIR)) == ["field_gone"]
    report = update_of(store, without).prune()
    assert {change.field for change in report.changes} == {FIELD}
    assert kinds(without, store.load(*PAIR)) == []
    assert kinds(observe(sample_case()), store.load(*PAIR)) == ["field_new"]


def without_field(observation: Observation, name: str) -> Observation:
    rounds = tuple(
        replace(
            record,
            refreshes=tuple(
                replace(refresh, cells=tuple(cell for cell in refresh.cells if cell.name != name))
                for refresh in record.refreshes
            ),
        )
        for record in observation.rounds
    )
    return replace(observation, rounds=rounds)


def test_pruning_files_removes_orphans_only(tmp_path: Path) -> None:
    store = make_store(tmp_path, observe(sample_case()), observe(sample_case(tiny_model(pool=1))))
    assert store.stems() == ("unit-p1.tape", "unit-p4.tape")
    assert prune_files(store, [PAIR], environ=ENVIRON) == ("unit-p1.tape",)
    assert store.stems() == ("unit-p4.tape",)
    assert store.problems([PAIR]) == ()
    with pytest.raises(GoldenError, match="every golden would be removed"):
        prune_files(store, [], environ=ENVIRON)


REFUSED = [
    ({"CI": "true"}, "CI is set: goldens are never updated in CI"),
    ({"CI": "1"}, "CI is set"),
    ({"PYTEST_XDIST_WORKER": "gw0"}, "never updated by parallel workers; run again without -n"),
]


@pytest.mark.parametrize(("environ", "text"), REFUSED)
def test_refused_here(tmp_path: Path, environ: dict[str, str], text: str) -> None:
    store = GoldenStore(tmp_path)
    with pytest.raises(GoldenError, match=text):
        GoldenUpdate(store, "all", "because", expected, environ=environ)
    with pytest.raises(GoldenError, match=text):
        prune_files(store, [PAIR], environ=environ)


def test_ci_set_to_false_is_no_ci(tmp_path: Path) -> None:
    update = GoldenUpdate(GoldenStore(tmp_path), "all", "because", expected, environ={"CI": "false"})
    assert update.apply().written == ()


def test_the_environment_of_the_process_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "1")
    with pytest.raises(GoldenError, match="CI is set"):
        GoldenUpdate(GoldenStore(tmp_path), "all", "because", expected)


@pytest.mark.parametrize(
    ("mode", "reason", "text"), [("some", "x", "'some' is none of new"), ("new", " ", "a reason")]
)
def test_mode_and_reason_are_checked(tmp_path: Path, mode: str, reason: str, text: str) -> None:
    with pytest.raises(GoldenError, match=text):
        GoldenUpdate(GoldenStore(tmp_path), mode, reason, expected, environ=ENVIRON)


def refused(update: GoldenUpdate) -> str:
    with pytest.raises(GoldenError) as raised:
        update.apply()
    assert "\n" not in str(raised.value)
    return str(raised.value)


def test_a_value_that_the_oracle_contradicts(tmp_path: Path) -> None:
    store = make_store(tmp_path, observe(sample_case()))
    before = store.load(*PAIR).reason
    update = update_of(store, observe(sample_case(), edit=at("b4.02", 0, "cu_seqlens_k", plus_one)))
    text = refused(update)
    assert text.startswith(
        "no golden was updated: unit-p4/shared/fusion-off/4-1-5/decode/bs4/plain/fa3/fp32: "
    )
    assert text.endswith("round b4.02, cu_seqlens_k, row 1, column 0: the oracle says 66, the run has 67")
    assert store.load(*PAIR).reason == before


def test_a_wide_value_that_the_oracle_contradicts_is_placed(tmp_path: Path) -> None:
    def change(value: Any) -> Any:
        value = value.copy()
        value[70] = -5
        return value

    update = update_of(
        GoldenStore(tmp_path), observe(sample_case(), edit=at("b4.00", 0, "page_table_1", change))
    )
    text = refused(update)
    assert "round b4.00, page_table_1, row 2, column 1: the oracle says" in text
    assert text.endswith("the run has -5")
    assert GoldenStore(tmp_path).stems() == ()


def test_another_dtype_than_the_oracles(tmp_path: Path) -> None:
    observation = observe(
        sample_case(), edit=at("b4.00", 0, "cu_seqlens_k", lambda value: value.astype(np.int64))
    )
    assert "cu_seqlens_k: the oracle says int32, the run has int64" in refused(
        update_of(GoldenStore(tmp_path), observation)
    )


def test_a_field_that_the_oracle_does_not_know(tmp_path: Path) -> None:
    def oracle(dims: Any, inputs: Any) -> Any:
        return {name: value for name, value in expected(dims, inputs).items() if name != FIELD}

    update = GoldenUpdate(GoldenStore(tmp_path), "all", "because", oracle, environ=ENVIRON)
    update.add(observe(sample_case()), ())
    assert f"{FIELD}: neither the oracle nor a reference confirms it (and 3 more)" in refused(update)


def test_fields_without_a_formula_need_their_reference(tmp_path: Path) -> None:
    case = sample_case(tiny_model(pool=1), kernel=Kernel.FLASHMLA_KV)
    store = GoldenStore(tmp_path)
    accept(store, observe(case))
    golden = store.load("unit-p1", "tape")
    assert any("flashmla_kv" in key for key in golden.entries)
    assert kinds(observe(case), golden) == []
    wrong = observe(case, edit=at("b4.01", None, "flashmla_metadata.num_splits", plus_one))
    assert kinds(wrong, golden) == ["value_differs"]
    assert "num_splits, row 1, column 0: the oracle says" in refused(update_of(store, wrong))
    bare = replace(observe(case), references={})
    assert "neither the oracle nor a reference confirms it" in refused(
        update_of(GoldenStore(tmp_path / "x"), bare)
    )


def test_the_oracle_is_asked_once_per_inputs(tmp_path: Path) -> None:
    asked = []

    def oracle(dims: Any, inputs: Any) -> Any:
        asked.append(inputs)
        return expected(dims, inputs)

    update = GoldenUpdate(GoldenStore(tmp_path), "all", "because", oracle, environ=ENVIRON)
    for path in (RefreshPath.SHARED, RefreshPath.INDEPENDENT):
        update.add(observe(sample_case(path=path)), ())
    assert len(asked) == len(BATCHES)


def test_an_observation_with_findings(tmp_path: Path) -> None:
    update = update_of(GoldenStore(tmp_path), observe(sample_case()), findings=[finding()])
    assert "has findings, first freshness/stale: is stale" in refused(update)


def test_the_golden_checks_own_findings_do_not_count(tmp_path: Path) -> None:
    update = update_of(GoldenStore(tmp_path), observe(sample_case()), findings=[finding("golden")])
    assert update.apply().written == ("unit-p4.tape",)


def test_known_findings_leave_values_out_but_not_structure(tmp_path: Path) -> None:
    store = GoldenStore(tmp_path)
    stale = observe(sample_case(), edit=at("b4.01", None, FIELD, plus_one))
    update_of(store, stale, findings=[finding(known="k1")]).apply()
    golden = store.load(*PAIR)
    assert not golden.entries
    assert not golden.outputs
    assert len(golden.structures) == 1


def test_two_cases_that_disagree(tmp_path: Path) -> None:
    case = sample_case()
    update = update_of(
        GoldenStore(tmp_path), observe(case), observe(case, edit=at("b4.00", 0, "draft_token", plus_one))
    )
    assert (
        "disagrees with an earlier case of this run: unit-p4.tape: output draft_token: 1 changed"
        in refused(update)
    )


def test_outputs_within_tolerance_do_not_churn(tmp_path: Path) -> None:
    def nudge(value: Any) -> Any:
        return value * np.float32(1.00001)

    store = make_store(tmp_path, observe(sample_case()))
    near = observe(sample_case(), edit=at("b4.00", None, "attention", nudge))
    assert len(accept(store, near, mode="all")) == 1
    far = observe(sample_case(), edit=at("b4.00", None, "attention", plus_one))
    lines = accept(store, far, mode="all")
    assert lines[0].startswith("unit-p4.tape: output attention: 3 changed, first embedded/fp32/fa3/S4/")


def test_other_cases_share_entries(tmp_path: Path) -> None:
    """A drill without an order of its own, another path and another kernel add labels and structure only."""
    store = make_store(tmp_path, observe(sample_case()))
    keys = store.load(*PAIR).entries.keys()
    for other in (
        sample_case(drill=Drill.CHURN),
        sample_case(path=RefreshPath.INDEPENDENT),
        sample_case(kernel=Kernel.TRTLLM),
        sample_case(drill=Drill.REPEAT),
    ):
        accept(store, observe(other))
        assert store.load(*PAIR).entries.keys() == keys
    labels = {label for entry in store.load(*PAIR).entries.values() for label in entry.labels}
    assert {label.split("/")[5] for label in labels} == {"plain", "repeat"}


def test_a_golden_of_another_geometry_is_not_updated(tmp_path: Path) -> None:
    store = make_store(tmp_path, observe(sample_case()))
    wider = msgspec.structs.replace(tiny_model(width=2048), name="unit-p4")
    update = update_of(store, observe(sample_case(wider)))
    assert "was made for another geometry or model than this run's" in refused(update)
    both = update_of(GoldenStore(tmp_path / "x"), observe(sample_case()), observe(sample_case(wider)))
    assert "has another model or geometry than earlier cases" in refused(both)


def test_a_damaged_golden_is_never_overwritten(tmp_path: Path) -> None:
    store = make_store(tmp_path, observe(sample_case()))
    (store.root / "unit-p4.tape.safetensors").write_bytes(b"junk")
    with pytest.raises(GoldenError, match="is truncated"):
        update_of(store, observe(sample_case()))


def test_the_digest_tier_keeps_no_value_in_full(tmp_path: Path) -> None:
    case = replace(sample_case(), engine=EngineKind.CUDA_GRAPH)
    store = make_store(tmp_path, observe(case))
    golden = store.load("unit-p4", "cuda_graph")
    assert golden.policy.tier == "digests"
    assert all(stored.full is None for entry in golden.entries.values() for stored in entry.values.values())
    assert kinds(observe(case), golden) == []
    wrong = observe(case, edit=at("b4.02", 1, "page_table_1", plus_one))
    (difference,) = check(wrong, golden)[0]
    assert difference.first is not None
    assert difference.first.got.startswith("sha256 ")


def test_the_report_is_echoed(tmp_path: Path) -> None:
    lines: list[str] = []
    report = update_of(GoldenStore(tmp_path), observe(sample_case())).apply(lines.append)
    assert tuple(lines) == report.lines()
    assert lines[-1] == "written: unit-p4.tape; why: because"
