"""KPool tail handling: the pooled keys of pools that a forward's tokens complete are summed and stored."""

from __future__ import annotations

import torch

from harness.case import PHYSICAL_PAGE
from harness.fields import Dims
from harness.sut.embedded.bounds import RangeCheck
from harness.sut.embedded.metadata import KPoolWritePlan
from harness.sut.embedded.weights import INDEX_DIM, Caches


class PoolWriter:
    """Writes pooled keys through a `KPoolWritePlan` (P > 1), every id of it bounded first.

    Pools that are not complete, all of the reserved request 0 and locations beyond the cache go to a
    slot that nothing reads: a graph cannot leave a write out.
    """

    def __init__(self, dims: Dims, requests: int, caches: Caches, device: torch.device) -> None:
        self._dims = dims
        self._caches = caches
        pool = dims.pool
        candidates = -(-dims.written // pool)
        slots = caches.tokens // pool
        self._end = torch.arange(1, candidates + 1, dtype=torch.int32, device=device)[None, :] * pool
        self._offset = torch.arange(candidates * pool, dtype=torch.int32, device=device)[None, :]
        self.bounds = [requests - 1] * dims.bucket + [dims.width - 1] * (2 * dims.bucket)
        self.bounds += [dims.draft_tokens] * dims.bucket
        self._slots = slots
        self._nowhere = torch.full((1,), slots, dtype=torch.int64, device=device)
        self._written = torch.full((dims.bucket,), dims.written, dtype=torch.int32, device=device)
        self.pages = caches.pooled_keys.view(-1, PHYSICAL_PAGE * INDEX_DIM)
        """float32 `[pooled pages, 64 * INDEX_DIM]`."""

    def read(self, plan: KPoolWritePlan) -> list[torch.Tensor]:
        """Return what has to lie within 0 and `bounds`, int32: requests, starts, tails and token counts."""
        accepted = self._written if plan.effective_n_per_batch is None else plan.effective_n_per_batch
        return [plan.req.to(torch.int32), plan.write_start, plan.tail_logical_start, accepted]

    def write(
        self,
        plan: KPoolWritePlan,
        bounded: torch.Tensor,
        req_to_token: torch.Tensor,
        check: RangeCheck,
    ) -> None:
        """Sum and store the pools that are complete, at locations that `check` bounds.

        `bounded` is what `read` returned, in one tensor and within its bounds.
        """
        dims = self._dims
        request, start, first, count = torch.split(bounded, dims.bucket)
        complete = (first[:, None] + self._end <= (start + count)[:, None]) & (request > 0)[:, None]
        position = (first[:, None] + self._offset).clamp(max=dims.width - 1)
        cell = (request * dims.width)[:, None] + position
        token = req_to_token.view(-1).index_select(0, cell.view(-1)).clamp(0, self._caches.tokens - 1)
        keys = self._caches.index_keys.view(-1, INDEX_DIM).index_select(0, token)
        pooled = keys.view(-1, dims.pool, INDEX_DIM).sum(1)
        location = torch.where(complete, plan.write_loc, self._nowhere)
        target = check.clamp(location, self._slots)
        self._caches.pooled_keys.index_copy_(0, target.view(-1), pooled)
