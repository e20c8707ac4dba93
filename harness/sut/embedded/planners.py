"""Derived fields: the paged-MQA schedule, the top-k v2 plan and a FlashMLA stand-in, as torch operations.

Everything has a fixed shape and never asks the device for a value, so that a graph can hold it.
Constants are made once, on the device: a capture may not copy them from the host.
"""

from __future__ import annotations

import torch

from harness.case import PHYSICAL_PAGE
from harness.fields import Dims
from harness.sut.embedded.metadata import FlashMLAMetadata

SEGMENT = 256
"""Positions of one segment of the schedule."""
SPLIT_OVERHEAD = 5
"""Blocks that starting a row costs a FlashMLA worker (the stand-in's choice, as in the real planner)."""


class Planners:
    """The planners of one geometry; all inputs are int32 lengths `[rows]` on `device`."""

    def __init__(self, dims: Dims, device: torch.device) -> None:
        self._rule = dims.plan
        self._workers = dims.num_sms
        self._worker = torch.arange(dims.num_sms + 1, dtype=torch.int64, device=device)
        candidates = dims.plan.candidates
        self._thresholds = torch.tensor([t for t, _ in candidates], dtype=torch.int64, device=device)
        self._most = torch.tensor([most for _, most in candidates], dtype=torch.int64, device=device)
        self._zero = torch.zeros(1, dtype=torch.int64, device=device)

    def write_schedule(self, context: torch.Tensor, out: torch.Tensor) -> None:
        """Deal the segments of `context` to the workers; write their starts, int32 `[num_sms + 1, 2]`.

        A start is (row, segment within it). The last `total % num_sms` workers get one segment more,
        and the last entry ends the list.
        """
        lengths = context.to(torch.int64).reshape(-1)
        ends = torch.cumsum((lengths + (SEGMENT - 1)) // SEGMENT, 0)
        total = ends[-1:]
        each = total // self._workers
        longer_from = self._workers - (total - each * self._workers)
        starts = self._worker * each + (self._worker - longer_from).clamp(min=0)
        rows = torch.searchsorted(ends, starts, right=True)
        before = torch.cat((self._zero, ends))
        out.copy_(torch.stack((rows, starts - before[rows]), 1))

    def plans(self, rows: int) -> bool:
        """Return whether a plan of this many rows is written at all."""
        return self._rule.min_rows <= rows <= self._rule.max_rows

    def write_plan(self, lengths: torch.Tensor, out: torch.Tensor) -> None:
        """Write (threshold, count) and the rows longer than the threshold into `out`, int32 `[rows + 1, 2]`.

        Rows come in descending order (the real kernel's atomics promise none). Rows after `count`
        are not written; outside the rule's range of rows nothing is.
        """
        rows = lengths.shape[0]
        if not self.plans(rows):
            return
        wide = lengths.to(torch.int64)
        counts = (wide[None, :] > self._thresholds[:, None]).sum(1)
        threshold = torch.where(counts <= self._most, self._thresholds, self._thresholds[-1:]).amin(0, True)
        chosen = wide > threshold
        rank = torch.cumsum(chosen, 0)
        count = rank[-1:]
        header = torch.stack((threshold, count), 1)
        body = torch.stack((torch.arange(rows, device=wide.device), wide), 1)
        # Rows that are not chosen write the header once more: the same value, so any order is right.
        target = torch.where(chosen, count + 1 - rank, 0)
        values = torch.cat((header, torch.where(chosen[:, None], body, header))).to(torch.int32)
        out.index_copy_(0, torch.cat((self._zero, target)), values)

    def flashmla(self, lengths: torch.Tensor) -> FlashMLAMetadata:
        """Return a stand-in for FlashMLA's tile plan of sparse `lengths`, in new tensors.

        Each row costs its 64-token blocks and a fixed overhead; workers get equal stretches of the
        sum. `flashmla_metadata[w]` is (first row, its block, last row, its end block, split number
        of the first row, 0, 0, 0), `num_splits` counts the splits of all rows before each.
        """
        blocks = (lengths.to(torch.int64) + (PHYSICAL_PAGE - 1)) // PHYSICAL_PAGE + SPLIT_OVERHEAD
        ends = torch.cumsum(blocks, 0)
        begins = ends - blocks
        share = (ends[-1:] + (self._workers - 1)) // self._workers
        cuts = torch.minimum(self._worker * share, ends[-1:])
        first = torch.searchsorted(ends, cuts[:-1], right=True).clamp(max=blocks.shape[0] - 1)
        last = torch.searchsorted(ends, cuts[1:] - 1, right=True).clamp(max=blocks.shape[0] - 1)
        leading = begins // share
        splits = (ends - 1) // share - leading + 1
        nothing = torch.zeros_like(first)
        tiles = (
            first,
            cuts[:-1] - begins[first],
            last,
            cuts[1:] - begins[last],
            self._worker[:-1] - leading[first],
            nothing,
            nothing,
            nothing,
        )
        return FlashMLAMetadata(
            flashmla_metadata=torch.stack(tiles, 1).to(torch.int32),
            num_splits=torch.cat((self._zero, torch.cumsum(splits, 0))).to(torch.int32),
        )
