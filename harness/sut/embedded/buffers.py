"""Allocation: what a backend owns for all its buckets, and the metadata object of one bucket.

The overlaps that the specification declares are made here and nowhere else.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from harness.case import PHYSICAL_PAGE
from harness.fields import Dims, fields_for
from harness.sut.embedded.metadata import DSAMetadata, FlashMLAMetadata, KPoolWritePlan
from harness.sut.embedded.planners import Planners
from harness.types import Kernel


@dataclass(frozen=True, eq=False)
class WideBuffers:
    """Backend-wide buffers, for the largest bucket; a bucket's leaves are slices of them."""

    page_table: torch.Tensor
    """int32 `[max rows, W]`."""
    dsa_cu_seqlens_q: torch.Tensor
    """int32 `[max rows + 1]`, arange, never written again."""
    cu_seqlens_q: torch.Tensor | None
    """int32 `[max rows + 1]`, arange (decode only; the other modes have one per bucket)."""
    flashmla_metadata: FlashMLAMetadata | None

    @classmethod
    def allocate(cls, dims: Dims, planners: Planners, device: torch.device) -> WideBuffers:
        """Make the buffers for the largest bucket's dimensions."""
        offsets = torch.arange(dims.rows + 1, dtype=torch.int32, device=device)
        flashmla = None
        if dims.kernel is Kernel.FLASHMLA_KV and dims.pool == 1:
            flashmla = planners.flashmla(torch.ones(dims.rows, dtype=torch.int32, device=device))
        return cls(
            page_table=torch.zeros(dims.rows, dims.width, dtype=torch.int32, device=device),
            dsa_cu_seqlens_q=offsets,
            cu_seqlens_q=None if dims.expanded else offsets.clone(),
            flashmla_metadata=flashmla,
        )


def allocate_metadata(dims: Dims, wide: WideBuffers, device: torch.device) -> DSAMetadata:
    """Make the metadata object of one bucket: own tensors zeroed, the others slices and views."""
    specs = fields_for(dims)

    def zeros(name: str) -> torch.Tensor:
        dtype: torch.dtype = getattr(torch, specs[name].dtype)
        return torch.zeros(specs[name].shape(dims), dtype=dtype, device=device)

    def optional(name: str) -> torch.Tensor | None:
        return zeros(name) if name in specs else None

    lengths = zeros("cache_seqlens_int32")
    expanded = zeros("dsa_seqlens_expanded") if dims.expanded else lengths
    if wide.cu_seqlens_q is None:
        offsets = torch.arange(dims.rows + 1, dtype=torch.int32, device=device)
    else:
        offsets = wide.cu_seqlens_q[: dims.rows + 1]
    flashmla = None
    if wide.flashmla_metadata is not None:
        whole = wide.flashmla_metadata
        flashmla = FlashMLAMetadata(whole.flashmla_metadata[:], whole.num_splits[: dims.rows + 1])
    plan = None
    if dims.pool > 1:
        plan = KPoolWritePlan(
            req=zeros("kpool_write_plan.req"),
            write_start=zeros("kpool_write_plan.write_start"),
            tail_logical_start=zeros("kpool_write_plan.tail_logical_start"),
            write_loc=zeros("kpool_write_plan.write_loc"),
            num_draft_tokens=dims.written,
            seqlens_per_q=optional("kpool_write_plan.seqlens_per_q"),
            pool_seqlens_per_q=optional("kpool_write_plan.pool_seqlens_per_q"),
            pool_schedule_metadata=optional("kpool_write_plan.pool_schedule_metadata"),
            pool_topk_v2_plan=optional("kpool_write_plan.pool_topk_v2_plan"),
            effective_n_per_batch=optional("kpool_write_plan.effective_n_per_batch"),
        )
    return DSAMetadata(
        page_size=PHYSICAL_PAGE,
        max_seq_len_q=1,
        max_seq_len_k=dims.width,
        cache_seqlens_int32=lengths,
        cu_seqlens_q=offsets,
        cu_seqlens_k=zeros("cu_seqlens_k"),
        page_table_1=wide.page_table[: dims.rows],
        real_page_table=zeros("real_page_table"),
        dsa_cache_seqlens_int32=zeros("dsa_cache_seqlens_int32"),
        dsa_cu_seqlens_q=wide.dsa_cu_seqlens_q[: dims.rows + 1],
        dsa_cu_seqlens_k=zeros("dsa_cu_seqlens_k"),
        dsa_seqlens_expanded=expanded,
        paged_mqa_ctx_lens_2d=expanded.view(dims.rows, 1),
        paged_mqa_schedule_metadata=zeros("paged_mqa_schedule_metadata"),
        topk_v2_plan=zeros("topk_v2_plan"),
        flashmla_metadata=flashmla,
        pooled_cache_seqlens_int32=optional("pooled_cache_seqlens_int32"),
        pooled_real_page_table=optional("pooled_real_page_table"),
        pooled_paged_mqa_schedule_metadata=optional("pooled_paged_mqa_schedule_metadata"),
        pooled_topk_v2_plan=optional("pooled_topk_v2_plan"),
        kpool_write_plan=plan,
    )
