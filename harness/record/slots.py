"""The server's side of the ring: copies of a refresh's inputs, queued without waiting for anything.

On a GPU the ring's memory is page-locked and the copies run on the server's own stream. Nothing here asks the
device, and no other thread of the server's process is involved.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from harness.errors import HarnessError
from harness.record.ring import FILLED, FREE, Ring, Shape

RING_BYTES = 64 << 20
FEWEST, MOST = 4, 256
"""Slots of a ring."""
TICKS = 1 << 12


def shape_for(rows: int, columns: int) -> Shape:
    """Return a ring for batches of so many requests, within `RING_BYTES` where a few slots fit into it."""
    one = Shape(1, rows, columns)
    return Shape(min(max(RING_BYTES // one.slot_bytes, FEWEST), MOST), rows, columns)


class _Staged(NamedTuple):
    """Buffers on the device."""

    numbers: torch.Tensor
    table: torch.Tensor


class Feed:
    """Fills the slots of one ring, one after the other."""

    def __init__(self, ring: Ring, view: torch.Tensor) -> None:
        """Copy from `view`, int32 `[requests, columns]`: the request table at the first token of each page.

        Raises HarnessError where the ring cannot be page-locked for a GPU.
        """
        self.rows = ring.shape.rows
        self._columns = ring.shape.columns
        self._view = view
        self._slots = ring.slots
        self._heads = [slot.head for slot in ring.slots]
        self._numbers = [torch.from_numpy(slot.numbers) for slot in ring.slots]
        self._accepted = [torch.from_numpy(slot.accepted) for slot in ring.slots]
        self._tables = [torch.from_numpy(slot.table) for slot in ring.slots]
        self._next = 0
        self._cuda = view.device.type == "cuda"
        self._views: dict[int, list[tuple[torch.Tensor, torch.Tensor]]] = {}
        self._staging: dict[tuple[int, int], _Staged] = {}
        if not self._cuda:
            self._host: NDArray[np.int32] = view.numpy()
        else:
            _lock(ring)
            self._device_index = view.device.index or 0
            self._ticks = [one.reshape(1) for one in torch.arange(1, TICKS + 1, device=view.device)]

    def put(
        self,
        head: tuple[int, ...],
        lengths: torch.Tensor,
        requests: torch.Tensor,
        accepted: torch.Tensor | None,
    ) -> bool:
        """Queue the copies of one call; False where no slot is free. `head`: `ring.Head` without its tick."""
        index = self._next
        target = self._heads[index]
        if target[-1] != FREE:
            return False
        self._next = (index + 1) % len(self._heads)
        tick = head[0] % TICKS
        if self._cuda:
            self._queue(index, lengths, requests, accepted, tick)
        else:
            self._copy(index, lengths, requests, accepted, tick)
        target[: len(head)] = head
        target[len(head)] = tick + 1
        target[-1] = FILLED
        return True

    def _queue(
        self,
        index: int,
        lengths: torch.Tensor,
        requests: torch.Tensor,
        accepted: torch.Tensor | None,
        tick: int,
    ) -> None:
        """Queue a GPU's copies on the current stream, the tick last."""
        rows = lengths.shape[0]
        views = self._views.get(rows) or self._make_views(rows)
        stream = torch._C._cuda_getCurrentRawStream(self._device_index)
        staged = self._staging.get((stream, rows)) or self._stage(stream, rows)
        numbers, table = views[index]
        if accepted is not None:
            self._accepted[index][:rows].copy_(accepted[:rows], non_blocking=True)
        if self._columns:
            torch.index_select(self._view, 0, requests, out=staged.table)
            table.copy_(staged.table, non_blocking=True)
        torch.cat((lengths, requests, self._ticks[tick]), out=staged.numbers)
        numbers.copy_(staged.numbers, non_blocking=True)

    def _copy(
        self,
        index: int,
        lengths: torch.Tensor,
        requests: torch.Tensor,
        accepted: torch.Tensor | None,
        tick: int,
    ) -> None:
        """Copy on a CPU: done when this returns."""
        slot, rows = self._slots[index], lengths.shape[0]
        ids = requests.numpy()
        slot.numbers[:rows] = lengths.numpy()
        slot.numbers[rows : 2 * rows] = ids
        if accepted is not None:
            slot.accepted[:rows] = accepted[:rows].numpy()
        if self._columns:
            table = slot.table[: rows * self._columns].reshape(rows, self._columns)
            table[:] = self._host[ids]
        slot.numbers[2 * rows] = tick + 1

    def _make_views(self, rows: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Return every slot's tensors for batches of so many requests: made once, at the bucket's capture."""
        columns = self._columns
        made = [
            (numbers[: 2 * rows + 1], table[: rows * columns].view(rows, columns))
            for numbers, table in zip(self._numbers, self._tables, strict=True)
        ]
        self._views[rows] = made
        return made

    def _stage(self, stream: int, rows: int) -> _Staged:
        """Return a stream's buffers on the device: its order keeps one call's copies from the next one's."""
        device = self._view.device
        made = self._staging[stream, rows] = _Staged(
            torch.empty(2 * rows + 1, dtype=torch.int64, device=device),
            torch.empty((rows, self._columns), dtype=torch.int32, device=device),
        )
        return made


def _lock(ring: Ring) -> None:
    """Page-lock the ring's memory, so that copies into it wait for nobody."""
    address = np.frombuffer(ring.buffer, np.uint8).ctypes.data
    runtime: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    status = int(runtime.cudaHostRegister(address, ring.shape.bytes, 0))
    if status != 0:
        raise HarnessError(f"the ring's memory cannot be page-locked: cudaHostRegister returned {status}")
