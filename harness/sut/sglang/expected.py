"""What SGLang's paths declare of themselves: route, ledger and spans of one refresh.

Argued from the released code. A step that is refreshed, straight from the batch or from the precomputed
input, writes each of its leaves once: the base leaves by one kernel or one copy each, the derived ones each
by its own. Its context lengths are then copied onto themselves, which touches the bytes of every leaf that
shares them a second time. A plan that is copied is written whatever the batch; one that the planner fills
in place is written only where the planner writes at all.
"""

from __future__ import annotations

from collections.abc import Collection

from harness.case import PHYSICAL_PAGE, Case
from harness.fields import COUNTER, Dims, Live, Sharing, fields_for, plan_is_written
from harness.observation import Expectation, LedgerEntry
from harness.types import Kernel, Mode, Path, Role

MULTI_DESTINATIONS = 3
"""Steps that the multi-destination copy serves."""
COUNTER_ROWS = 8192
"""Query rows that a KV counter is for from the start, one byte each at the very least."""
COPIED_PLAN = "topk_v2_plan"
"""The plan that is built in a temporary and copied; the KPool plans are filled in place."""
FORGOTTEN = ("paged_mqa_schedule_metadata", COPIED_PLAN)
"""What the multi-destination branch does not refresh."""


def released_route(case: Case) -> Path:
    """Return the path that the released code chooses."""
    if case.mode is not Mode.DECODE:
        return Path.INDEPENDENT
    if case.fusion_in_force:
        return Path.SIBLING_COPY if case.backends > 1 else Path.INDEPENDENT
    return Path.MULTI_DESTINATION_COPY if case.backends >= MULTI_DESTINATIONS else Path.INDEPENDENT


def expectation(
    case: Case,
    bucket: int,
    *,
    shared: bool,
    staged: bool = False,
    lacks: Collection[str] = (),
    counter_bytes: int = COUNTER_ROWS,
) -> Expectation:
    """Return the declaration of one bucket's refresh.

    shared: whether steps 1.. alias step 0. staged: whether step 0 is then refreshed from the precomputed
    input. lacks: leaves that the release does not have. counter_bytes: what a KV counter needs at the least.
    """
    route = (case.path if case.path is not Path.RELEASED else Path.SHARED) if shared else released_route(case)
    dims = Dims.of(case, bucket)
    writes = []
    for step in range(1 if shared else case.backends):
        counts = _refreshed(dims)
        if route is Path.MULTI_DESTINATION_COPY and step < MULTI_DESTINATIONS:
            counts = _multi_copied(dims)
        elif route is Path.SIBLING_COPY and step > 0:
            counts = _sibling_copied(dims)
        writes += [LedgerEntry(step, name, count) for name, count in counts.items() if name not in lacks]
    spans = _spans(case, route)
    if staged and route is Path.SHARED:
        spans |= {"precompute": 1, "fused_copy": 1}
    return Expectation(
        route=route,
        writes=tuple(writes),
        spans=spans,
        shared=shared and case.sharing_applies,
        counter_elements=counter_bytes if dims.kernel is Kernel.TRTLLM else 0,
        state_leaves=_state_leaves(dims, shared=shared and case.sharing_applies),
        host_values={name: repr(value) for name, value in _host_values(dims).items()},
    )


def _host_values(dims: Dims) -> dict[str, int]:
    """Return the Python values beside the tensors, which kernels are launched with.

    Every row of a leaf is one query, in every mode; only an eager batch has longer ones. Metadata of a
    draft extend reads no pooled tables, so it keeps the pool size of none.
    """
    values = {
        "page_size": PHYSICAL_PAGE,
        "max_seq_len_q": 1,
        "max_seq_len_k": dims.width,
        "dsa_max_seqlen_q": 1,
        "pooled_index_kpool": 1 if dims.mode is Mode.DRAFT_EXTEND else dims.pool,
    }
    values |= {f"dsa_extend_seq_lens_list[{row}]": 1 for row in range(dims.rows)}
    return values | ({"kpool_write_plan.num_draft_tokens": dims.written} if dims.pool > 1 else {})


def _refreshed(dims: Dims) -> dict[str, int]:
    """Return the writes of a step that is refreshed in full."""
    views = (Sharing.VIEW_OF_LENGTHS, Sharing.VIEW_OF_EXPANDED)
    twice = {name for name, field in fields_for(dims).items() if field.sharing(dims) in views}
    twice.add("dsa_seqlens_expanded" if dims.expanded else "cache_seqlens_int32")
    counts = {}
    for name, field in fields_for(dims).items():
        in_place_plan = field.live is Live.PLAN and name != COPIED_PLAN
        if field.role is Role.REFRESHED and (plan_is_written(dims) or not in_place_plan):
            counts[name] = 2 if name in twice else 1
    return counts


def _multi_copied(dims: Dims) -> dict[str, int]:
    """Return the writes of a step of the multi-destination copy: no schedule, no plan, no context lengths."""
    return {name: 1 for name in _refreshed(dims) if name not in FORGOTTEN}


def _sibling_copied(dims: Dims) -> dict[str, int]:
    """Return the writes of a step that copies from step 0: every plan is copied whatever the batch."""
    plans = {name: 1 for name, field in fields_for(dims).items() if field.live is Live.PLAN}
    return _refreshed(dims) | plans


def _spans(case: Case, route: Path) -> dict[str, int]:
    """Return how often each part of a refresh runs."""
    steps = case.backends
    pooled = case.model.index_kpool > 1
    if case.mode is not Mode.DECODE or route in (Path.SHARED, Path.SHARED_IN_GRAPH):
        spans = {"derived_refresh": 1, "kpool_refresh": 1}
    elif route is Path.SIBLING_COPY:
        spans = {"fused_copy": steps, "derived_refresh": 1, "kpool_refresh": 1, "sibling_copy": steps - 1}
    elif route is Path.MULTI_DESTINATION_COPY:
        single = steps - MULTI_DESTINATIONS
        spans = {"fused_copy": 1 + single, "derived_refresh": single, "kpool_refresh": steps}
    else:
        spans = {"fused_copy": steps, "derived_refresh": steps, "kpool_refresh": steps}
    if "fused_copy" in spans:
        spans["precompute"] = 1
    return {name: count for name, count in spans.items() if count and (pooled or name != "kpool_refresh")}


def _state_leaves(dims: Dims, *, shared: bool) -> tuple[str, ...]:
    """Return what a step may own for all buckets together; a step that shares owns its KV counter only."""
    names = [] if shared else ["cache_seqlens", "cu_seqlens_q", "cu_seqlens_k", "page_table"]
    if dims.kernel is Kernel.FLASHMLA_KV and not shared:
        names += ["flashmla_metadata.flashmla_metadata", "flashmla_metadata.num_splits"]
    if dims.kernel is Kernel.TRTLLM:
        names.append(COUNTER)
    return tuple(names)
