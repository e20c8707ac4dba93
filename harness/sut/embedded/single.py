"""One draft step's backend: its buffers, its metadata objects by bucket, and how it refreshes them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from harness.errors import HarnessError
from harness.fields import COUNTER, Dims
from harness.sut.embedded.buffers import WideBuffers, allocate_metadata
from harness.sut.embedded.counter import KVCounter
from harness.sut.embedded.fused import FusedBuilder
from harness.sut.embedded.fused_refresh import FusedRefresh
from harness.sut.embedded.kpool import KPoolFields
from harness.sut.embedded.metadata import DSAMetadata, named_leaves
from harness.sut.embedded.planners import Planners
from harness.sut.embedded.precompute import (
    BaseFields,
    Builder,
    DeviceInputs,
    OrdinaryBuilder,
    Precomputed,
)
from harness.sut.embedded.route import Action, RouteLog
from harness.sut.protocol import SpanRecorder, StepRoots
from harness.types import Kernel

DERIVED_LEAVES = (
    "paged_mqa_schedule_metadata",
    "topk_v2_plan",
    "pooled_cache_seqlens_int32",
    "pooled_real_page_table",
    "pooled_paged_mqa_schedule_metadata",
    "pooled_topk_v2_plan",
)
"""What a sibling copy takes from step 0 besides the whole write plan (FlashMLA's leaves are base fields)."""


@dataclass(frozen=True, eq=False)
class BucketTools:
    """Everything constant that refreshing one bucket needs; made outside any capture, used by all steps."""

    dims: Dims
    device: torch.device
    builder: Builder
    planners: Planners
    kpool: KPoolFields | None
    one_launch: FusedRefresh | None = None
    """Where given, what refreshes directly, instead of builder, planners and KPool fields."""

    @classmethod
    def make(cls, dims: Dims, device: torch.device, *, fused: bool, one_launch: bool = False) -> BucketTools:
        """Make the tools of one bucket, with the builder that is in force."""
        planners = Planners(dims, device)
        builder: Builder = FusedBuilder(dims, device) if fused else OrdinaryBuilder(dims, device)
        kpool = KPoolFields(dims, planners, device) if dims.pool > 1 else None
        return cls(dims, device, builder, planners, kpool, FusedRefresh(dims, device) if one_launch else None)


class SingleBackend:
    """One backend; `tools` gives the constants of a bucket, `log` takes routing evidence."""

    def __init__(
        self, step: int, tools: Callable[[int], BucketTools], span: SpanRecorder, log: RouteLog
    ) -> None:
        self.step = step
        self.metadata: dict[int, DSAMetadata] = {}
        self.active: object = None
        self.counter: KVCounter | None = None
        self._tools = tools
        self._span = span
        self._log = log
        self._wide: WideBuffers | None = None

    def init_cuda_graph_state(self, max_bs: int) -> None:
        """Make what serves all buckets: wide tables, offsets, FlashMLA's leaves and the KV counter."""
        tools = self._tools(max_bs)
        self._wide = WideBuffers.allocate(tools.dims, tools.planners, tools.device)
        self._size_counter(tools)

    def _init_cuda_graph_state_shared(self, max_bs: int) -> None:
        """Make what a step owns that shares step 0's metadata: its KV counter, nothing else."""
        self._size_counter(self._tools(max_bs))

    def _size_counter(self, tools: BucketTools) -> None:
        if tools.dims.kernel is Kernel.TRTLLM:
            self.counter = KVCounter(tools.device)
            self.counter.size(tools.dims.rows)

    def build(self, bucket: int, inputs: DeviceInputs) -> None:
        """Make (or make again) the metadata of a bucket from the staged inputs, and make it active."""
        if self._wide is None:
            raise HarnessError(f"step {self.step} builds metadata before init_graph_state")
        tools = self._tools(bucket)
        metadata = allocate_metadata(tools.dims, self._wide, tools.device)
        self.metadata[bucket] = metadata
        tools.builder.build(inputs, BaseFields.of(metadata))
        self._derive(tools, metadata, inputs, flashmla=True)
        if tools.one_launch is not None:
            tools.one_launch.prepare(metadata, inputs)
        self.active = metadata

    def _share_cuda_graph_metadata(self, bucket: int, source: SingleBackend) -> None:
        """Point this bucket's entry and the active metadata at step 0's object."""
        self.metadata[bucket] = source.metadata[bucket]
        self.active = source.metadata[bucket]

    def activate(self, bucket: int) -> None:
        """Make a bucket's metadata the active one, writing nothing."""
        self._log.note(Action.REPOINT)
        self.active = self.metadata[bucket]

    def precompute(self, bucket: int, inputs: DeviceInputs) -> Precomputed:
        """Build the base fields once, in temporaries, for all steps."""
        tools = self._tools(bucket)
        with self._span("precompute"):
            self._log.note(Action.PRECOMPUTE)
            base = BaseFields.temporaries(tools.dims, tools.device)
            tools.builder.build(inputs, base)
            flashmla = None
            if self.metadata[bucket].flashmla_metadata is not None:
                flashmla = tools.planners.flashmla(base.dsa_cache_seqlens)
        return Precomputed(base, flashmla)

    def apply_precomputed(self, bucket: int, precomputed: Precomputed, inputs: DeviceInputs) -> None:
        """Staged refresh: copy the base fields in one launch, then derive the rest."""
        self._copy_base(bucket, precomputed)
        self._derive(self._tools(bucket), self.metadata[bucket], inputs, flashmla=False)
        self.active = self.metadata[bucket]

    def refresh_direct(self, bucket: int, inputs: DeviceInputs) -> None:
        """Direct refresh: build the base fields straight into the captured buffers, then derive the rest.

        Where there is a launch that does both, it does.
        """
        tools, metadata = self._tools(bucket), self.metadata[bucket]
        self._log.note(Action.DIRECT)
        if tools.one_launch is not None:
            with self._span("one_launch", self.step):
                tools.one_launch.refresh(metadata, inputs)
        else:
            with self._span("direct_build", self.step):
                tools.builder.build(inputs, BaseFields.of(metadata))
            self._derive(tools, metadata, inputs, flashmla=True)
        self.active = metadata

    def copy_from_sibling(self, bucket: int, precomputed: Precomputed, source: SingleBackend) -> None:
        """Copy base fields from the temporaries and derived fields from a step that is fresh already."""
        self._copy_base(bucket, precomputed)
        metadata = self.metadata[bucket]
        with self._span("sibling_copy", self.step):
            self._log.note(Action.SIBLING_COPY)
            theirs = dict(named_leaves(source.metadata[bucket]))
            pairs = [
                (tensor, theirs[name])
                for name, tensor in named_leaves(metadata)
                if name in DERIVED_LEAVES or name.startswith("kpool_write_plan.")
            ]
            torch._foreach_copy_([mine for mine, _ in pairs], [their for _, their in pairs])
            _rewrite_context_view(metadata)
        self.active = metadata

    def refresh_kpool_only(self, bucket: int, inputs: DeviceInputs) -> None:
        """Derive the KPool fields and leave schedule and plan stale, as the multi-destination path does."""
        tools, metadata = self._tools(bucket), self.metadata[bucket]
        if tools.kpool is not None:
            with self._span("kpool_refresh", self.step):
                self._log.note(Action.DERIVE_KPOOL)
                tools.kpool.refresh(metadata, inputs)
        self.active = metadata

    def base_copies(
        self, bucket: int, precomputed: Precomputed
    ) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """Return (destinations, sources) of this step's part of a fused copy."""
        metadata = self.metadata[bucket]
        targets = list(BaseFields.of(metadata).copied())
        sources = list(precomputed.base.copied())
        if precomputed.flashmla is not None and metadata.flashmla_metadata is not None:
            targets += [tensor for _, tensor in named_leaves(metadata.flashmla_metadata)]
            sources += [tensor for _, tensor in named_leaves(precomputed.flashmla)]
        return targets, sources

    def roots(self) -> StepRoots:
        """Return this step's tensors as the protocol wants them."""
        state: dict[str, Any] = {}
        if self._wide is not None:
            state = {
                "page_table": self._wide.page_table,
                "dsa_cu_seqlens_q": self._wide.dsa_cu_seqlens_q,
                "cu_seqlens_q": self._wide.cu_seqlens_q,
                "flashmla_metadata": self._wide.flashmla_metadata,
            }
        if self.counter is not None:
            state[COUNTER] = self.counter.buffer
        return StepRoots(
            metadata=dict(self.metadata),
            active=self.active,
            state={name: value for name, value in state.items() if value is not None},
        )

    def _copy_base(self, bucket: int, precomputed: Precomputed) -> None:
        with self._span("fused_copy", self.step):
            self._log.note(Action.COPY)
            torch._foreach_copy_(*self.base_copies(bucket, precomputed))

    def _derive(
        self, tools: BucketTools, metadata: DSAMetadata, inputs: DeviceInputs, *, flashmla: bool
    ) -> None:
        """Write what is derived; in a staged refresh FlashMLA's leaves come with the base fields."""
        with self._span("derived_refresh", self.step):
            self._log.note(Action.DERIVE)
            tools.planners.write_schedule(
                metadata.paged_mqa_ctx_lens_2d, metadata.paged_mqa_schedule_metadata
            )
            tools.planners.write_plan(metadata.dsa_seqlens_expanded, metadata.topk_v2_plan)
            _rewrite_context_view(metadata)
            if tools.kpool is not None:
                tools.kpool.refresh(metadata, inputs)
            if flashmla and metadata.flashmla_metadata is not None:
                fresh = tools.planners.flashmla(metadata.dsa_cache_seqlens_int32)
                metadata.flashmla_metadata.flashmla_metadata.copy_(fresh.flashmla_metadata)
                metadata.flashmla_metadata.num_splits.copy_(fresh.num_splits)


def _rewrite_context_view(metadata: DSAMetadata) -> None:
    """Copy the context lengths onto themselves: the view shares their bytes, the write is declared."""
    rows = metadata.paged_mqa_ctx_lens_2d.shape[0]
    metadata.paged_mqa_ctx_lens_2d.copy_(metadata.dsa_seqlens_expanded.view(rows, 1))
