"""The fused refresh of one bucket: one launch from the persistent inputs into the captured buffers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from harness.errors import HarnessError
from harness.fields import Dims
from harness.probe.launches import Launch, Written, perform
from harness.sut.embedded.fused_plan import LaunchPlan, Tiling
from harness.sut.embedded.fused_runtime import Run, load_kernel, prepare
from harness.sut.embedded.metadata import DSAMetadata
from harness.sut.embedded.precompute import DeviceInputs

KERNEL = "triton:fused_refresh"
"""The launch's name in ledgers and tapes."""
WIDE = ("table", "wide", "real", "pooled")
"""Arguments that may have any row stride; all others are contiguous."""


@dataclass(frozen=True, eq=False)
class _Prepared:
    """A launch bound to one metadata object and one set of inputs."""

    metadata: DSAMetadata
    inputs: DeviceInputs
    run: Run
    launch: Launch


class FusedRefresh:
    """Refreshes one bucket's metadata by one launch; prepared anew whenever metadata or inputs are others."""

    def __init__(self, dims: Dims, device: torch.device, tiling: Tiling | None = None) -> None:
        """Plan the launch; `tiling` is the device's unless given.

        Raises UsageError where Triton cannot run on the device in this process.
        """
        self._kernel = load_kernel(device)
        default = Tiling.compiled if device.type == "cuda" else Tiling.interpreted
        self._width = dims.width
        self._plan = LaunchPlan.of(dims, default(dims) if tiling is None else tiling)
        self._prepared: _Prepared | None = None

    def prepare(self, metadata: DSAMetadata, inputs: DeviceInputs) -> None:
        """Compile and bind the launch, outside any capture.

        Raises HarnessError for a buffer that is not laid out as the kernel takes it.
        """
        named = _arguments(metadata, inputs, plans=self._plan.plans)
        _check_layout(named)
        arguments = _positional(named, self._width)
        plan = self._plan
        run = prepare(self._kernel, plan.grid, plan.warps, arguments, plan.constants)
        written = _written(named)

        def body() -> tuple[Written, ...]:
            run()
            return written

        launch = Launch(KERNEL, body, tuple(tensor for tensor in named.values() if tensor is not None))
        self._prepared = _Prepared(metadata, inputs, run, launch)

    def refresh(self, metadata: DSAMetadata, inputs: DeviceInputs) -> None:
        """Write every refreshed leaf of `metadata`, live columns and rows only, from `inputs`."""
        prepared = self._prepared
        if prepared is None or prepared.metadata is not metadata or prepared.inputs is not inputs:
            self.prepare(metadata, inputs)
            prepared = self._prepared
            assert prepared is not None
        if torch._C._len_torch_dispatch_stack():
            perform(prepared.launch)  # a tape records it, a ledger counts what it writes
        else:
            prepared.run()


def _arguments(metadata: DSAMetadata, inputs: DeviceInputs, *, plans: bool) -> dict[str, torch.Tensor | None]:
    """Return the kernel's tensors by parameter, in its order; None for what is absent or not written."""
    write = metadata.kpool_write_plan
    flashmla = metadata.flashmla_metadata
    pooled_lengths = metadata.pooled_cache_seqlens_int32
    pooled_schedule = metadata.pooled_paged_mqa_schedule_metadata
    pooled_plan = metadata.pooled_topk_v2_plan
    if write is not None and write.pool_seqlens_per_q is not None:
        pooled_lengths = write.pool_seqlens_per_q
        pooled_schedule = write.pool_schedule_metadata
        pooled_plan = write.pool_topk_v2_plan
    expanded = metadata.dsa_seqlens_expanded
    effective = None if write is None else write.effective_n_per_batch
    return {
        "seq_lens": inputs.seq_lens,
        "requests": inputs.req_pool_indices,
        "accepted": None if effective is None else inputs.accepted,
        "table": inputs.req_to_token,
        "cache_seqlens": metadata.cache_seqlens_int32,
        "cu_seqlens_k": metadata.cu_seqlens_k,
        "wide": metadata.page_table_1,
        "real": metadata.real_page_table,
        "sparse": metadata.dsa_cache_seqlens_int32,
        "sparse_cu": metadata.dsa_cu_seqlens_k,
        "expanded": None if expanded is metadata.cache_seqlens_int32 else expanded,
        "schedule": metadata.paged_mqa_schedule_metadata,
        "plan": metadata.topk_v2_plan if plans else None,
        "tiles": None if flashmla is None else flashmla.flashmla_metadata,
        "splits": None if flashmla is None else flashmla.num_splits,
        "pooled_lengths": pooled_lengths,
        "pooled": metadata.pooled_real_page_table,
        "pooled_schedule": pooled_schedule,
        "pooled_plan": pooled_plan if plans else None,
        "request_out": None if write is None else write.req,
        "write_start": None if write is None else write.write_start,
        "tail_start": None if write is None else write.tail_logical_start,
        "write_loc": None if write is None else write.write_loc,
        "per_query": None if write is None else write.seqlens_per_q,
        "effective": effective,
    }


INPUTS = ("seq_lens", "requests", "accepted", "table")
"""Arguments that are only read."""
SUMS = ("cu_seqlens_k", "sparse_cu")
"""Arguments whose element 0 is never written."""


def _check_layout(named: dict[str, torch.Tensor | None]) -> None:
    for name, tensor in named.items():
        if tensor is None:
            continue
        rows_apart = name in WIDE and tensor.stride(-1) == 1
        if not rows_apart and not tensor.is_contiguous():
            raise HarnessError(
                f"fused refresh: {name} of shape {tuple(tensor.shape)} has stride {tensor.stride()}; "
                f"only {', '.join(WIDE)} may have rows apart"
            )


def _positional(named: dict[str, torch.Tensor | None], width: int) -> tuple[Any, ...]:
    """Return all arguments in the kernel's order: row strides follow their tensors, the width the table."""
    arguments: list[Any] = []
    for name, tensor in named.items():
        arguments.append(tensor)
        if name in WIDE:
            arguments.append(0 if tensor is None else tensor.stride(0))
        if name == "table":
            arguments.append(width)
    return tuple(arguments)


def _written(named: dict[str, torch.Tensor | None]) -> tuple[Written, ...]:
    """Return what the launch writes: every buffer, live columns and rows of it; of sums all but element 0."""
    return tuple(
        Written(tensor[1:] if name in SUMS else tensor)
        for name, tensor in named.items()
        if tensor is not None and name not in INPUTS
    )
