"""Memory that the server's process fills and the writer's process empties: a ring of slots, no locks.

The server writes a slot's head and then its state; a device that copies asynchronously writes the tick last,
in the order of its stream. A slot is whole when it is filled and its tick has come. Only NumPy is needed
here.
"""

from __future__ import annotations

import mmap
import os
from dataclasses import dataclass

import msgspec
import numpy as np
from numpy.typing import NDArray

HEAD = 16
"""int64 values of a slot's head."""
FREE, FILLED = 0, 1
MIRROR = 1
"""Flag: the host was given lengths, too."""


class Shape(msgspec.Struct, frozen=True):
    """How a ring is laid out."""

    slots: int
    rows: int
    """Requests of the largest batch."""
    columns: int
    """Pages of a request; 0 where none are kept."""

    @property
    def numbers(self) -> int:
        """int64 values that hold lengths, request ids and the tick."""
        return 2 * self.rows + 1

    @property
    def small(self) -> int:
        """int32 values of accepted tokens and page table, an even number."""
        count = self.rows * (1 + self.columns)
        return count + count % 2

    @property
    def slot_bytes(self) -> int:
        """Bytes of one slot."""
        return 8 * (HEAD + self.numbers) + 4 * self.small

    @property
    def bytes(self) -> int:
        """Bytes of all slots."""
        return self.slots * self.slot_bytes


@dataclass(frozen=True)
class Head:
    """What the host knows of a call without asking the device."""

    n: int
    """Number of the call."""
    t: int
    """Microseconds since recording began."""
    capture: int
    mode: int
    """Number of the forward mode; the control pipe tells their names."""
    bucket: int
    steps: int
    live: int
    """Live rows; -1 where only request 0 marks padded ones."""
    flags: int
    accepted: int
    """Whether accepted tokens were copied."""
    tick: int
    """What the device writes last."""


FIELDS = 10


class Slot:
    """Views of one slot's memory."""

    def __init__(self, buffer: mmap.mmap, offset: int, shape: Shape) -> None:
        """Look at the slot at `offset`."""
        self.head: NDArray[np.int64] = np.frombuffer(buffer, np.int64, HEAD, offset)
        self.numbers: NDArray[np.int64] = np.frombuffer(buffer, np.int64, shape.numbers, offset + 8 * HEAD)
        small = offset + 8 * (HEAD + shape.numbers)
        self.accepted: NDArray[np.int32] = np.frombuffer(buffer, np.int32, shape.rows, small)
        table = small + 4 * shape.rows
        self.table: NDArray[np.int32] = np.frombuffer(buffer, np.int32, shape.rows * shape.columns, table)

    @property
    def filled(self) -> bool:
        """Whether the server has written its head."""
        return bool(self.head[-1] == FILLED)

    @property
    def whole(self) -> bool:
        """Whether the device's copies have come, too."""
        return bool(self.numbers[2 * int(self.head[4])] == self.head[9])

    def read_head(self) -> Head:
        """Return the head of a filled slot."""
        return Head(*(int(value) for value in self.head[:FIELDS]))

    def free(self) -> None:
        """Give the slot back to the server; what is left of it must not pass for the next call's tick."""
        self.numbers[:] = -1
        self.head[-1] = FREE


class Ring:
    """All slots, in the memory of a file descriptor."""

    def __init__(self, descriptor: int, shape: Shape) -> None:
        """Map the memory behind a descriptor that is open for reading and writing."""
        self.shape = shape
        self.buffer = mmap.mmap(descriptor, shape.bytes)
        self.slots = [Slot(self.buffer, index * shape.slot_bytes, shape) for index in range(shape.slots)]


def create(shape: Shape) -> tuple[int, Ring]:
    """Return a new ring and the descriptor of its memory, which lives as long as a process has it."""
    descriptor = os.memfd_create("replay-harness-record")
    os.ftruncate(descriptor, shape.bytes)
    return descriptor, Ring(descriptor, shape)
