"""A repaired update of the tail ring's slots, as a subclass of the released builder.

The released update takes each row's block from the slot mapping that it wrote last. This one takes it from
the block table in force, which is a persistent tensor of the runner's, as the indexer's update does.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

from harness.sut.vllm.seams import Seams


def repaired_tail_builder(seams: Seams) -> type[Any]:
    """Return the subclass, made once for a process's vLLM."""
    return _subclass(seams.indexer.KpoolTailMetadataBuilder)


@cache
def _subclass(released: type[Any]) -> type[Any]:
    class RepairedTailBuilder(released):  # type: ignore[misc]
        """Derives every slot from the current block table and the current position."""

        def build(self, common_prefix_len: int, common_attn_metadata: Any, fast_build: bool = False) -> Any:
            """Build as released; keep the block table, whose address stays."""
            self.current_block_table = common_attn_metadata.block_table_tensor
            return super().build(common_prefix_len, common_attn_metadata, fast_build)

        def update_draft_decode_metadata(self, metadata: Any) -> None:
            """Map each row's position into its block's ring; rows on the null block are not stored."""
            rows, ring = metadata.num_decode_tokens, self.kv_cache_spec.block_size
            block = self.current_block_table[:rows, 0].to(torch.int64)
            slots = block * ring + metadata.positions[:rows].remainder(ring)
            metadata.slot_mapping[:rows].copy_(torch.where(block != 0, slots, -1))

    return RepairedTailBuilder
