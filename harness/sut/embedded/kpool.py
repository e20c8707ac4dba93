"""Derived KPool fields (P > 1): pooled lengths, page table, schedule and plan, and the write plan."""

from __future__ import annotations

import torch

from harness.case import PHYSICAL_PAGE
from harness.fields import Dims
from harness.sut.embedded.metadata import DSAMetadata, KPoolWritePlan, present
from harness.sut.embedded.planners import Planners
from harness.sut.embedded.precompute import DeviceInputs
from harness.types import Mode


class KPoolFields:
    """Refreshes everything that exists only for P > 1, from base fields that are already in place."""

    def __init__(self, dims: Dims, planners: Planners, device: torch.device) -> None:
        self._dims = dims
        self._planners = planners
        self._candidate = torch.arange(-(-dims.written // dims.pool), dtype=torch.int32, device=device)
        self._token = torch.arange(1, dims.written + 1, dtype=torch.int32, device=device)

    def refresh(self, metadata: DSAMetadata, inputs: DeviceInputs) -> None:
        """Write every KPool leaf of `metadata` once (plans only where they are written at all)."""
        dims = self._dims
        if metadata.pooled_real_page_table is not None:
            strided = metadata.real_page_table[:, :: dims.pool]
            torch.floor_divide(strided, dims.pool, out=metadata.pooled_real_page_table)
        if dims.mode is Mode.DECODE:
            lengths = present(metadata.pooled_cache_seqlens_int32)
            torch.floor_divide(metadata.cache_seqlens_int32, dims.pool, out=lengths)
            schedule = present(metadata.pooled_paged_mqa_schedule_metadata)
            self._planners.write_schedule(lengths.clamp(min=1), schedule)
            self._planners.write_plan(lengths, present(metadata.pooled_topk_v2_plan))
        if metadata.kpool_write_plan is not None:
            self._refresh_write_plan(metadata.kpool_write_plan, metadata, inputs)

    def _refresh_write_plan(self, plan: KPoolWritePlan, metadata: DSAMetadata, inputs: DeviceInputs) -> None:
        """Write positions: the tokens that this forward writes are the last `n` of `cache_seqlens`."""
        dims = self._dims
        plan.req.copy_(inputs.req_pool_indices)
        torch.sub(metadata.cache_seqlens_int32, dims.written, out=plan.write_start)
        first = torch.div(plan.write_start, dims.pool, rounding_mode="floor")
        torch.mul(first, dims.pool, out=plan.tail_logical_start)
        pools = first[:, None] + self._candidate[None, :]
        columns = ((pools >> (PHYSICAL_PAGE.bit_length() - 1)) * dims.pool).clamp(0, dims.pages - 1)
        table = metadata.real_page_table[:: dims.rows // dims.bucket]
        pages = table.gather(1, columns.to(torch.int64)) // dims.pool
        torch.add(pools & (PHYSICAL_PAGE - 1), pages, alpha=PHYSICAL_PAGE, out=plan.write_loc)
        if dims.expanded:
            lengths, pooled = present(plan.seqlens_per_q), present(plan.pool_seqlens_per_q)
            visible = (plan.write_start[:, None] + self._token[None, :]).reshape(-1)
            lengths.copy_(visible)
            torch.div(visible, dims.pool, rounding_mode="floor", out=pooled)
            self._planners.write_schedule(pooled.clamp(min=1), present(plan.pool_schedule_metadata))
            self._planners.write_plan(pooled, present(plan.pool_topk_v2_plan))
        if plan.effective_n_per_batch is not None:
            plan.effective_n_per_batch.copy_(inputs.accepted)
