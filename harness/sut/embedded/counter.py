"""The multi-CTA KV counter of a `trtllm`-like decode kernel: one per backend, zero between launches."""

from __future__ import annotations

import torch

from harness.errors import HarnessError

FIRST_ROWS = 8192
"""Query rows that a counter serves from the start."""
HEADS = 2
"""Attention heads of the embedded forward, each with a counter element per query row."""


def counter_elements(rows: int) -> int:
    """Return the declared size, int32 elements: one per query row and head, for at least 8192 rows."""
    return max(rows, FIRST_ROWS) * HEADS


class KVCounter:
    """Owns the buffer; sized once, before the first capture, and never bound to another one."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._buffer: torch.Tensor | None = None

    @property
    def buffer(self) -> torch.Tensor:
        """int32 `[max(rows, 8192) * heads]`, all zero except while a forward runs."""
        if self._buffer is None:
            raise HarnessError("the KV counter is used before init_graph_state sized it")
        return self._buffer

    def size(self, rows: int) -> None:
        """Allocate for this many query rows; a second call would free what graphs hold, so it raises."""
        if self._buffer is not None:
            raise HarnessError("the KV counter is sized once, before capture; it cannot be bound anew")
        self._buffer = torch.zeros(counter_elements(rows), dtype=torch.int32, device=self._device)

    def for_rows(self, rows: int) -> torch.Tensor:
        """Return a launch's counter `[rows * heads]`, a private temporary where the buffer is too small."""
        if rows * HEADS <= self.buffer.shape[0]:
            return self.buffer[: rows * HEADS]
        return torch.zeros(counter_elements(rows), dtype=torch.int32, device=self._device)[: rows * HEADS]
