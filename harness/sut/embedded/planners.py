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
    """The planners of one bucket; all inputs are int32 lengths on `device`, of at most `dims.rows` rows."""

    def __init__(self, dims: Dims, device: torch.device) -> None:
        self._rule = dims.plan
        self._workers = dims.num_sms
        worker = torch.arange(dims.num_sms + 1, dtype=torch.int32, device=device)
        self._worker, self._longer = worker, worker - dims.num_sms
        thresholds, most = zip(*dims.plan.candidates, strict=True)
        self._thresholds = torch.tensor(thresholds, dtype=torch.int32, device=device)
        self._most = torch.tensor(most, dtype=torch.int64, device=device)
        self._row = torch.arange(dims.rows + 1, dtype=torch.int32, device=device)
        self._zero = torch.zeros(1, dtype=torch.int32, device=device)
        self._nothing = torch.zeros(1, dtype=torch.int64, device=device)
        self._below_all = torch.full((1,), -1, dtype=torch.int32, device=device)

    def write_schedule(self, context: torch.Tensor, out: torch.Tensor) -> None:
        """Deal the segments of `context` to the workers; write their starts, int32 `[num_sms + 1, 2]`.

        A start is (row, segment within it). The last `total % num_sms` workers get one segment more,
        and the last entry ends the list.
        """
        segments = (context.reshape(-1) + (SEGMENT - 1)) >> (SEGMENT.bit_length() - 1)
        ends = torch.cumsum(segments, 0, dtype=torch.int32)
        total = ends[-1:]
        later = (self._longer + total % self._workers).clamp(min=0)
        starts = torch.addcmul(later, self._worker, total // self._workers)
        rows = torch.searchsorted(ends, starts, right=True)
        before = torch.cat((self._zero, ends)).index_select(0, rows)
        out.copy_(torch.stack((rows, starts - before), 1))

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
        # One row more that is never chosen: such rows write the header, all the same value, in any order.
        padded = torch.cat((lengths, self._below_all))
        counts = (padded > self._thresholds[:, None]).sum(1)
        threshold = torch.where(counts <= self._most, self._thresholds, self._thresholds[-1:]).amin(0, True)
        chosen = padded > threshold
        rank = torch.cumsum(chosen, 0)
        count = rank[-1:]
        header = torch.stack((threshold, count), 1)
        body = torch.stack((self._row[: rows + 1], padded), 1)
        target = torch.where(chosen, count + 1 - rank, self._nothing)
        out.index_copy_(0, target, torch.where(chosen[:, None], body, header).to(torch.int32))

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
        cuts = torch.minimum(self._worker.to(torch.int64) * share, ends[-1:])
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
            num_splits=torch.cat((self._nothing, torch.cumsum(splits, 0))).to(torch.int32),
        )
