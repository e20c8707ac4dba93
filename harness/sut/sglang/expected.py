"""What SGLang's paths declare of themselves: route, ledger and spans of one refresh, as rules."""

from __future__ import annotations

from harness.case import Case
from harness.observation import Expectation
from harness.types import Kernel, Mode, Path


def released_route(case: Case) -> Path:
    """Return the path that the released code chooses."""
    if case.mode is not Mode.DECODE:
        return Path.INDEPENDENT
    if case.fusion_in_force:
        return Path.SIBLING_COPY if case.backends > 1 else Path.INDEPENDENT
    return Path.MULTI_DESTINATION_COPY if case.variant.steps > 3 else Path.INDEPENDENT


def expectation(case: Case, *, shared: bool) -> Expectation:
    """Return the declaration of a case; `shared` says whether steps 1.. alias step 0."""
    route = (case.path if case.path is not Path.RELEASED else Path.SHARED) if shared else released_route(case)
    state = ["cache_seqlens", "cu_seqlens_k", "cu_seqlens_q", "page_table"]
    if case.kernel is Kernel.FLASHMLA_KV:
        state += ["flashmla_metadata.flashmla_metadata", "flashmla_metadata.num_splits"]
    return Expectation(
        route=route,
        writes=(),
        spans={},
        shared=shared and case.sharing_applies,
        state_leaves=tuple(state),
    )
