"""What each path of the embedded system declares of itself: writes per refresh, spans, state.

Argued from the strategies, not recorded: a staged step writes every base leaf once by the fused copy
and every derived leaf once, a direct step writes them in place, and both copy the context lengths
onto themselves, which touches the bytes of every leaf that shares them. A fused refresh is one launch:
every leaf once, the context lengths too.
"""

from __future__ import annotations

from harness.case import Case
from harness.fields import COUNTER, Dims, Live, Sharing, fields_for, plan_is_written
from harness.observation import Expectation, LedgerEntry
from harness.sut.embedded.counter import counter_elements
from harness.sut.embedded.single import DERIVED_LEAVES
from harness.sut.embedded.strategies import MULTI_DESTINATIONS
from harness.types import Kernel, Mode, Path, Role

SINGLE_LAUNCH_STALE = ("paged_mqa_schedule_metadata", "topk_v2_plan")
"""What the multi-destination copy forgets in the steps that it serves."""


def effective_path(case: Case) -> Path:
    """Return the path that runs: copying between steps needs enough of them, else it is `independent`."""
    if case.path is Path.MULTI_DESTINATION_COPY and case.backends < MULTI_DESTINATIONS:
        return Path.INDEPENDENT
    if case.path is Path.SIBLING_COPY and case.backends < 2:
        return Path.INDEPENDENT
    return case.path


def expectation_of(case: Case, bucket: int, *, one_launch: bool = False) -> Expectation:
    """Return the declared contract of a case's path in one bucket; `one_launch`: of its fused refresh."""
    path = effective_path(case)
    dims = Dims.of(case, bucket)
    shared = path in (Path.SHARED, Path.SHARED_IN_GRAPH)
    writes: list[LedgerEntry] = []
    for step in range(1 if shared else case.backends):
        counts = dict.fromkeys(_fresh_step(dims), 1) if one_launch else _fresh_step(dims)
        if path is Path.SIBLING_COPY and step > 0:
            counts = _copied_step(dims)
        elif path is Path.MULTI_DESTINATION_COPY and step < MULTI_DESTINATIONS:
            counts = _one_launch_step(dims)
        writes += [LedgerEntry(step, name, count) for name, count in counts.items() if count]
    return Expectation(
        route=path.value,
        writes=tuple(writes),
        spans={"one_launch": 1} if one_launch else _spans(path, case.backends, dims),
        shared=shared and case.sharing_applies,
        counter_elements=counter_elements(dims.rows) if dims.kernel is Kernel.TRTLLM else 0,
        state_leaves=_state_leaves(dims, wide=not shared),
    )


def _context_view(dims: Dims) -> set[str]:
    """Return the leaves that share the context lengths' bytes, which a refresh writes a second time."""
    views = {
        name
        for name, field in fields_for(dims).items()
        if field.sharing(dims) in (Sharing.VIEW_OF_LENGTHS, Sharing.VIEW_OF_EXPANDED)
    }
    return views | {"dsa_seqlens_expanded" if dims.expanded else "cache_seqlens_int32"}


def _fresh_step(dims: Dims) -> dict[str, int]:
    """A step that is fully refreshed, staged or direct: every refreshed leaf once, the context view twice."""
    twice = _context_view(dims)
    counts: dict[str, int] = {}
    for name, field in fields_for(dims).items():
        if field.role is Role.INIT_ONCE or (field.live is Live.PLAN and not plan_is_written(dims)):
            continue
        counts[name] = 2 if name in twice else 1
    return counts


def _copied_step(dims: Dims) -> dict[str, int]:
    """A step that copies from its sibling: plans are copied whether or not step 0 wrote them."""
    counts = _fresh_step(dims)
    for name, field in fields_for(dims).items():
        if field.live is Live.PLAN and (name in DERIVED_LEAVES or name.startswith("kpool_write_plan.")):
            counts[name] = 1
    return counts


def _one_launch_step(dims: Dims) -> dict[str, int]:
    """A step of the multi-destination launch: no schedule, no plan, no second write of the context view."""
    counts = dict.fromkeys(_fresh_step(dims), 1)
    for name in SINGLE_LAUNCH_STALE:
        counts.pop(name, None)
    return counts


def _spans(path: Path, steps: int, dims: Dims) -> dict[str, int]:
    """Return how often each part of a refresh runs."""
    if path in (Path.SHARED, Path.SHARED_IN_GRAPH):
        return {"precompute": 0, "fused_copy": 0, "direct_build": 1, "derived_refresh": 1}
    spans = {"precompute": 1, "fused_copy": steps, "derived_refresh": steps}
    if path is Path.SIBLING_COPY:
        return spans | {"derived_refresh": 1, "sibling_copy": steps - 1}
    if path is Path.MULTI_DESTINATION_COPY:
        one_by_one = steps - MULTI_DESTINATIONS
        spans |= {"fused_copy": 1 + one_by_one, "derived_refresh": one_by_one}
        return spans | ({"kpool_refresh": MULTI_DESTINATIONS} if dims.pool > 1 else {})
    return spans


def _state_leaves(dims: Dims, *, wide: bool) -> tuple[str, ...]:
    """Return what any step may own for all buckets together; a step that shares owns no wide buffers."""
    names: list[str] = []
    if wide:
        names += ["page_table", "dsa_cu_seqlens_q"]
        names += ["cu_seqlens_q"] if dims.mode is Mode.DECODE else []
        if dims.kernel is Kernel.FLASHMLA_KV and dims.pool == 1:
            names += ["flashmla_metadata.flashmla_metadata", "flashmla_metadata.num_splits"]
    if dims.kernel is Kernel.TRTLLM:
        names.append(COUNTER)
    return tuple(names)
