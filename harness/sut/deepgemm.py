"""DeepGEMM's paged-MQA schedule on a CPU, one opaque launch, for the servers that ask DeepGEMM for it."""

from __future__ import annotations

import numpy as np
import torch

from harness.probe.launches import Written
from harness.sut.interpreted import opaque

SEGMENT = 256
"""Positions that one segment of the paged-MQA schedule covers."""


def paged_mqa_schedule(
    context_lens: torch.Tensor, block_kv: int, num_sms: int, indices: torch.Tensor | None = None
) -> torch.Tensor:
    """DeepGEMM's schedule (sm90 rule): int32 `[num_sms + 1, 2]` of (row, segment within the row).

    context_lens: int32 `[rows, 1]`, contiguous. The last `total % num_sms` workers take one segment more.
    """
    if context_lens.numel() != context_lens.shape[0] or not context_lens.is_contiguous():
        raise ValueError(f"paged-MQA schedule of context lengths shaped {tuple(context_lens.shape)}")
    out = torch.empty((num_sms + 1, 2), dtype=torch.int32)

    def run() -> tuple[Written, ...]:
        ends = np.cumsum(-(-context_lens.numpy().reshape(-1).astype(np.int64) // SEGMENT))
        each, rest = divmod(int(ends[-1]), num_sms)
        workers = np.arange(num_sms)
        starts = workers * each + np.maximum(0, workers - (num_sms - rest))
        rows = np.searchsorted(ends, starts, side="right")
        entries = out.numpy()
        entries[:num_sms, 0] = rows
        entries[:num_sms, 1] = starts - np.concatenate(([0], ends))[rows]
        entries[num_sms] = (len(ends), 0)
        return (Written(out),)

    opaque("deep_gemm.get_paged_mqa_logits_metadata", (context_lens, out), run)
    return out
