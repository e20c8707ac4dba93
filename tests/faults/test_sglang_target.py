"""The released SGLang as the catalogue opens it: nothing is changed until something is planted."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path as FilePath
from typing import Any

import pytest
import torch

from harness.case import Case
from harness.engine.tape import TapeEngine
from harness.faults.bench import make_laboratory
from harness.faults.catalogue import Fault, select
from harness.faults.mechanisms.combined import Combined, Unchanged
from harness.faults.runner import Options
from harness.faults.scene import Injection, Scene, Trace
from harness.faults.sglang import seam
from harness.faults.sglang.geometry import P4, at
from harness.faults.sglang.seam import AtSeam, StagedRefresh, opened
from harness.faults.sglang.target import SglangTarget
from harness.faults.trial import Fate
from harness.faults.wrapped import faulty
from harness.fields import COUNTER
from harness.probe.leaves import leaf_tensors
from harness.traffic import build_program
from harness.truth import Truth
from harness.types import Kernel, Path
from tests.sut.sglang.support import loaded

pytestmark = pytest.mark.sglang
CASES = FilePath(__file__).parent.parent.parent / "cases"


@pytest.fixture(autouse=True)
def _simulated() -> None:
    loaded()  # skips where this process has loaded the real one


def no_span(name: str, step: int = -1) -> AbstractContextManager[None]:
    return nullcontext()


def opened_at(case: Case) -> tuple[SglangTarget, Callable[[int], None]]:
    """Return a captured target and a call that stages and refreshes a round."""
    target = SglangTarget(case, TapeEngine(), no_span)
    program, truth = build_program(case), Truth(rounds=64)
    target.init_graph_state()
    for bucket in program.buckets:
        target.stage(truth.of(case, program, program.capture[bucket]).inputs)
        target.prepare_capture(bucket)

    def refresh(index: int) -> None:
        round_ = program.rounds[index]
        target.stage(truth.of(case, program, round_).inputs)
        target.refresh(round_.bucket)

    return target, refresh


def test_a_wrapper_stands_around_a_function_of_sglang_during_its_calls_only() -> None:
    case = at(Path.RELEASED)
    target, refresh = opened_at(case)
    before = dict(vars(target.seams.step_backend))
    seen: list[tuple[int, bool]] = []

    def around(plain: Callable[..., None], backend: Any, metadata: Any) -> None:
        seen.append((backend.speculative_step_id, metadata.topk_v2_plan is not None))
        plain(backend, metadata)

    target.wrap(seam.PLAN.owners, seam.PLAN.name, around)
    refresh(0)
    assert seen == [(0, True), (1, True)]
    assert dict(vars(target.seams.step_backend)) == before
    assert target.route() == Path.INDEPENDENT


def test_a_wrapper_that_leaves_a_call_out_leaves_its_leaf_as_it_was() -> None:
    case = at()
    target, refresh = opened_at(case)
    target.wrap(seam.PLAN.owners, seam.PLAN.name, lambda plain, backend, metadata: None)
    plan = leaf_tensors(target.roots()[0].metadata[2])["topk_v2_plan"]
    plan.fill_(-5)
    refresh(0)
    assert (plan == -5).all()


def test_inputs_can_be_exchanged_for_one_refresh() -> None:
    case = at(model=P4)
    target, refresh = opened_at(case)
    refresh(0)
    right = target.backends[0].forward_metadata.page_table_1.clone()
    given = target.given(2)
    other = type(given)(given.lengths.roll(1), given.requests, given.accepted, given.table + 64)
    with target.reading(other):
        target.refresh(2)
    assert torch.equal(target.backends[0].forward_metadata.page_table_1, right + 64)
    assert torch.equal(target.backends[0].forward_metadata.cache_seqlens_int32, other.lengths.int())
    target.refresh(2)
    assert torch.equal(target.backends[0].forward_metadata.page_table_1, right)


def test_objects_and_state_can_be_exchanged() -> None:
    target, refresh = opened_at(at(Path.RELEASED, kernel=Kernel.TRTLLM))
    refresh(0)
    target.point(1, 2, target.roots()[0].metadata[2])
    assert target.roots()[1].active is target.roots()[0].active
    for name in (COUNTER, "page_table"):
        fresh = torch.zeros_like(target.roots()[0].state[name])
        target.rebind_state(0, name, fresh)
        assert target.roots()[0].state[name] is fresh


def test_nested_state_can_be_exchanged() -> None:
    target, _ = opened_at(at(Path.RELEASED, kernel=Kernel.FLASHMLA_KV))
    fresh = torch.zeros(3, dtype=torch.int32)
    target.rebind_state(0, "flashmla_metadata.num_splits", fresh)
    assert target.roots()[0].state["flashmla_metadata"].num_splits is fresh


def run_with(injection: Injection, case: Case) -> Trace:
    """Make, capture and refresh a system with an injection; return what that did."""
    trace = Trace()
    sut = faulty(SglangTarget, injection, trace)(case, TapeEngine(), no_span)
    program, truth = build_program(case), Truth(rounds=64)
    sut.init_graph_state()
    for bucket in program.buckets:
        sut.stage(truth.of(case, program, program.capture[bucket]).inputs)
        sut.prepare_capture(bucket)
    round_ = program.rounds[0]
    sut.stage(truth.of(case, program, round_).inputs)
    sut.refresh(round_.bucket)
    return trace


def test_a_seam_is_due_in_the_calls_and_steps_that_are_named() -> None:
    def count(scene: Scene, plain: Callable[..., Any], *args: Any, **given: Any) -> Any:
        scene.hit(False)
        return plain(*args, **given)

    both = AtSeam(seam.SCHEDULE, count, "counts")
    one = AtSeam(seam.SCHEDULE, count, "counts", steps=(1,))
    init = AtSeam(seam.INIT, count, "counts", during=(seam.INITIAL,))
    capture = AtSeam(seam.SHARE, count, "counts", during=(seam.CAPTURE,))
    assert run_with(both, at(Path.RELEASED)).reached == 2
    assert run_with(one, at(Path.RELEASED)).reached == 1
    assert run_with(init, at(Path.RELEASED)).reached == 1
    assert run_with(capture, at()).reached == 2


def test_the_staged_form_of_sharing_goes_through_the_precomputed_input() -> None:
    calls: list[str] = []

    def note(scene: Scene, plain: Callable[..., Any], *args: Any, **given: Any) -> Any:
        calls.append("precompute")
        return plain(*args, **given)

    run_with(Combined((StagedRefresh(), AtSeam(seam.PRECOMPUTE, note, "notes")), "both"), at())
    run_with(AtSeam(seam.PRECOMPUTE, note, "notes"), at())
    assert calls == ["precompute"]


def test_only_sglang_can_be_opened_at_its_seams() -> None:
    scene = Scene(at(), TapeEngine(), object(), Trace())  # type: ignore[arg-type]
    with pytest.raises(AssertionError):
        opened(scene)


def test_entries_end_as_the_catalogue_says_and_what_is_known_kills_nothing() -> None:
    laboratory = make_laboratory(Options(CASES, "sglang"))
    (killed,) = (one for entry in select("sglang", (), ("X4",)) for one in laboratory.attempt(entry))
    assert (killed.fate, killed.first) == (Fate.KILLED, "refresh")
    nothing = Fault("A9", "Nothing.", at(Path.RELEASED, steps=4), Unchanged(), "freshness")
    (known,) = laboratory.attempt(nothing)
    assert (known.fate, dict(known.spoke)) == (Fate.SURVIVED, {})
