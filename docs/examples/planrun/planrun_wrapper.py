"""A decode wrapper with `plan` and `run`, after the manner of FlashInfer's, in PyTorch on any device.

`plan` is called before a replay, outside the graph: it copies the page list of a batch and cuts its
requests into tiles, at most as many as the grid of the captured kernel has blocks. `run` is what a
graph captures: each block attends over one tile, then the tiles of a request are merged.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

PAGE = 64


@dataclass
class Buffers:
    """What `plan` writes and `run` reads, int32; a captured `run` has the addresses baked in."""

    paged_kv_indptr: torch.Tensor  # [batch + 1], where each request's pages start
    paged_kv_indices: torch.Tensor  # [batch * columns], pages of all requests one after the other
    paged_kv_last_page_len: torch.Tensor  # [batch], tokens on the last page
    request_indices: torch.Tensor  # [grid], request of each block's tile
    kv_tile_indices: torch.Tensor  # [grid], which of the request's tiles it is
    o_indptr: torch.Tensor  # [batch + 1], where each request's tiles start
    kv_chunk_size: torch.Tensor  # [1], tokens of a tile


class DecodeWrapper:
    """The wrapper of one captured batch size; its buffers are made once and keep their addresses."""

    def __init__(self, batch: int, columns: int, device: torch.device, *, lazy: bool = False) -> None:
        self.batch, self.grid, self.lazy = batch, 2 * batch, lazy
        self._planned = -1
        sizes = (batch + 1, batch * columns, batch, self.grid, self.grid, batch + 1, 1)
        self.buffers = Buffers(*(torch.zeros(size, dtype=torch.int32, device=device) for size in sizes))

    def plan(self, indptr: torch.Tensor, indices: torch.Tensor, last_page_len: torch.Tensor) -> None:
        """Take over a batch: `indptr` `[batch + 1]`, `indices` `[indptr[-1]]`, `last_page_len` `[batch]`."""
        data = self.buffers
        data.paged_kv_indptr.copy_(indptr)
        data.paged_kv_indices[: len(indices)].copy_(indices)
        data.paged_kv_last_page_len.copy_(last_page_len)
        if self.lazy and self._planned == len(indices):
            return  # "as many pages as before: the tiles are the same"
        self._planned = len(indices)
        pages = indptr.diff().tolist()
        chunk = 1
        while sum(-(-count // chunk) for count in pages) > self.grid:
            chunk *= 2
        tiles = torch.tensor([-(-count // chunk) for count in pages])
        requests = torch.arange(self.batch).repeat_interleave(tiles)
        ends = tiles.cumsum(0)
        data.request_indices[: len(requests)].copy_(requests)
        data.kv_tile_indices[: len(requests)].copy_(torch.arange(len(requests)) - (ends - tiles)[requests])
        data.o_indptr.copy_(torch.cat([torch.zeros(1, dtype=torch.int64), ends]))
        data.kv_chunk_size.fill_(chunk * PAGE)

    def run(self, query: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        """Return attention `[batch, width]`; `query` `[batch, width]`, `keys` `[pages, PAGE, width]`."""
        data = self.buffers
        device, slots = query.device, len(data.paged_kv_indices)
        block = torch.arange(self.grid, device=device)
        used = block < data.o_indptr[-1]
        request = torch.where(used, data.request_indices, 0).clamp(0, self.batch - 1)
        chunk = data.kv_chunk_size // PAGE
        first = data.paged_kv_indptr[request] + data.kv_tile_indices * chunk
        last = torch.minimum(first + chunk, data.paged_kv_indptr[request + 1])
        slot = torch.arange(slots, device=device)
        mine = (slot >= first[:, None]) & (slot < last[:, None]) & used[:, None]
        final = slot == data.paged_kv_indptr[request + 1][:, None] - 1
        length = torch.where(final, data.paged_kv_last_page_len[request][:, None], PAGE)
        token = torch.arange(PAGE, device=device)
        live = (mine[:, :, None] & (token < length[:, :, None])).flatten(1)
        values = keys[data.paged_kv_indices.clamp(0, len(keys) - 1)].flatten(0, 1)
        scores = (query[request] @ values.T).masked_fill(~live, -1e30)
        top = scores.max(1, keepdim=True).values
        weights = torch.exp(scores - top) * live
        sums, parts = weights.sum(1), weights @ values
        # Merge: the tiles of a request, each scaled to the request's largest score.
        owner = (request == torch.arange(self.batch, device=device)[:, None]) & used
        highest = torch.where(owner, top[:, 0], -1e30).max(1).values
        scale = torch.exp(top[:, 0] - highest[:, None]) * owner
        return (scale @ parts) / (scale @ sums[:, None]).clamp_min(1e-30)
