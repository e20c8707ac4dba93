"""The base fields built another way, as one fused kernel would: page by page, from the request table.

Shares no step with `precompute.OrdinaryBuilder`: physical pages come from the request table and not
from the wide table, prefix sums are masked sums, lengths are counted down instead of up.
"""

from __future__ import annotations

import torch

from harness.case import PHYSICAL_PAGE
from harness.fields import Dims
from harness.sut.embedded.precompute import BaseFields, DeviceInputs
from harness.types import Mode


class FusedBuilder:
    """See `precompute.Builder`; in force only where `Case.fusion_in_force`, but right for any pool size."""

    name = "fused"

    def __init__(self, dims: Dims, device: torch.device) -> None:
        self._dims = dims
        repeat = dims.rows // dims.bucket
        self._page = torch.arange(dims.pages, dtype=torch.int64, device=device)
        self._missing = torch.arange(repeat - 1, -1, -1, dtype=torch.int64, device=device)
        rows = torch.arange(dims.rows, device=device)
        self._up_to = rows[None, :] <= rows[:, None]

    def build(self, inputs: DeviceInputs, out: BaseFields) -> None:
        """See `precompute.Builder`."""
        dims = self._dims
        last = inputs.seq_lens + dims.draft_tokens if dims.mode is Mode.TARGET_VERIFY else inputs.seq_lens
        out.cache_seqlens.copy_(last)
        self._prefix_sum(last, out.cu_seqlens_k)
        visible = (last[:, None] - self._missing[None, :]).relu().reshape(-1) if dims.expanded else last
        if dims.expanded:
            out.seqlens_expanded.copy_(visible)
        beyond = (visible - visible % dims.pool - dims.topk).relu()
        sparse = visible - beyond
        out.dsa_cache_seqlens.copy_(sparse)
        self._prefix_sum(sparse, out.dsa_cu_seqlens_k)
        self._tables(inputs, out)

    def _prefix_sum(self, values: torch.Tensor, out: torch.Tensor) -> None:
        """Write the inclusive prefix sums behind element 0, by masked sums over all earlier elements."""
        rows = values.shape[0]
        sums = torch.where(self._up_to[:rows, :rows], values[None, :], 0).sum(1)
        out[1:].copy_(sums)

    def _tables(self, inputs: DeviceInputs, out: BaseFields) -> None:
        """Gather whole physical pages of the request table: their tokens, and their first token's page."""
        dims = self._dims
        strips = inputs.req_to_token.view(-1, PHYSICAL_PAGE)
        strip = inputs.req_pool_indices[:, None] * dims.pages + self._page[None, :]
        repeat = dims.rows // dims.bucket
        strip = strip[:, None, :].expand(dims.bucket, repeat, dims.pages).reshape(-1)
        torch.index_select(strips, 0, strip, out=out.page_table.view(-1, PHYSICAL_PAGE))
        heads = strips[:, 0].index_select(0, strip)
        out.real_page_table.view(-1).copy_(heads >> (PHYSICAL_PAGE.bit_length() - 1))
