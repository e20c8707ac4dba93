"""A toy attention backend: a draft step with three metadata tensors, refreshed before each replay."""

from __future__ import annotations

from dataclasses import dataclass

import torch

PAGE, SEGMENT, WORKERS, WIDTH = 64, 256, 4, 16


@dataclass
class Metadata:
    """What one captured batch size needs; a graph has the addresses of these tensors baked in."""

    lengths: torch.Tensor  # int32 [batch], tokens
    pages: torch.Tensor  # int32 [batch, columns], cache page of every 64 tokens
    plan: torch.Tensor  # int32 [WORKERS + 1], first segment of 256 tokens of each worker


class Step:
    """One draft step."""

    def __init__(self, columns: int, pool: int, device: torch.device, *, cached: bool) -> None:
        self.columns, self.device, self.cached = columns, device, cached
        self.buckets: dict[int, Metadata] = {}
        self.active: Metadata | None = None
        self._longest: dict[int, int] = {}
        keys = torch.randn(pool, WIDTH, generator=torch.Generator().manual_seed(1))
        self.cache = keys.to(device)

    def make(self, batch: int) -> None:
        """Make the tensors of a batch size, before it is captured."""

        def zeros(*shape: int) -> torch.Tensor:
            return torch.zeros(shape, dtype=torch.int32, device=self.device)

        self.buckets[batch] = Metadata(zeros(batch), zeros(batch, self.columns), zeros(WORKERS + 1))

    def refresh(self, batch: int, lengths: torch.Tensor, requests: torch.Tensor, table: torch.Tensor) -> None:
        """Bring the metadata of a batch size up to date, in place."""
        data = self.active = self.buckets[batch]
        data.lengths.copy_(lengths)
        data.pages.copy_(table[requests, ::PAGE] // PAGE)
        longest = int(lengths.max())
        if self.cached and self._longest.get(batch) == longest:
            return  # "the plan depends on the longest request"
        self._longest[batch] = longest
        segments = ((lengths + SEGMENT - 1) // SEGMENT).sum()
        data.plan.copy_(torch.arange(WORKERS + 1, device=self.device) * segments // WORKERS)

    def forward(self, batch: int) -> torch.Tensor:
        """Return the mean key of each request's pages, float32 `[batch, WIDTH]`.

        The plan would tell the workers of a real kernel where to start: it decides how fast this is, and
        whether it ends, not what comes out.
        """
        data = self.buckets[batch]
        live = torch.arange(self.columns, device=self.device) * PAGE < data.lengths[:, None]
        keys = self.cache[data.pages.clamp(0, len(self.cache) - 1)] * live[:, :, None]
        return keys.sum(1) / live.sum(1, keepdim=True)
