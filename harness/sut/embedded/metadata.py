"""The metadata objects that a draft step reads; leaf names are those of `harness.fields`.

A leaf that does not exist for a mode, pool size or kernel is None. The objects are frozen: a refresh
writes into the tensors, it never binds others (a captured graph has their addresses baked in).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import torch


@dataclass(frozen=True, eq=False)
class FlashMLAMetadata:
    """Tile plan of the `flashmla_kv` kernel."""

    flashmla_metadata: torch.Tensor
    """int32 `[num_sms, 8]`."""
    num_splits: torch.Tensor
    """int32 `[rows + 1]`."""


@dataclass(frozen=True, eq=False)
class KPoolWritePlan:
    """Where a forward writes the pooled keys of the pools that its tokens complete (P > 1)."""

    req: torch.Tensor
    """int64 `[bs]`."""
    write_start: torch.Tensor
    """int32 `[bs]`, first token position written."""
    tail_logical_start: torch.Tensor
    """int32 `[bs]`, first position of the pool that `write_start` lies in."""
    write_loc: torch.Tensor
    """int64 `[bs, ceil(n / P)]`, pool slot of each candidate."""
    num_draft_tokens: int
    """`n`, tokens written per request."""
    seqlens_per_q: torch.Tensor | None = None
    """int32 `[rows]`, expanded modes."""
    pool_seqlens_per_q: torch.Tensor | None = None
    """int32 `[rows]`, expanded modes."""
    pool_schedule_metadata: torch.Tensor | None = None
    """int32 `[num_sms + 1, 2]`, expanded modes."""
    pool_topk_v2_plan: torch.Tensor | None = None
    """int32 `[rows + 1, 2]`, expanded modes."""
    effective_n_per_batch: torch.Tensor | None = None
    """int32 `[bs]`, draft-extend: accepted tokens."""


@dataclass(frozen=True, eq=False)
class DSAMetadata:
    """All that one draft step's forward reads for one bucket; shapes as in `harness.fields`."""

    page_size: int
    """Tokens of a physical page."""
    max_seq_len_q: int
    max_seq_len_k: int
    """Width of `page_table_1`, tokens."""
    cache_seqlens_int32: torch.Tensor
    cu_seqlens_q: torch.Tensor
    cu_seqlens_k: torch.Tensor
    page_table_1: torch.Tensor
    real_page_table: torch.Tensor
    dsa_cache_seqlens_int32: torch.Tensor
    dsa_cu_seqlens_q: torch.Tensor
    dsa_cu_seqlens_k: torch.Tensor
    dsa_seqlens_expanded: torch.Tensor
    """In decode the same tensor as `cache_seqlens_int32`."""
    paged_mqa_ctx_lens_2d: torch.Tensor
    """A view `[rows, 1]` of `dsa_seqlens_expanded`."""
    paged_mqa_schedule_metadata: torch.Tensor
    topk_v2_plan: torch.Tensor
    flashmla_metadata: FlashMLAMetadata | None = None
    pooled_cache_seqlens_int32: torch.Tensor | None = None
    pooled_real_page_table: torch.Tensor | None = None
    pooled_paged_mqa_schedule_metadata: torch.Tensor | None = None
    pooled_topk_v2_plan: torch.Tensor | None = None
    kpool_write_plan: KPoolWritePlan | None = None


def present(tensor: torch.Tensor | None) -> torch.Tensor:
    """Return a leaf that must exist here; a missing one is a fault of the builder."""
    if tensor is None:
        raise AttributeError("a metadata leaf that this mode and pool size need is missing")
    return tensor


def named_leaves(root: object, prefix: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    """Yield (dotted name, tensor) of every tensor below a metadata object, in declaration order."""
    if isinstance(root, torch.Tensor):
        yield prefix, root
    elif is_dataclass(root) and not isinstance(root, type):
        for item in fields(root):
            child: Any = getattr(root, item.name)
            yield from named_leaves(child, f"{prefix}.{item.name}" if prefix else item.name)


def present_plan(metadata: DSAMetadata) -> KPoolWritePlan:
    """Return the write plan that every object with P > 1 has."""
    if metadata.kpool_write_plan is None:
        raise AttributeError("a metadata object with P > 1 has no kpool_write_plan")
    return metadata.kpool_write_plan


def read_leaves(metadata: DSAMetadata) -> dict[str, torch.Tensor]:
    """Copy every leaf, by name, in one launch per dtype; the copies are parts of one buffer."""
    leaves = dict(named_leaves(metadata))
    copies: dict[str, torch.Tensor] = {}
    for dtype in (torch.int32, torch.int64):
        names = [name for name, leaf in leaves.items() if leaf.dtype is dtype]
        if names:
            buffer = torch.cat([leaves[name].reshape(-1) for name in names])
            parts = torch.split(buffer, [leaves[name].numel() for name in names])
            copies |= {name: part.view(leaves[name].shape) for name, part in zip(names, parts, strict=True)}
    return {name: copies[name] for name in leaves}
