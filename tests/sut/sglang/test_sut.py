import sys
from collections import Counter
from dataclasses import replace

import msgspec
import pytest
import torch

from harness.errors import CaseError, NotDrivable, UsageError
from harness.fields import COUNTER
from harness.observation import LedgerEntry
from harness.probe.leaves import walk_roots
from harness.probe.ledger import Ledger
from harness.probe.observers import watched_leaves
from harness.probe.regions import Regions
from harness.sut.sglang import shared
from harness.sut.sglang.eager import run_attention
from harness.sut.sglang.sut import SglangSut, make_sut
from harness.types import Kernel, Mode, Path

from .support import Cpu, Spans, batch, build, case, loaded, wrong_leaves

pytestmark = pytest.mark.sglang

STALE = {"paged_mqa_schedule_metadata": {0, 1, 2}, "topk_v2_plan": {0, 1, 2}}
SHARED = (Path.SHARED, Path.SHARED_IN_GRAPH)


def refreshed(sut: SglangSut, of, seed: int = 1):  # type: ignore[no-untyped-def]
    """Stage a round, refresh where the path says so, and return the inputs."""
    inputs = batch(of, seed, live=3 if of.bucket == 4 else None)
    sut.stage(inputs)
    sut.refresh(of.bucket)
    if of.path is Path.SHARED_IN_GRAPH:
        sut.forward(of.bucket)
    return inputs


@pytest.mark.parametrize(("pool", "fusion"), [(1, False), (1, True), (4, False)])
@pytest.mark.parametrize("steps", [4, 5])
def test_released_multi_destination_copy_leaves_schedule_and_plan_of_three_steps(
    pool: int, fusion: bool, steps: int
) -> None:
    of = case(pool, fusion=fusion, steps=steps)
    sut = build(of)
    inputs = refreshed(sut, of)
    assert wrong_leaves(sut, of, inputs) == STALE
    assert sut.route() == Path.MULTI_DESTINATION_COPY


@pytest.mark.parametrize("pool", [1, 4])
def test_released_is_right_again_at_the_captured_lengths(pool: int) -> None:
    of = case(pool)
    sut = build(of)
    refreshed(sut, of)
    inputs = batch(of, 0)
    sut.stage(inputs)
    sut.refresh(of.bucket)
    assert wrong_leaves(sut, of, inputs) == {}


@pytest.mark.parametrize(
    ("pool", "fusion", "steps", "route"),
    [
        (1, False, 2, Path.INDEPENDENT),
        (1, False, 3, Path.INDEPENDENT),
        (4, False, 3, Path.INDEPENDENT),
        (4, True, 2, Path.INDEPENDENT),
        (4, True, 3, Path.SIBLING_COPY),
        (4, True, 5, Path.SIBLING_COPY),
    ],
)
def test_other_released_paths_are_right(pool: int, fusion: bool, steps: int, route: Path) -> None:
    of = case(pool, fusion=fusion, steps=steps)
    sut = build(of)
    assert wrong_leaves(sut, of, refreshed(sut, of)) == {}
    assert sut.route() == route == sut.expectation(of.bucket).route


@pytest.mark.parametrize("path", SHARED)
@pytest.mark.parametrize(("pool", "fusion"), [(1, False), (4, False), (4, True)])
def test_sharing_is_right_in_every_step(pool: int, fusion: bool, path: Path) -> None:
    of = case(pool, path, fusion=fusion)
    sut = build(of)
    assert wrong_leaves(sut, of, refreshed(sut, of)) == {}
    assert sut.route() == path == sut.expectation(of.bucket).route


@pytest.mark.parametrize("path", SHARED)
def test_sharing_steps_own_nothing_but_their_counter(path: Path) -> None:
    of = case(1, path, kernel=Kernel.TRTLLM)
    sut = build(of)
    refreshed(sut, of)
    first, *others = sut.roots()
    assert "page_table" in first.state
    for root in others:
        assert set(root.state) == {COUNTER}
        assert root.metadata[of.bucket] is first.metadata[of.bucket] is root.active
    counters = {root.state[COUNTER].data_ptr() for root in (first, *others)}
    assert len(counters) == len(others) + 1


@pytest.mark.parametrize("mode", [Mode.TARGET_VERIFY, Mode.DRAFT_EXTEND])
@pytest.mark.parametrize(("pool", "fusion"), [(1, False), (4, False), (4, True)])
def test_single_backend_modes_are_right(mode: Mode, pool: int, fusion: bool) -> None:
    of = case(pool, fusion=fusion, mode=mode, bucket=2)
    sut = build(of)
    assert wrong_leaves(sut, of, refreshed(sut, of)) == {}
    assert sut.route() == Path.INDEPENDENT


def test_flashmla_leaves_follow_the_planner() -> None:
    of = case(1, Path.SHARED, kernel=Kernel.FLASHMLA_KV)
    sut = build(of)
    assert wrong_leaves(sut, of, refreshed(sut, of)) == {}
    assert sut.reference("cache_seqlens_int32", batch(of, 1)) is None


@pytest.mark.parametrize(
    "of",
    [
        case(1),
        case(4),
        case(4, fusion=True),
        case(1, steps=3),
        case(4, steps=3),
        case(4, fusion=True, bucket=2),
        case(1, Path.SHARED),
        case(4, Path.SHARED, fusion=True),
        case(4, fusion=True, mode=Mode.TARGET_VERIFY, bucket=2),
        case(4, mode=Mode.DRAFT_EXTEND, bucket=2),
        case(1, kernel=Kernel.FLASHMLA_KV),
    ],
    ids=lambda of: of.id,
)
def test_ledger_and_spans_are_the_declared_ones(of) -> None:  # type: ignore[no-untyped-def]
    regions = Regions()
    ledger = Ledger(regions)
    sut = SglangSut(of, Cpu(), ledger.span, (of.bucket,), loaded())  # type: ignore[arg-type]
    sut.init_graph_state()
    sut.stage(batch(of, 0))
    sut.prepare_capture(of.bucket)
    sut.stage(batch(of, 1))
    leaves = watched_leaves(walk_roots(sut.roots(), regions), of.bucket)
    with ledger:
        sut.refresh(of.bucket)
    declared = sut.expectation(of.bucket)
    assert _table(ledger.entries(leaves)) == _table(declared.writes)
    counts: dict[str, int] = {}
    for span in ledger.spans():
        assert span.writes > 0, span
        counts[span.name] = counts.get(span.name, 0) + 1
    assert counts == dict(declared.spans)


def _table(entries: tuple[LedgerEntry, ...]) -> dict[tuple[int, str], int]:
    return {(entry.step, entry.name): entry.writes for entry in entries}


def test_a_failing_copy_kernel_shows_in_print_and_route(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from harness.sut.sglang.standins import CopyModule

    of = case(1)
    sut = build(of)

    def fail(self: object, *args: object) -> None:
        raise RuntimeError("no such kernel")

    monkeypatch.setattr(CopyModule, "fused_metadata_copy_multi", fail)
    inputs = refreshed(sut, of)
    assert "no such kernel" in capsys.readouterr().out
    assert sut.route() == Path.INDEPENDENT != sut.expectation(of.bucket).route
    assert wrong_leaves(sut, of, inputs) == {}


def test_nothing_stays_patched_after_a_call() -> None:
    step = loaded().seams.step_backend
    before, multi = dict(vars(step)), dict(vars(loaded().seams.multi_backend))
    of = case(4, Path.SHARED)
    refreshed(build(of), of)
    assert dict(vars(step)) == before
    assert dict(vars(loaded().seams.multi_backend)) == multi
    assert not torch.zeros(1).is_cuda
    assert "deep_gemm" not in sys.modules
    assert "flashinfer" not in sys.modules


def test_eager_call_leaves_captured_counters_where_they_are() -> None:
    of = case(4, Path.SHARED, fusion=True, kernel=Kernel.TRTLLM)
    sut = build(of)
    before = [root.state[COUNTER] for root in sut.roots()]
    sut.eager(16384)
    assert all(root.active is not root.metadata[of.bucket] for root in sut.roots())
    refreshed(sut, of)
    assert all(root.state[COUNTER] is old for root, old in zip(sut.roots(), before, strict=True))
    assert all(root.active is root.metadata[of.bucket] for root in sut.roots())


def test_in_graph_sharing_is_pointed_at_the_bucket_when_it_is_staged() -> None:
    of = case(1, Path.SHARED_IN_GRAPH)
    sut = build(of)
    sut.eager(64)
    sut.stage(batch(of, 1))
    assert all(root.active is root.metadata[of.bucket] for root in sut.roots())


def test_forward_reads_every_leaf_and_computes_from_live_elements_only() -> None:
    of = case(1, Path.SHARED)
    sut = build(of)
    inputs = refreshed(sut, of)
    first = sut.forward(of.bucket)[0]
    metadata = sut.roots()[0].active
    for row, length in enumerate(inputs.lengths):
        metadata.page_table_1[row, length:] = -1
    second = sut.forward(of.bucket)[0]
    assert torch.equal(first.computed["checksum"], second.computed["checksum"])
    assert not first.computed["out_of_range"].any()
    metadata.page_table_1[0, 0] = -1
    third = sut.forward(of.bucket)[0]
    assert third.computed["out_of_range"][0] == 1
    assert not torch.equal(first.computed["checksum"], third.computed["checksum"])
    assert torch.equal(third.read["page_table_1"], metadata.page_table_1)


@pytest.mark.parametrize(
    ("of", "words"),
    [
        (case(1, Path.SIBLING_COPY), "path sibling_copy is not one of SGLang's"),
        (case(4, kernel=Kernel.FLASHMLA_KV), "flashmla_kv needs index_kpool 1"),
        (case(1, Path.SHARED, mode=Mode.TARGET_VERIFY), "has one backend"),
    ],
)
def test_cases_that_sglang_cannot_run_are_refused(of, words: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(CaseError, match=words):
        make_sut(of, Cpu(), Spans())  # type: ignore[arg-type]


def test_eager_attention_of_more_rows_than_the_counter_serves_takes_a_private_one() -> None:
    of = case(1, kernel=Kernel.TRTLLM, steps=2)
    sut = build(of)
    own = sut.roots()[0].state[COUNTER]
    backend = sut._backends[0]
    with loaded().calls(of.geometry) as patches:
        assert run_attention(backend, patches, 8192) is own
        wide = run_attention(backend, patches, 16384)
    assert wide.numel() == 2 * own.numel()
    assert sut.roots()[0].state[COUNTER] is own


def test_a_release_with_another_pool_layout_is_refused_for_pooled_models() -> None:
    older = replace(loaded(), seams=replace(loaded().seams, packs_pools=False))
    SglangSut(case(1), Cpu(), Spans(), (4,), older)  # type: ignore[arg-type]
    with pytest.raises(NotDrivable, match="by physical page"):
        SglangSut(case(4), Cpu(), Spans(), (4,), older)  # type: ignore[arg-type]


def test_pooled_models_need_heads_that_have_pooled_schedules() -> None:
    of = case(4)
    narrow = replace(of, model=msgspec.structs.replace(of.model, heads=2))
    with pytest.raises(NotDrivable, match="32 or 64 heads only: narrow-p4 has 2"):
        SglangSut(narrow, Cpu(), Spans(), (4,), loaded())  # type: ignore[arg-type]


def test_a_release_that_lacks_leaves_declares_no_writes_to_them() -> None:
    older = replace(loaded(), seams=replace(loaded().seams, lacks=frozenset({"pooled_topk_v2_plan"})))
    declared = SglangSut(case(4), Cpu(), Spans(), (4,), older).expectation(4)  # type: ignore[arg-type]
    names = {entry.name for entry in declared.writes}
    assert "pooled_topk_v2_plan" not in names
    assert "pooled_paged_mqa_schedule_metadata" in names


def test_a_staged_drop_in_declares_one_precompute_and_one_copy() -> None:
    of = case(4, Path.SHARED, fusion=True)
    spans = Spans()
    sut = SglangSut(of, Cpu(), spans, (4,), loaded(), staged=True)  # type: ignore[arg-type]
    sut.init_graph_state()
    sut.stage(batch(of, 0))
    sut.prepare_capture(4)
    spans.seen.clear()
    assert wrong_leaves(sut, of, refreshed(sut, of)) == {}
    assert sut.route() == Path.SHARED
    assert sut.facts()["sglang.sharing"] == "the drop-in, staged"
    assert dict(Counter(name for name, _ in spans.seen)) == sut.expectation(4).spans
    assert ("fused_copy", 0) in spans.seen


def test_an_sglang_that_shares_by_itself_is_driven_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    seams = loaded().seams
    with loaded().calls(case(1).geometry):
        methods = shared._multi_methods(shared.Options())
    for name, method in shared._step_methods().items():
        monkeypatch.setattr(seams.step_backend, name, method, raising=False)
    for name, method in methods.items():
        monkeypatch.setattr(seams.multi_backend, name, method)
    for path in (Path.RELEASED, Path.SHARED):
        of = case(1, path)
        sut = build(of)
        assert wrong_leaves(sut, of, refreshed(sut, of)) == {}
        assert sut.route() == Path.SHARED == sut.expectation(4).route
        assert sut.facts()["sglang.sharing"] == "SGLang's own"
    with pytest.raises(NotDrivable, match="does not refresh inside the graph"):
        build(case(1, Path.SHARED_IN_GRAPH))


def test_an_unknown_way_of_refreshing_is_refused() -> None:
    with pytest.raises(UsageError, match="allowed are direct, staged"):
        make_sut(case(1), Cpu(), Spans(), refresh="lazy")  # type: ignore[arg-type]


@pytest.mark.parametrize("path", [Path.RELEASED, Path.SHARED])
def test_a_pause_zeroes_what_a_refresh_rewrites_and_a_refresh_makes_it_right_again(path: Path) -> None:
    of = case(4, path, steps=3)
    sut = build(of)
    refreshed(sut, of)
    places = [root.metadata[of.bucket].real_page_table.data_ptr() for root in sut.roots()]
    sut.pause_and_resume()
    for root, place in zip(sut.roots(), places, strict=True):
        metadata = root.metadata[of.bucket]
        assert not metadata.real_page_table.any()
        assert not metadata.kpool_write_plan.req.any()
        assert metadata.cu_seqlens_q.tolist() == list(range(of.bucket + 1))
        assert metadata.real_page_table.data_ptr() == place
    inputs = refreshed(sut, of, 2)
    assert wrong_leaves(sut, of, inputs) == {}
