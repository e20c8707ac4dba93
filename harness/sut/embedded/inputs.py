"""The persistent input tensors: a round is written into them in place, and graphs read them."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from harness.errors import HarnessError
from harness.rounds import Inputs
from harness.sut.embedded.precompute import DeviceInputs
from harness.sut.embedded.weights import VOCABULARY


class PersistentInputs:
    """Inputs for up to `max_bs` requests with `per_request` query rows each."""

    def __init__(
        self, max_bs: int, per_request: int, requests: int, width: int, device: torch.device
    ) -> None:
        self._device = device
        self._per_request = per_request
        self._seq_lens = torch.ones(max_bs, dtype=torch.int64, device=device)
        self._requests = torch.zeros(max_bs, dtype=torch.int64, device=device)
        self._accepted = torch.ones(max_bs, dtype=torch.int32, device=device)
        self._tokens = torch.zeros(max_bs * per_request, dtype=torch.int64, device=device)
        self._table = torch.zeros(requests, width, dtype=torch.int32, device=device)
        # What the device's table holds, so that only rows that change are copied.
        self._mirror = np.zeros((requests, width), np.int32)
        self._slices: dict[int, DeviceInputs] = {}

    def stage(self, inputs: Inputs) -> None:
        """Write a round in place; query tokens are a hash of request, length and row unless set later."""
        bucket = inputs.bucket
        if inputs.table.shape != self._mirror.shape:
            raise HarnessError(
                f"req_to_token has shape {inputs.table.shape}, the system was built for {self._mirror.shape}"
            )
        if bucket > self._seq_lens.shape[0]:
            raise HarnessError(f"bucket {bucket} is larger than the largest, {self._seq_lens.shape[0]}")
        self._copy(self._seq_lens[:bucket], inputs.lengths)
        self._copy(self._requests[:bucket], inputs.requests)
        self._copy(self._accepted[:bucket], inputs.accepted)
        lane = np.arange(self._per_request)[None, :]
        seeds = inputs.requests[:, None] * 7919 + inputs.lengths[:, None] * 31 + lane * 17
        self.stage_tokens(bucket, seeds % VOCABULARY)
        self._stage_table(inputs.table)

    def stage_tokens(self, bucket: int, tokens: NDArray[np.int64]) -> None:
        """Set the query tokens `[bucket, per_request]`, each below the vocabulary's size."""
        self._copy(self._tokens[: bucket * self._per_request], tokens.reshape(-1))

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return the persistent tensors by name."""
        return {
            "seq_lens": self._seq_lens,
            "req_pool_indices": self._requests,
            "accepted": self._accepted,
            "req_to_token": self._table,
        }

    def of(self, bucket: int) -> DeviceInputs:
        """Return the slices that one bucket reads; the same object at every call."""
        if bucket not in self._slices:
            self._slices[bucket] = DeviceInputs(
                seq_lens=self._seq_lens[:bucket],
                req_pool_indices=self._requests[:bucket],
                accepted=self._accepted[:bucket],
                req_to_token=self._table,
            )
        return self._slices[bucket]

    def tokens(self, bucket: int) -> torch.Tensor:
        """Return the query tokens, int64 `[bucket * per_request]`."""
        return self._tokens[: bucket * self._per_request]

    def _stage_table(self, table: NDArray[np.int32]) -> None:
        changed = np.flatnonzero((table != self._mirror).any(axis=1))
        for first, last in _runs(changed):
            self._copy(self._table[first:last], table[first:last])
        self._mirror[changed] = table[changed]

    def _copy(self, target: torch.Tensor, values: NDArray[np.generic]) -> None:
        """Copy host values into a device tensor, in stream order and without waiting for the device."""
        source = torch.from_numpy(np.ascontiguousarray(values))
        if self._device.type == "cuda":
            # A fresh pinned buffer: torch keeps it from reuse until the copy has run.
            source = source.pin_memory()
        target.copy_(source, non_blocking=True)


def _runs(rows: NDArray[np.intp]) -> list[tuple[int, int]]:
    """Group ascending row numbers into half-open ranges of neighbours."""
    if rows.size == 0:
        return []
    breaks = np.flatnonzero(np.diff(rows) > 1)
    firsts = np.concatenate([rows[:1], rows[breaks + 1]])
    lasts = np.concatenate([rows[breaks], rows[-1:]])
    return [(int(first), int(last) + 1) for first, last in zip(firsts, lasts, strict=True)]
