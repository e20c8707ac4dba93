"""Copies of a refresh's inputs, made without waiting for a device: queued by the server, read by the writer.

A slot is a set of buffers in page-locked memory that is filled by copies on the server's own stream; an event
says when they have arrived. On a CPU the copies are done when the call returns.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

import torch

SLOT_BYTES = 64 << 20
"""Memory of all slots together."""
FEWEST, MOST = 4, 64
"""Slots."""


@dataclass(frozen=True, slots=True)
class Meta:
    """What the host knows of a call without asking the device."""

    n: int
    t: int
    capture: bool
    mode: str
    bucket: int
    steps: int
    live: int
    """Live rows; -1 where only the padded rows' request 0 tells."""
    flags: tuple[str, ...] = ()


class Slot:
    """Buffers for one call of up to `rows` requests."""

    __slots__ = ("accepted", "event", "extended", "lengths", "meta", "numbers", "pages", "requests", "table")

    def __init__(self, rows: int, columns: int, *, pinned: bool) -> None:
        """Make buffers for that many rows and page columns; page-locked for a GPU."""
        self.numbers = torch.empty((2, rows), dtype=torch.int64, pin_memory=pinned)
        self.lengths, self.requests = self.numbers[0], self.numbers[1]
        self.table = torch.empty((rows, columns), dtype=torch.int32, pin_memory=pinned)
        self.accepted = torch.empty(rows, dtype=torch.int32, pin_memory=pinned)
        self.pages = columns > 0
        self.extended = False
        self.event: Any = torch.cuda.Event() if pinned else None  # type: ignore[no-untyped-call]
        self.meta: Meta | None = None

    def arrived(self) -> bool:
        """Whether the copies are done."""
        return self.event is None or bool(self.event.query())


class Slots:
    """All slots of a recorder, free or in use. Taken by the server's thread, given back by the writer's."""

    def __init__(self, table: torch.Tensor, page_tokens: int, *, pages: bool) -> None:
        """Copy from `table`, int32 `[requests, W]`; every `page_tokens`-th column says a page's place."""
        self._device = table.device
        self._view = table[:, ::page_tokens] if pages else table[:, :0]
        self._columns = self._view.shape[1]
        self._rows = 0
        self._free: deque[Slot] = deque()
        self._staging: dict[int, torch.Tensor] = {}

    @property
    def rows(self) -> int:
        """Rows of the slots, 0 before the first capture."""
        return self._rows

    def fit(self, rows: int) -> None:
        """Make slots for so many rows, if those there are have fewer. Allocates: not for serving time."""
        if rows <= self._rows:
            return
        each = rows * (self._columns * 4 + 20)
        count = min(max(SLOT_BYTES // each, FEWEST), MOST)
        pinned = self._device.type == "cuda"
        self._rows = rows
        self._free = deque(Slot(rows, self._columns, pinned=pinned) for _ in range(count))
        self._staging.clear()

    def take(self, rows: int) -> Slot | None:
        """Return a free slot for so many rows; None where there is none."""
        if rows > self._rows or not self._free:
            return None
        return self._free.popleft()

    def give_back(self, slot: Slot) -> None:
        """Take a slot back; one that is too small by now is dropped."""
        slot.meta = None
        if slot.lengths.shape[0] == self._rows:
            self._free.append(slot)

    def fill(
        self, slot: Slot, lengths: torch.Tensor, requests: torch.Tensor, accepted: torch.Tensor | None
    ) -> None:
        """Queue the copies of one call's device tensors on the current stream; waits for nothing."""
        rows = lengths.shape[0]
        slot.lengths[:rows].copy_(lengths, non_blocking=True)
        slot.requests[:rows].copy_(requests, non_blocking=True)
        slot.extended = accepted is not None
        if accepted is not None:
            slot.accepted[:rows].copy_(accepted[:rows], non_blocking=True)
        if slot.event is None:
            if slot.pages:
                torch.index_select(self._view, 0, requests, out=slot.table[:rows])
            return
        if slot.pages:
            staging = self._staged(rows)
            torch.index_select(self._view, 0, requests, out=staging)
            slot.table[:rows].copy_(staging, non_blocking=True)
        slot.event.record()

    def _staged(self, rows: int) -> torch.Tensor:
        """Return the current stream's buffer on the device: its order keeps the copies apart."""
        stream = torch.cuda.current_stream(self._device).cuda_stream
        buffer = self._staging.get(stream)
        if buffer is None:
            buffer = self._staging[stream] = torch.empty(
                (self._rows, self._columns), dtype=torch.int32, device=self._device
            )
        return buffer[:rows]
