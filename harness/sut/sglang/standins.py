"""CPU stand-ins for exactly what needs a GPU: schedule, top-k plan, fused copies, FlashMLA planner.

Each computes what the GPU kernel computes, element for element (`tests/sut/sglang/test_gpu_standins.py`
holds them against the real ones), and runs as one opaque launch. The FlashMLA planner and the size rule
of the KV counter are only alike in kind: they depend on the same inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from harness.case import Geometry, PlanRule
from harness.probe.launches import Written
from harness.sut.interpreted import opaque


@dataclass(frozen=True)
class TopkModule:
    """Stand-in for the JIT module of top-k v2, as far as plans go."""

    rule: PlanRule

    def topk_plan(self, seq_lens: torch.Tensor, plan: torch.Tensor, static_threshold: int) -> None:
        """Write (threshold, count) and (row, length) of every row above the threshold, or nothing at all."""
        if plan.shape != (seq_lens.shape[0] + 1, 2) or seq_lens.dtype != torch.int32:
            raise ValueError(f"top-k plan {tuple(plan.shape)} for {seq_lens.dtype} {tuple(seq_lens.shape)}")

        def run() -> tuple[Written, ...]:
            lengths = seq_lens.numpy()
            if not self.rule.min_rows <= len(lengths) <= self.rule.max_rows:
                return ()
            threshold = plan_threshold(lengths, self.rule)
            rows = np.flatnonzero(lengths > threshold)
            plan[0] = torch.tensor((threshold, len(rows)))
            plan.numpy()[1 : len(rows) + 1] = np.stack((rows, lengths[rows]), axis=1)
            return (Written(plan[: len(rows) + 1]),)

        opaque("topk_plan", (seq_lens, plan), run)


def plan_threshold(lengths: NDArray[np.int32], rule: PlanRule) -> int:
    """Return the smallest candidate whose count of longer rows stays within its cap, else the last."""
    for threshold, cap in rule.candidates:
        if np.count_nonzero(lengths > threshold) <= cap:
            return threshold
    return rule.candidates[-1][0]


@dataclass(frozen=True)
class CopyModule:
    """Stand-in for the JIT modules of the fused metadata copies."""

    forward_mode: int = 0
    """0 decode, 1 target-verify: a template parameter of the real kernel."""

    def fused_metadata_copy(self, *args: Any) -> None:
        """One destination: nine source tensors, nine destination tensors, four sizes."""
        _copy("fused_metadata_copy", args, copy_pairs(args, decode=self.forward_mode == 0))

    def fused_metadata_copy_multi(self, *args: Any) -> None:
        """Three destinations of eight tensors each, decode only; three sizes."""
        _copy("fused_metadata_copy_multi", args, multi_copy_pairs(args))


Pair = tuple[torch.Tensor, torch.Tensor]
"""A view that a copy kernel writes, and the view that it reads."""


def copy_pairs(args: Sequence[Any], *, decode: bool) -> list[Pair]:
    """Return what the copy to one destination writes.

    `bs` rows in decode, `seqlens_expanded_size` expanded rows in target-verify; the first elements of both
    cumulative sums are left as they are.
    """
    lengths, offsets, table, sparse, expanded, sparse_offsets, pages, splits, tiles = args[:9]
    to = args[9:18]
    bs, max_len, max_seqlen_k, expanded_size = args[18:]
    rows, width = (bs, max_len) if decode else (expanded_size, max_seqlen_k)
    pairs = [
        (to[0][:bs], lengths[:bs]),
        (to[1][1 : bs + 1], offsets[1 : bs + 1]),
        (to[2][:rows, :width], table[:rows, :width]),
        (to[3][:rows], sparse[:rows]),
        (to[5][1 : rows + 1], sparse_offsets[1 : rows + 1]),
    ]
    if not decode:
        pairs.append((to[4][:rows], expanded[:rows]))
    return pairs + _optional_pairs(to[6:9], (pages, splits, tiles), rows)


def multi_copy_pairs(args: Sequence[Any]) -> list[Pair]:
    """Return what the copy to three destinations writes."""
    lengths, offsets, table, sparse, sparse_offsets, pages, splits, tiles = args[:8]
    bs, max_len, _ = args[32:]
    pairs = []
    for first in (8, 16, 24):
        to = args[first : first + 8]
        pairs += [
            (to[0][:bs], lengths[:bs]),
            (to[1][1 : bs + 1], offsets[1 : bs + 1]),
            (to[2][:bs, :max_len], table[:bs, :max_len]),
            (to[3][:bs], sparse[:bs]),
            (to[4][1 : bs + 1], sparse_offsets[1 : bs + 1]),
            *_optional_pairs(to[5:8], (pages, splits, tiles), bs),
        ]
    return pairs


def _optional_pairs(to: Sequence[Any], source: Sequence[Any], rows: int) -> list[Pair]:
    """Return real page table, FlashMLA splits and FlashMLA tiles, where they are given."""
    pages, splits, tiles = source
    pairs = []
    if pages is not None:
        pairs.append((to[0][:rows, : pages.shape[1]], pages[:rows]))
    if splits is not None:
        pairs.append((to[1][: rows + 1], splits[: rows + 1]))
        pairs.append((to[2].view(-1)[: tiles.numel()], tiles.view(-1)))
    return pairs


def _copy(kernel: str, args: Sequence[Any], pairs: list[Pair]) -> None:
    def run() -> tuple[Written, ...]:
        for target, source in pairs:
            target.copy_(source)
        return tuple(Written(target) for target, _ in pairs)

    opaque(kernel, [arg for arg in args if isinstance(arg, torch.Tensor)], run)


def flashmla_planner(num_sms: int) -> Callable[..., tuple[torch.Tensor, torch.Tensor]]:
    """Return a planner with the call of FlashMLA's `get_mla_metadata`, made for `num_sms` workers.

    Not FlashMLA's algorithm: an even split of 64-token blocks over the workers, which depends on every
    row's length as the real one does. Tiles are int32 `[num_sms, 8]`, splits int32 `[rows + 1]`. It runs
    where the lengths lie, without reading them on the host, so a graph can hold it.
    """

    def get_mla_metadata(cache_seqlens: torch.Tensor, **_: Any) -> tuple[torch.Tensor, torch.Tensor]:
        tiles = cache_seqlens.new_empty((num_sms, 8), dtype=torch.int32)
        splits = cache_seqlens.new_empty(cache_seqlens.shape[0] + 1, dtype=torch.int32)

        def run() -> tuple[Written, ...]:
            _split_blocks(cache_seqlens, tiles, splits)
            return (Written(tiles), Written(splits))

        opaque("flash_mla.get_mla_metadata", (cache_seqlens, tiles, splits), run)
        return tiles, splits

    return get_mla_metadata


def _split_blocks(lengths: torch.Tensor, tiles: torch.Tensor, splits: torch.Tensor) -> None:
    """Fill tiles, by worker (first row, token in it, last row, token in it), and splits, offsets by row."""
    ends = torch.cumsum(torch.clamp((lengths.to(torch.int64) + 63) // 64, min=1), 0)
    offsets = torch.nn.functional.pad(ends, (1, 0))
    workers = tiles.shape[0]
    bounds = torch.arange(workers + 1, device=lengths.device) * ends[-1] // workers
    starts, stops = bounds[:-1], bounds[1:]
    first = torch.searchsorted(ends, starts, right=True)
    last = torch.searchsorted(ends, torch.clamp(stops - 1, min=0), right=True)
    columns = (first, (starts - offsets[first]) * 64, last, (stops - offsets[last]) * 64)
    tiles.zero_()
    tiles[:, :4] = torch.stack(columns, 1)
    # A row has a split for each worker border strictly inside it, and one more.
    inner = bounds[1:-1].contiguous()
    inside = torch.searchsorted(inner, ends) - torch.searchsorted(
        inner, offsets[:-1].contiguous(), right=True
    )
    splits[:1] = 0
    splits[1:] = torch.cumsum(torch.clamp(inside, min=0) + 1, 0)


def counter_bytes(query_rows: int, heads: int, num_sms: int) -> int:
    """Return the KV counter's bytes: an int32 for every (row, head), at least one a worker, in eights."""
    return -(-max(query_rows * heads, num_sms) // 8) * 8 * 4


def flashinfer_utils(geometry: Geometry) -> SimpleNamespace:
    """Return the part of `flashinfer.utils` that sizes the KV counter."""
    return SimpleNamespace(
        get_device_sm_count=lambda device: geometry.num_sms,
        get_trtllm_gen_multi_ctas_kv_counter_bytes=counter_bytes,
    )
