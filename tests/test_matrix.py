from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import product

import msgspec
import pytest

from harness.axes import CONSTRAINTS, EMBEDDED_PATHS, PACKAGE_PATHS
from harness.case import Case
from harness.matrix import Plan, Selection, covering_array, full_matrix, uncovered
from harness.types import Drill, EngineKind, Kernel, Mode, Path
from tests.programs import MODELS

TAPE = EngineKind.TAPE
REAL = {name: model for name, model in MODELS.items() if model.matrix}
SMALL = {"tiny": msgspec.structs.replace(MODELS["tiny"], buckets=(1, 4), matrix=True)}


@pytest.fixture(scope="module")
def embedded() -> Plan:
    return covering_array(MODELS, "embedded", TAPE)


@pytest.fixture(scope="module")
def package() -> Plan:
    return covering_array(MODELS, "sglang", TAPE)


def drivable(case: Case, paths: tuple[Path, ...]) -> bool:
    """State once more, apart from the constraints, what a case may be."""
    one_backend = case.mode is not Mode.DECODE
    alone = (
        (Path.RELEASED,) if Path.RELEASED in paths else (Path.INDEPENDENT, Path.SHARED, Path.SHARED_IN_GRAPH)
    )
    return (
        case.path in (alone if one_backend else paths)
        and (not one_backend or case.variant == case.model.default_variant)
        and not (case.kernel is Kernel.FLASHMLA_KV and case.model.index_kpool > 1)
        and not (case.drill is Drill.PADDED and case.bucket == 1)
        and case.bucket in case.model.buckets
        and case.variant in case.model.variants
    )


def test_the_array_has_all_pairs_and_all_must_haves(embedded: Plan) -> None:
    assert 150 <= len(embedded.cases) <= 230
    assert uncovered(embedded.cases, MODELS, "embedded") == ((), ())


def test_a_packages_array_has_them_too(package: Plan) -> None:
    assert uncovered(package.cases, MODELS, "sglang") == ((), ())
    assert {case.path for case in package.cases} == set(PACKAGE_PATHS)
    assert {case.model.index_kpool for case in package.cases} == {1, 4}


def test_every_case_can_be_driven_and_is_named_once(embedded: Plan, package: Plan) -> None:
    for plan, paths in ((embedded, EMBEDDED_PATHS), (package, PACKAGE_PATHS)):
        assert all(drivable(case, paths) for case in plan.cases)
        assert max(Counter(case.id for case in plan.cases).values()) == 1
        assert not any(case.model.name == "tiny" for case in plan.cases)


def test_what_the_project_exists_for_is_in_the_array(embedded: Plan) -> None:
    """The must-have list again, from the issue and not from the code."""
    cases = embedded.cases
    decode = [case for case in cases if case.mode is Mode.DECODE]
    seen = {(c.model.name, c.fusion, c.path) for c in decode}
    assert seen == set(product(REAL, (False, True), EMBEDDED_PATHS))
    depths = {(c.model.index_kpool, c.fusion, c.path, c.variant.steps) for c in decode}
    # P = 1 never fuses: fusion on is driven there for every path, not for every depth.
    assert depths >= set(product((4,), (False, True), EMBEDDED_PATHS, (2, 3, 4, 5, 6)))
    assert depths >= set(product((1,), (False,), EMBEDDED_PATHS, (2, 3, 4, 5, 6)))
    drills = {(c.model.index_kpool, c.path, c.drill) for c in decode}
    assert drills >= set(product((4,), EMBEDDED_PATHS, Drill))
    least = {(c.model.name, c.path) for c in decode if c.bucket >= 2 and c.backends >= 2}
    assert least == set(product(REAL, EMBEDDED_PATHS))
    populated = {(c.model.index_kpool, c.path) for c in decode if c.bucket == 32 and c.variant.steps >= 4}
    assert populated == set(product((1, 4), EMBEDDED_PATHS))
    references = {
        (c.model.index_kpool, c.mode, c.bucket)
        for c in cases
        if c.path is Path.INDEPENDENT and c.drill is Drill.PLAIN
    }
    assert references == set(product((1, 4), Mode, (1, 2, 4, 8, 32)))


def test_a_missing_case_is_noticed(embedded: Plan) -> None:
    """Without its cases of one pair, or of one must-have, the array does not cover."""
    pair = [c for c in embedded.cases if not (c.path is Path.SHARED and c.drill is Drill.DELAYED)]
    missing, _ = uncovered(pair, MODELS, "embedded")
    assert {"path": Path.SHARED, "drill": Drill.DELAYED} in missing
    depth = [c for c in embedded.cases if not (c.path is Path.SHARED and c.fusion and c.variant.steps == 4)]
    _, musts = uncovered(depth, MODELS, "embedded")
    wanted = {"fusion": True, "path": Path.SHARED, "steps": 4, "mode": Mode.DECODE}
    assert any(wanted.items() <= must.items() for must in musts)


def test_arrays_are_the_same_whenever_they_are_made(embedded: Plan) -> None:
    again = covering_array(MODELS, "embedded", TAPE)
    assert [case.id for case in again.cases] == [case.id for case in embedded.cases]
    on_gpu = covering_array(MODELS, "embedded", EngineKind.CUDA_GRAPH)
    assert [case.id for case in on_gpu.cases] == [case.id for case in embedded.cases]
    assert {case.engine for case in on_gpu.cases} == {EngineKind.CUDA_GRAPH}


def test_what_cannot_be_is_listed_with_its_reason(embedded: Plan, package: Plan) -> None:
    reasons = {constraint.reason: constraint.packages_only for constraint in CONSTRAINTS}
    assert {reason for _, reason in embedded.not_applicable} == {r for r, only in reasons.items() if not only}
    assert {reason for _, reason in package.not_applicable} <= set(reasons)
    assert any(reasons[reason] for _, reason in package.not_applicable)


@pytest.mark.parametrize(
    ("selection", "reason"),
    [
        (Selection(models=("glm-5",)), "model"),
        (Selection(paths=(Path.SHARED, Path.SHARED_IN_GRAPH)), "path"),
        (Selection(fusion=(True,)), "fusion"),
        (Selection(steps=(4, 6)), "steps"),
        (Selection(modes=(Mode.DRAFT_EXTEND,)), "mode"),
        (Selection(drills=(Drill.RECAPTURE,)), "drill"),
        (Selection(buckets=(32,)), "bucket"),
        (Selection(kernels=(Kernel.TRTLLM,)), "kernel"),
        (Selection(cases=("*/shared/*/decode/*",)), "case"),
    ],
)
def test_filters_skip_the_rest_with_a_reason(selection: Selection, reason: str, embedded: Plan) -> None:
    plan = covering_array(MODELS, "embedded", TAPE, selection)
    kept = [case.id for case in plan.cases]
    assert kept
    assert kept == [case.id for case in embedded.cases if not selection.rejects(case)]
    assert len(kept) + len(plan.skipped) == len(embedded.cases)
    assert {text for _, text in plan.skipped} == {f"left out by --{reason}"}


def test_a_case_is_selected_by_its_id(embedded: Plan) -> None:
    wanted = embedded.cases[17]
    plan = covering_array(MODELS, "embedded", TAPE, Selection(cases=(wanted.id,)))
    assert plan.cases == (wanted,)


def test_filters_combine_and_may_leave_nothing() -> None:
    plan = covering_array(MODELS, "embedded", TAPE, Selection(models=("glm-5",), kernels=(Kernel.TRTLLM,)))
    assert plan.cases
    assert all(c.model.name == "glm-5" and c.kernel is Kernel.TRTLLM for c in plan.cases)
    assert not covering_array(MODELS, "embedded", TAPE, Selection(models=("absent",))).cases
    assert covering_array({}, "embedded", TAPE) == Plan()


def test_a_model_outside_the_default_matrix_gets_an_array_of_its_own() -> None:
    plan = covering_array(MODELS, "embedded", TAPE, Selection(models=("tiny",)))
    assert {case.model.name for case in plan.cases} == {"tiny"}
    own = {"tiny": msgspec.structs.replace(MODELS["tiny"], matrix=True)}
    assert uncovered([replace(case, model=own["tiny"]) for case in plan.cases], own, "embedded") == ((), ())


def test_a_case_of_such_a_model_needs_no_other_name() -> None:
    wanted = covering_array(MODELS, "embedded", TAPE, Selection(models=("tiny",))).cases[3]
    assert covering_array(MODELS, "embedded", TAPE, Selection(cases=(wanted.id,))).cases == (wanted,)


def test_the_full_matrix_is_the_cross_product_less_what_cannot_be() -> None:
    plan = full_matrix(SMALL, "embedded", TAPE)
    decode = 5 * 5  # paths, steps
    alone = 2 * 3  # modes, paths
    buckets_and_drills = 2 * len(Drill) - 1  # padded needs more than one row
    fusion_kernels_precisions = 2 * 2 * 2
    assert len(plan.cases) == (decode + alone) * buckets_and_drills * fusion_kernels_precisions
    assert len({case.id for case in plan.cases}) == len(plan.cases)
    assert all(drivable(case, EMBEDDED_PATHS) for case in plan.cases)
    few = full_matrix(SMALL, "embedded", TAPE, Selection(drills=(Drill.PLAIN,), buckets=(4,)))
    assert len(few.cases) == (decode + alone) * fusion_kernels_precisions
