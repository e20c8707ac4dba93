"""The captured draft forward: it reads every leaf, and computes a checksum of what attention would read.

Like real attention it shows neither a stale schedule nor where a tail key is written: those are judged
themselves.
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
        self._tokens = PHYSICAL_PAGE * case.model.index_kpool
        columns = case.geometry.width // self._tokens
        self._columns = torch.arange(columns, dtype=torch.int64, device=device)
        self._blocks = guard_page(case.model, case.geometry)
        """Blocks that a table may name: 0 <= id < blocks; sentinels lie on the guard page above."""

    def read(self, leaves: Mapping[str, torch.Tensor], bucket: int) -> StepOutputs:
        """Copy every leaf; compute `checksum` and `out_of_range`, int64 `[bs]`.

        checksum: of the row's live blocks, weighted by column, its lengths and its slots. out_of_range: how
        many live entries of block tables name no block.
        """
        # An empty leaf is what no kernel is launched for.
        read = {name: leaf.clone() for name, leaf in leaves.items() if leaf.numel()}
        rows = next(leaf for name, leaf in leaves.items() if name.endswith(".seq_lens")).to(torch.int64)
        total, outside = rows.clone(), torch.zeros_like(rows)
        live = self._columns[None, :] * self._tokens < rows[:, None]
        for name, leaf in leaves.items():
            if name.endswith("block_table"):
                table = leaf.to(torch.int64)
                total += torch.where(live, table * (2 * self._columns + 1), 0).sum(1)
                outside += (live & ((table < 0) | (table >= self._blocks))).sum(1)
            elif name in ("indexer.slot_mapping", "main.slot_mapping"):
                total = total * 31 + leaf
            elif name.endswith("state_indices_tensor_d"):
                total = total * 31 + leaf[:, 0]
        if "indexer.decode.seq_lens" in leaves:
            total = total * 31 + leaves["indexer.decode.seq_lens"][:, 0]
        return StepOutputs(read=read, computed={"checksum": total, "out_of_range": outside})
