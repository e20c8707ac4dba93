"""What a refresh did, seen at SGLang's own seams: spans for the ledger and evidence for the route."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from harness.sut.patches import Patches
from harness.sut.protocol import SpanRecorder
from harness.sut.sglang.seams import Seams
from harness.types import Path


@dataclass
class Evidence:
    """What the last refresh called: for each kind of call that returned, how often each step made it."""

    multi_copies: int = 0
    """Multi-destination copies that succeeded."""
    siblings: set[int] = field(default_factory=set)
    staged: Counter[int] = field(default_factory=Counter)
    """Steps refreshed from the precomputed input."""
    direct: Counter[int] = field(default_factory=Counter)
    """Steps refreshed straight from the batch."""
    in_graph: bool = False
    tables: int = 0
    """Physical page tables that were made out of wide ones: what a fused kernel does not do."""

    def route(self, steps: int, *, multi_step: bool, aliased: bool) -> str:
        """Return the path that these calls are, or what was called where they are none of the paths.

        multi_step: whether the multi-step backend was called; it refreshes a single step (S = 2) straight
        from the batch only where it shares. aliased: whether every step's active metadata is step 0's.
        """
        everyone, others = set(range(steps)), set(range(1, steps))
        refreshes = self.staged + self.direct
        own = set(refreshes)
        if not own and not self.multi_copies:
            return ""
        if repeated := sorted(step for step, count in refreshes.items() if count > 1):
            return f"none of the paths: more than one refresh of steps {repeated}"
        shared = own == {0} and aliased and not self.siblings and not self.multi_copies
        if shared and multi_step and (others or not self.staged):
            return Path.SHARED_IN_GRAPH if self.in_graph else Path.SHARED
        if self.multi_copies == 1 and own == everyone - {0, 1, 2} and not self.siblings:
            return Path.MULTI_DESTINATION_COPY
        if own == {0} and self.siblings == others and others:
            return Path.SIBLING_COPY
        if own == everyone and not self.siblings and not self.multi_copies:
            return Path.INDEPENDENT
        return (
            f"none of the paths: {self.multi_copies} multi-destination copies, sibling copies of steps "
            f"{sorted(self.siblings)}, own refreshes of steps {sorted(own)}"
        )


class Watch:
    """Wraps SGLang's methods, for as long as a stack of patches lasts."""

    def __init__(self, seams: Seams, span: SpanRecorder) -> None:
        self._seams = seams
        self._span = span
        self._copying = -1
        """Step whose base buffers are being copied, -1 where no single one is."""
        self.evidence = Evidence()

    def begin(self) -> None:
        """Forget the last refresh."""
        self.evidence = Evidence()

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Keep what the block calls out of the evidence: an eager batch between replays refreshes nothing."""
        evidence = self.evidence
        self.evidence = Evidence()
        try:
            yield
        finally:
            self.evidence = evidence

    def patch(self, patches: Patches) -> None:
        """Wrap the seams until the patches are undone."""
        step, copies = self._seams.step_backend, self._seams.copies

        def own(name: str) -> Callable[[Any], AbstractContextManager[None]]:
            return lambda backend: self._span(name, backend.speculative_step_id)

        def kpool(backend: Any) -> AbstractContextManager[None]:
            return own("kpool_refresh")(backend) if backend.dsa_index_kpool > 1 else nullcontext()

        def copying(backend: Any) -> AbstractContextManager[None]:
            self._copying = backend.speculative_step_id
            return nullcontext()

        def wrap(owner: Any, name: str, enter: Any, done: Any = None) -> None:
            patches.attribute(owner, name, _around(getattr(owner, name), enter, done))

        wrap(step, "_precompute_replay_metadata", lambda *_: self._span("precompute"))
        wrap(step, "_refresh_paged_mqa_schedule_metadata", own("derived_refresh"))
        wrap(step, "_copy_base_replay_buffers", copying)
        wrap(step, "_transform_table_1_to_real", _nothing, self._table_made)
        wrap(
            step, "init_forward_metadata_replay_cuda_graph_from_precomputed", _nothing,
            lambda backend: self.evidence.staged.update((backend.speculative_step_id,)),
        )  # fmt: skip
        wrap(
            step, "_apply_cuda_graph_metadata", _nothing,
            lambda backend: self.evidence.direct.update((backend.speculative_step_id,)),
        )  # fmt: skip
        wrap(step, "_copy_replay_metadata_from_sibling", own("sibling_copy"), self._sibling_done)
        wrap(copies, "fused_metadata_copy_cuda", lambda *_: self._span("fused_copy", self._copying))
        wrap(copies, "fused_metadata_copy_multi_cuda", lambda *_: self._span("fused_copy"), self._multi_done)
        for name in ("_update_kpool_metadata_from_precomputed", "_update_kpool_metadata_replay"):
            wrap(step, name, kpool)

    def _sibling_done(self, backend: Any) -> None:
        # A sibling copy that SGLang refuses refreshes the step from the precomputed input instead.
        if backend.speculative_step_id not in self.evidence.staged:
            self.evidence.siblings.add(backend.speculative_step_id)

    def _table_made(self, *_: Any) -> None:
        self.evidence.tables += 1

    def _multi_done(self, *_: Any) -> None:
        self.evidence.multi_copies += 1


def _nothing(*_: Any) -> AbstractContextManager[None]:
    return nullcontext()


def _around(
    function: Callable[..., Any],
    enter: Callable[..., AbstractContextManager[None]],
    done: Callable[[Any], object] | None,
) -> Callable[..., Any]:
    """Return `function` run within `enter(first argument)` and followed by `done(first argument)`."""

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        first = args[0] if args else None
        with enter(first):
            result = function(*args, **kwargs)
        if done is not None:
            done(first)
        return result

    return wrapped
