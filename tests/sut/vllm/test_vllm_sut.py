"""The released vLLM driven and judged: the ordinary loop, the fused one, the repaired one, and reuse."""

from dataclasses import replace

import pytest

from harness.driver import drive
from harness.errors import CaseError
from harness.findings import Verdict
from harness.sut.vllm import minimal
from harness.sut.vllm.sut import make_sut
from harness.traffic import build_program
from harness.truth import Truth
from harness.types import Drill, Mode, Path
from harness.worker import make_engine

from .support import case, loaded, verified

pytestmark = pytest.mark.vllm

KNOWN = "vllm-fused-tail-slots-keep-captured-blocks"


@pytest.mark.parametrize(
    ("path", "pool", "steps", "drill"),
    [
        (Path.MULTI_STEP, 4, 3, Drill.PADDED),
        (Path.MULTI_STEP, 1, 5, Drill.BUCKET_SWITCH),
        (Path.FUSED_MULTI_STEP, 1, 5, Drill.OVERSIZE),
        (Path.FUSED_REPAIRED, 4, 5, Drill.BUCKET_SWITCH),
        (Path.FUSED_REPAIRED, 4, 2, Drill.DELAYED),
        (Path.BLOCK_TABLE_REUSE, 4, 2, Drill.PLAIN),
        (Path.INDEPENDENT, 1, 2, Drill.PADDED),
    ],
)
def test_these_are_clean(path: Path, pool: int, steps: int, drill: Drill) -> None:
    result = verified(case(path, pool, steps=steps, drill=drill))
    assert result.findings == ()
    assert result.replays > 5
    assert result.elements > 1000


def test_the_released_update_shows_exactly_the_known_finding() -> None:
    result = verified(case(Path.FUSED_MULTI_STEP, drill=Drill.REPEAT))
    assert result.verdict is Verdict.KNOWN
    assert {finding.known for finding in result.findings} == {KNOWN}
    assert {finding.field for finding in result.findings} == {"tail.slot_mapping"}
    assert {step for finding in result.findings for step in finding.steps} == {0, 1}


def test_without_probes_the_graph_reads_the_captured_null_block_then_an_eager_batchs() -> None:
    loaded()
    seen = list(minimal.observe(case(Path.FUSED_MULTI_STEP, bucket=4)))
    assert not any(one.right for one in seen)
    assert all(slot < 0 for one in seen if "replay" in one.what for slot in one.read)
    eager = [one.read for one in seen if one.what == "after an eager batch"]
    assert [[slot // 8 for slot in slots] for slots in eager] == [[2, 5, 8, 11]] * 2


def test_without_probes_the_repaired_update_is_right() -> None:
    loaded()
    assert all(one.right for one in minimal.observe(case(bucket=4)))


def test_an_observation_says_what_was_real_and_which_path_ran() -> None:
    of = case(Path.MULTI_STEP, drill=Drill.CHURN)
    loaded()
    observation = drive(of, build_program(of), Truth(), make_sut, make_engine(of.engine))
    assert observation.route == Path.MULTI_STEP
    assert "draft decode loop" in observation.facts["vllm.real"]
    steps = {cell.step for record in observation.rounds for cell in record.refreshes[-1].cells}
    assert steps == {0, 1}


def test_a_path_or_mode_that_it_does_not_have_is_named() -> None:
    engine = make_engine(case().engine)
    with pytest.raises(CaseError, match="path shared is not one of vLLM's"):
        make_sut(case(Path.SHARED), engine, lambda name, step=-1: None)  # type: ignore[arg-type]
    wrong = replace(case(), mode=Mode.TARGET_VERIFY)
    with pytest.raises(CaseError, match="driven in mode decode"):
        make_sut(wrong, engine, lambda name, step=-1: None)  # type: ignore[arg-type]
