"""The refresh paths as interchangeable strategies over a list of single backends."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch

from harness.errors import CaseError
from harness.sut.embedded.precompute import DeviceInputs
from harness.sut.embedded.route import Action, RouteLog
from harness.sut.embedded.single import SingleBackend
from harness.sut.protocol import SpanRecorder
from harness.types import Path

MULTI_DESTINATIONS = 3
"""Steps that the multi-destination copy serves in one launch."""

Backends = Sequence[SingleBackend]


class RefreshStrategy(Protocol):
    """How the draft steps' buffers are made, captured and refreshed."""

    path: Path
    in_graph: bool
    """Whether `refresh` belongs inside the captured forward."""

    def init_state(self, backends: Backends, max_bs: int) -> None:
        """Make every step's persistent buffers."""
        ...

    def build(self, backends: Backends, bucket: int, inputs: DeviceInputs) -> None:
        """Make the bucket's metadata of every step."""
        ...

    def refresh(self, backends: Backends, bucket: int, inputs: DeviceInputs) -> None:
        """Bring every step's metadata of the bucket up to the staged inputs."""
        ...


class _SeparateMetadata:
    """Every step owns its metadata: what the three copying paths have in common."""

    in_graph = False

    def init_state(self, backends: Backends, max_bs: int) -> None:
        """See `RefreshStrategy`."""
        for backend in backends:
            backend.init_cuda_graph_state(max_bs)

    def build(self, backends: Backends, bucket: int, inputs: DeviceInputs) -> None:
        """See `RefreshStrategy`."""
        for backend in backends:
            backend.build(bucket, inputs)


class Independent(_SeparateMetadata):
    """Every step copies the precomputed base fields and derives the rest itself: the ordinary path."""

    path = Path.INDEPENDENT

    def refresh(self, backends: Backends, bucket: int, inputs: DeviceInputs) -> None:
        """See `RefreshStrategy`."""
        precomputed = backends[0].precompute(bucket, inputs)
        for backend in backends:
            backend.apply_precomputed(bucket, precomputed, inputs)


class SiblingCopy(_SeparateMetadata):
    """Step 0 as in `Independent`; the others copy base and derived fields."""

    path = Path.SIBLING_COPY

    def refresh(self, backends: Backends, bucket: int, inputs: DeviceInputs) -> None:
        """See `RefreshStrategy`."""
        first, *others = backends
        precomputed = first.precompute(bucket, inputs)
        first.apply_precomputed(bucket, precomputed, inputs)
        for backend in others:
            backend.copy_from_sibling(bucket, precomputed, first)


class MultiDestinationCopy(_SeparateMetadata):
    """The released path, its fault included.

    One launch fills the base fields of steps 0, 1, 2, which then refresh their KPool fields but
    neither schedule nor top-k plan: those keep what they held at capture. Steps 3.. are refreshed
    one by one. With fewer than three steps it is `Independent`.
    """

    path = Path.MULTI_DESTINATION_COPY

    def __init__(self, span: SpanRecorder, log: RouteLog) -> None:
        self._span = span
        self._log = log
        self._one_by_one = Independent()

    def refresh(self, backends: Backends, bucket: int, inputs: DeviceInputs) -> None:
        """See `RefreshStrategy`."""
        if len(backends) < MULTI_DESTINATIONS:
            self._one_by_one.refresh(backends, bucket, inputs)
            return
        precomputed = backends[0].precompute(bucket, inputs)
        together = backends[:MULTI_DESTINATIONS]
        copies = [backend.base_copies(bucket, precomputed) for backend in together]
        with self._span("fused_copy"):
            self._log.note(Action.MULTI_COPY)
            targets = [target for targets, _ in copies for target in targets]
            torch._foreach_copy_(targets, [source for _, sources in copies for source in sources])
        for backend in together:
            backend.refresh_kpool_only(bucket, inputs)
        for backend in backends[MULTI_DESTINATIONS:]:
            backend.apply_precomputed(bucket, precomputed, inputs)


class Shared:
    """Steps 1.. alias step 0's metadata; step 0 refreshes straight into its captured buffers.

    Chosen whether or not fusion is in force. With one step only the direct refresh remains.
    """

    def __init__(self, *, in_graph: bool = False) -> None:
        self.in_graph = in_graph
        self.path = Path.SHARED_IN_GRAPH if in_graph else Path.SHARED

    def init_state(self, backends: Backends, max_bs: int) -> None:
        """See `RefreshStrategy`."""
        first, *others = backends
        first.init_cuda_graph_state(max_bs)
        for backend in others:
            backend._init_cuda_graph_state_shared(max_bs)

    def build(self, backends: Backends, bucket: int, inputs: DeviceInputs) -> None:
        """See `RefreshStrategy`."""
        first, *others = backends
        first.build(bucket, inputs)
        for backend in others:
            backend._share_cuda_graph_metadata(bucket, first)

    def refresh(self, backends: Backends, bucket: int, inputs: DeviceInputs) -> None:
        """See `RefreshStrategy`."""
        first, *others = backends
        first.refresh_direct(bucket, inputs)
        for backend in others:
            backend.activate(bucket)


def strategy_for(path: Path, span: SpanRecorder, log: RouteLog) -> RefreshStrategy:
    """Return the strategy of a chosen path. Raises CaseError for `released`, which only packages have."""
    if path is Path.INDEPENDENT:
        return Independent()
    if path is Path.SIBLING_COPY:
        return SiblingCopy()
    if path is Path.MULTI_DESTINATION_COPY:
        return MultiDestinationCopy(span, log)
    if path in (Path.SHARED, Path.SHARED_IN_GRAPH):
        return Shared(in_graph=path is Path.SHARED_IN_GRAPH)
    raise CaseError(f"the embedded system has no path {path.value}: it is what a package chooses by itself")
