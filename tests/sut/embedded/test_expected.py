"""The declared contract of each path equals what the write ledger measures of a correct run."""

from __future__ import annotations

import dataclasses
from collections import Counter

import pytest

from harness.case import Case, Variant
from harness.engine.tape import TapeEngine
from harness.errors import CaseError
from harness.probe.leaves import leaf_tensors
from harness.probe.ledger import Ledger
from harness.sut.embedded.sut import make_sut
from harness.types import Kernel, Mode, Path
from tests.helpers import make_case, tiny_model
from tests.sut.embedded.support import PATHS, built, no_span, random_inputs, refreshed


def measured(case: Case, bucket: int) -> tuple[dict[tuple[int, str], int], Counter[str]]:
    """Return writes by (step, leaf) and spans of one refresh."""
    ledger = Ledger()
    sut = make_sut(case, TapeEngine(), ledger.span)
    sut.init_graph_state()
    sut.stage(random_inputs(case, bucket, bucket, 0))
    sut.prepare_capture(bucket)
    sut.stage(random_inputs(case, bucket, bucket, 1))
    with ledger:
        sut.forward(bucket) if case.path is Path.SHARED_IN_GRAPH else sut.refresh(bucket)
    leaves = [
        (step, name, tensor)
        for step, root in enumerate(sut.roots())
        for name, tensor in leaf_tensors(root.metadata[bucket]).items()
    ]
    spans = Counter(span.name for span in ledger.spans())
    assert all(span.writes for span in ledger.spans())
    return {(one.step, one.name): one.writes for one in ledger.entries(leaves)}, spans


@pytest.mark.parametrize(
    ("pool", "fusion", "kernel"),
    [(1, False, Kernel.FLASHMLA_KV), (4, False, Kernel.FA3), (4, True, Kernel.TRTLLM)],
)
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    ("mode", "steps"), [(Mode.DECODE, 3), (Mode.DECODE, 6), (Mode.TARGET_VERIFY, 4), (Mode.DRAFT_EXTEND, 4)]
)
def test_declared_equals_measured(
    mode: Mode, steps: int, path: Path, pool: int, fusion: bool, kernel: Kernel
) -> None:
    case = make_case(tiny_model(pool), path=path, fusion=fusion, mode=mode, steps=steps, kernel=kernel)
    writes, spans = measured(case, 4)
    declared = built(case).expectation(4)
    assert writes == {(one.step, one.name): one.writes for one in declared.writes}
    assert {name: spans[name] for name in declared.spans} == dict(declared.spans)
    assert set(spans) - set(declared.spans) <= {"refresh", "forward"}


@pytest.mark.parametrize("path", PATHS)
def test_declared_equals_measured_where_no_plan_is_written(path: Path) -> None:
    case = make_case(path=path, steps=5)
    writes, _ = measured(case, 1)
    assert writes == {(one.step, one.name): one.writes for one in built(case).expectation(1).writes}
    copied = path is Path.SIBLING_COPY  # a sibling copies plans without asking whether they were written
    assert any(name.endswith("plan") and "." not in name for _, name in writes) == copied


def test_copies_per_refresh_are_those_of_the_specification() -> None:
    spans = {path: built(make_case(path=path, steps=6)).expectation(4).spans for path in PATHS}
    assert [spans[path]["fused_copy"] for path in PATHS] == [5, 5, 3, 0, 0]
    assert [spans[path]["derived_refresh"] for path in PATHS] == [5, 1, 2, 1, 1]
    assert [spans[path]["precompute"] for path in PATHS] == [1, 1, 1, 0, 0]


@pytest.mark.parametrize(
    ("path", "steps", "route"),
    [
        (Path.MULTI_DESTINATION_COPY, 3, Path.INDEPENDENT),
        (Path.MULTI_DESTINATION_COPY, 4, Path.MULTI_DESTINATION_COPY),
        (Path.SIBLING_COPY, 2, Path.INDEPENDENT),
        (Path.SIBLING_COPY, 3, Path.SIBLING_COPY),
        (Path.SHARED, 2, Path.SHARED),
        (Path.SHARED_IN_GRAPH, 5, Path.SHARED_IN_GRAPH),
        (Path.INDEPENDENT, 5, Path.INDEPENDENT),
    ],
)
def test_route_is_evidence_and_as_declared(path: Path, steps: int, route: Path) -> None:
    case = make_case(path=path, steps=steps)
    sut = built(case)
    assert sut.route() == ""
    refreshed(sut, random_inputs(case, 4, 4, 1))
    assert sut.route() == sut.expectation(4).route == route


def test_sharing_is_declared_from_two_steps_on() -> None:
    assert not built(make_case(path=Path.SHARED, steps=2)).expectation(4).shared
    assert built(make_case(path=Path.SHARED, steps=3)).expectation(4).shared


def test_fusion_that_cannot_be_in_force_warns_with_pools_and_is_silent_without() -> None:
    with pytest.warns(UserWarning, match="built the ordinary way"):
        sut = make_sut(make_case(tiny_model(4, topk=62), fusion=True), TapeEngine(), no_span)
    assert sut.facts()["builder"] == "ordinary"
    assert built(make_case(tiny_model(1), fusion=True)).facts()["builder"] == "ordinary"
    assert built(make_case(tiny_model(4), fusion=True)).facts()["builder"] == "fused"


@pytest.mark.parametrize(
    ("case", "message"),
    [
        (make_case(path=Path.RELEASED), "no path released"),
        (make_case(tiny_model(4), kernel=Kernel.FLASHMLA_KV), "index_kpool = 1 only"),
        (make_case(tiny_model(4, width=1024 + 64)), "not a multiple of its page, 256"),
        (dataclasses.replace(make_case(), variant=Variant(steps=18, topk=1, draft_tokens=4)), "more than 16"),
    ],
    ids=["path", "kernel", "width", "steps"],
)
def test_cases_that_the_system_cannot_be_are_refused_in_one_line(case: Case, message: str) -> None:
    with pytest.raises(CaseError, match=message) as caught:
        make_sut(case, TapeEngine(), no_span)
    assert "\n" not in str(caught.value)
