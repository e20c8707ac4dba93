"""The captured draft forward on a CPU: it reads every leaf, and computes a checksum of what is live.

An output made of live elements only is equal on every path exactly if the tables and lengths are; like
real attention it cannot show a stale schedule or plan (those are judged themselves).
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from harness.case import PHYSICAL_PAGE, Case
from harness.pages import guard_page
from harness.sut.protocol import StepOutputs


class Consumer:
    """Reads one step's metadata with operations that a graph can hold."""

    def __init__(self, case: Case, device: torch.device) -> None:
        width = case.geometry.width
        self._columns = torch.arange(width, dtype=torch.int64, device=device)
        self._slots = guard_page(case.model, case.geometry) * case.model.page_tokens
        """Tokens that `req_to_token` may name: 0 <= id < slots; sentinels lie on the guard page above."""

    def read(self, leaves: Mapping[str, torch.Tensor], bucket: int) -> StepOutputs:
        """Copy every leaf; compute `checksum` and `out_of_range`, int64 `[rows]`.

        checksum: of the row's live page ids, weighted by column, and its lengths. out_of_range: how many
        live token ids name no slot.
        """
        read = {name: leaf.clone() for name, leaf in leaves.items()}
        tokens, pages = leaves["page_table_1"], leaves["real_page_table"]
        rows = tokens.shape[0]
        lengths = leaves["cache_seqlens_int32"].to(torch.int64)
        lengths = lengths[:, None].expand(bucket, rows // bucket).reshape(rows, 1)
        columns = self._columns[None, :]
        live = columns < lengths
        live_pages = columns[:, : pages.shape[1]] * PHYSICAL_PAGE < lengths
        outside = live & ((tokens < 0) | (tokens >= self._slots))
        checksum = torch.where(live, tokens.to(torch.int64) * (2 * columns + 1), 0).sum(1)
        checksum = checksum + torch.where(
            live_pages, pages.to(torch.int64) * (2 * columns[:, : pages.shape[1]] + 1), 0
        ).sum(1)
        checksum = checksum * 31 + leaves["dsa_cache_seqlens_int32"].to(torch.int64)
        checksum = checksum * 31 + leaves["dsa_seqlens_expanded"].to(torch.int64)
        return StepOutputs(read=read, computed={"checksum": checksum, "out_of_range": outside.sum(1)})
