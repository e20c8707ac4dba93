"""The embedded system with the fused refresh: chosen as a system, on the tape, seen by ledger and graph."""

from __future__ import annotations

from functools import partial
from pathlib import Path as FilePath

import pytest
import torch

from harness.case import Case
from harness.casefile import load_models
from harness.engine.tape import TapeEngine
from harness.errors import CaseError
from harness.fields import Dims, plan_is_written
from harness.matrix import covering_array
from harness.options import RunOptions, factory_of
from harness.ordinary import ordinary_of
from harness.probe.leaves import leaf_tensors
from harness.probe.ledger import Ledger
from harness.sut.embedded.metadata import named_leaves
from harness.sut.embedded.sut import make_fused_sut
from harness.types import Drill, EngineKind, Kernel, Mode, Path
from tests.helpers import make_case, tiny_model
from tests.sut.embedded.fused_support import need_interpreter
from tests.sut.embedded.support import no_span, random_inputs, reference_values, wrong_leaves

ROOT = FilePath(__file__).parent.parent.parent.parent
FUSED = "embedded-fused"
SHARING = (Path.SHARED, Path.SHARED_IN_GRAPH)


@pytest.fixture(scope="module", autouse=True)
def _interpreter() -> None:
    need_interpreter()


def case_of(path: Path, mode: Mode = Mode.DECODE, pool: int = 4, kernel: Kernel = Kernel.FA3) -> Case:
    return make_case(tiny_model(pool, width=512), path=path, mode=mode, kernel=kernel, steps=4, sut=FUSED)


@pytest.mark.parametrize(
    ("mode", "pool", "kernel"),
    [
        (Mode.DECODE, 4, Kernel.TRTLLM),
        (Mode.DECODE, 1, Kernel.FLASHMLA_KV),
        (Mode.TARGET_VERIFY, 4, Kernel.FA3),
        (Mode.DRAFT_EXTEND, 4, Kernel.FA3),
    ],
)
@pytest.mark.parametrize("path", SHARING)
def test_one_launch_writes_every_leaf_once(path: Path, mode: Mode, pool: int, kernel: Kernel) -> None:
    case, ledger = case_of(path, mode, pool, kernel), Ledger()
    sut = make_fused_sut(case, TapeEngine(), ledger.span)
    sut.init_graph_state()
    sut.stage(random_inputs(case, 2, 2, 0))
    sut.prepare_capture(2)
    inputs = random_inputs(case, 2, 2, 1)
    sut.stage(inputs)
    with ledger:
        sut.forward(2) if path is Path.SHARED_IN_GRAPH else sut.refresh(2)
    leaves = [
        (step, name, tensor)
        for step, root in enumerate(sut.roots())
        for name, tensor in leaf_tensors(root.metadata[2]).items()
    ]
    declared = sut.expectation(2)
    writes = {(one.step, one.name): one.writes for one in ledger.entries(leaves)}
    assert writes == {(one.step, one.name): one.writes for one in declared.writes}
    assert set(writes.values()) == {1}
    assert {span.name for span in ledger.spans()} - {"refresh", "forward"} == {"one_launch"}
    assert dict(declared.spans) == {"one_launch": 1}
    assert sut.route() == path
    right = reference_values(case, inputs, sut)
    assert wrong_leaves(case, inputs, dict(named_leaves(sut.roots()[0].metadata[2])), right) == set()


@pytest.mark.parametrize("path", SHARING)
def test_replays_on_the_tape_read_the_round_that_was_staged(path: Path) -> None:
    case = case_of(path)
    sut = make_fused_sut(case, TapeEngine(), no_span)
    engine = TapeEngine()
    sut.init_graph_state()
    sut.stage(random_inputs(case, 4, 4, 0))
    sut.prepare_capture(4)
    graph, outputs = engine.capture(partial(sut.forward, 4))
    for live, seed in ((4, 1), (3, 2)):
        inputs = random_inputs(case, 4, live, seed)
        sut.stage(inputs)
        sut.refresh(4)
        engine.launch(graph)
        engine.synchronize()
        right = reference_values(case, inputs, sut)
        for step in outputs:
            assert wrong_leaves(case, inputs, step.read, right) == set()


def test_a_recapture_binds_the_launch_to_the_new_buffers() -> None:
    case = case_of(Path.SHARED)
    sut = make_fused_sut(case, TapeEngine(), no_span)
    sut.init_graph_state()
    sut.stage(random_inputs(case, 2, 2, 0))
    sut.prepare_capture(2)
    old = sut.roots()[0].metadata[2].cache_seqlens_int32
    kept = old.clone()
    sut.prepare_capture(2)
    sut.stage(random_inputs(case, 2, 2, 1))
    sut.refresh(2)
    assert torch.equal(old, kept)
    assert not torch.equal(sut.roots()[0].metadata[2].cache_seqlens_int32, kept)


def test_it_is_a_system_whose_reference_is_the_ordinary_refresh() -> None:
    factory = factory_of(RunOptions(cases_dir=ROOT, golden_dir=ROOT, sut=FUSED))
    reference = ordinary_of(case_of(Path.SHARED))
    assert (reference.sut, reference.path) == (FUSED, Path.INDEPENDENT)
    facts = {
        case.path: factory(case, TapeEngine(), no_span).facts()["refresh"]
        for case in (reference, case_of(Path.SHARED))
    }
    assert facts[Path.INDEPENDENT] == "torch operations"
    assert facts[Path.SHARED].startswith("one launch, Triton")
    assert facts[Path.SHARED].endswith("interpreted")
    with pytest.raises(CaseError, match="no path sibling_copy with the fused refresh"):
        factory(case_of(Path.SIBLING_COPY), TapeEngine(), no_span)


def test_its_matrix_has_every_mode_drill_and_pool_size() -> None:
    models = load_models(ROOT / "cases")
    cases = covering_array(models, FUSED, EngineKind.TAPE).cases
    assert {case.path for case in cases} == set(SHARING)
    assert {case.mode for case in cases} == set(Mode)
    assert {case.model.index_kpool for case in cases} == {1, 4}
    assert {(case.path, case.drill) for case in cases} == {
        (path, drill) for path in SHARING for drill in Drill
    }
    assert any(plan_is_written(Dims.of(case, case.bucket)) for case in cases)
