"""Interpreted launches, remembered by what they read.

Triton's interpreter takes some five milliseconds a program. A kernel without atomics is a function of its
scalar arguments and of the elements that it loads: where both are as in an earlier launch, its stores are
too. A remembered launch is used only after every element it had loaded was compared, so the result is the
one that interpreting the kernel again would give.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from harness.errors import HarnessError
from harness.probe.launches import Written

Addresses = NDArray[np.uint64]


@dataclass
class Trace:
    """Memory accesses of one launch, in order."""

    loads: list[tuple[Addresses, NDArray[Any]]] = field(default_factory=list)
    """(address, value) of every element loaded."""
    stores: list[tuple[Addresses, np.dtype[Any]]] = field(default_factory=list)
    atomic: bool = False
    """Whether an atomic ran: what it stored depends on what was there."""


@dataclass(frozen=True)
class Part:
    """Elements of one argument's memory and their values."""

    argument: int
    offsets: NDArray[np.int64]
    """Bytes from the argument's first element."""
    values: NDArray[Any]

    def addresses(self, tensors: Sequence[torch.Tensor]) -> Addresses:
        """Return where these elements lie for the arguments of another launch."""
        base = np.int64(tensors[self.argument].data_ptr())
        return (self.offsets + base).view(np.uint64)

    def written(self, tensors: Sequence[torch.Tensor]) -> Written:
        """Return them as storage elements."""
        tensor = tensors[self.argument]
        itemsize = tensor.element_size()
        elements = self.offsets // itemsize + tensor.storage_offset()
        return Written(tensor, torch.from_numpy(elements))

    @property
    def nbytes(self) -> int:
        """Bytes that the part keeps."""
        return self.offsets.nbytes + self.values.nbytes


@dataclass(frozen=True)
class Effect:
    """What one launch read and wrote."""

    reads: tuple[Part, ...]
    writes: tuple[Part, ...]
    repeatable: bool
    """Whether equal reads give equal writes: no atomics, nothing loaded that the launch itself stored."""

    def holds(self, tensors: Sequence[torch.Tensor]) -> bool:
        """Return whether the arguments hold what was read."""
        return all(np.array_equal(load(p.addresses(tensors), p.values.dtype), p.values) for p in self.reads)

    def apply(self, tensors: Sequence[torch.Tensor]) -> None:
        """Store what was written."""
        for part in self.writes:
            store(part.addresses(tensors), part.values)

    @property
    def nbytes(self) -> int:
        """Bytes that the effect keeps."""
        return sum(part.nbytes for part in (*self.reads, *self.writes))


class Memory:
    """Effects of earlier launches, the oldest forgotten beyond `limit` bytes of values or `most` of them."""

    def __init__(self, limit: int = 192 << 20, most: int = 1 << 16) -> None:
        self._limit = limit
        self.most = most
        """Effects that are kept: each costs a few KB besides its values."""
        self._held = 0
        self._effects: dict[Hashable, list[Effect]] = {}
        self._order: deque[tuple[Hashable, Effect]] = deque()
        self.hits = 0
        self.misses = 0

    def find(self, key: Hashable, tensors: Sequence[torch.Tensor]) -> Effect | None:
        """Return the effect of an earlier launch of this key that read what the arguments hold now."""
        for effect in reversed(self._effects.get(key, ())):
            if effect.holds(tensors):
                self.hits += 1
                return effect
        self.misses += 1
        return None

    def keep(self, key: Hashable, effect: Effect) -> None:
        """Remember an effect if it is repeatable."""
        if not effect.repeatable or effect.nbytes > self._limit:
            return
        self._effects.setdefault(key, []).append(effect)
        self._order.append((key, effect))
        self._held += effect.nbytes
        while self._held > self._limit or len(self._order) > self.most:
            oldest, dropped = self._order.popleft()
            same = self._effects[oldest]
            del same[next(index for index, one in enumerate(same) if one is dropped)]
            if not same:
                del self._effects[oldest]
            self._held -= dropped.nbytes


def launch_key(kernel: Hashable, grid: object, arguments: Sequence[object]) -> Hashable:
    """Return what a launch depends on besides the memory that it reads.

    Tensors count by dtype and by which earlier argument's storage they share, scalars by type and value.
    """
    parts: list[Hashable] = []
    first: dict[int, tuple[int, int]] = {}
    for index, argument in enumerate(arguments):
        if isinstance(argument, torch.Tensor):
            address = argument.data_ptr()
            owner, base = first.setdefault(argument.untyped_storage().data_ptr(), (index, address))
            parts.append((argument.dtype, owner, address - base))
        else:
            parts.append((type(argument).__name__, repr(argument)))
    return kernel, repr(grid), tuple(parts)


def effect_of(kernel: str, trace: Trace, tensors: Sequence[torch.Tensor]) -> Effect:
    """Return the effect of a launch that has just run; HarnessError for a store outside its arguments."""
    stored = _by_dtype([(block, np.empty(0, dtype)) for block, dtype in trace.stores])
    loaded = _by_dtype(trace.loads)
    writes, stray = [], 0
    for dtype, (addresses, _) in stored.items():
        parts, left = _parts(addresses, load(addresses, dtype), tensors)
        writes += parts
        stray += left
    if stray:
        raise HarnessError(f"kernel {kernel} stored {stray} elements outside every tensor it was given")
    reads, unknown = [], 0
    for addresses, values in loaded.values():
        parts, left = _parts(addresses, values, tensors)
        reads += parts
        unknown += left
    own = any(
        np.isin(addresses, other).any() for addresses, _ in loaded.values() for other, _ in stored.values()
    )
    return Effect(tuple(reads), tuple(writes), not (trace.atomic or own or unknown))


def _by_dtype(
    blocks: Sequence[tuple[Addresses, NDArray[Any]]],
) -> dict[np.dtype[Any], tuple[Addresses, NDArray[Any]]]:
    """Gather accesses by dtype, each address once (the first value seen)."""
    grouped: dict[np.dtype[Any], list[tuple[Addresses, NDArray[Any]]]] = {}
    for addresses, values in blocks:
        grouped.setdefault(values.dtype, []).append((addresses, values))
    merged = {}
    for dtype, group in grouped.items():
        addresses, first = np.unique(np.concatenate([block for block, _ in group]), return_index=True)
        values = np.concatenate([values for _, values in group])
        merged[dtype] = (addresses, values[first] if values.size else values)
    return merged


def _parts(
    addresses: Addresses, values: NDArray[Any], tensors: Sequence[torch.Tensor]
) -> tuple[list[Part], int]:
    """Split elements by the argument whose storage holds them; also return how many none of them holds."""
    parts = []
    left = np.ones(addresses.size, np.bool_)
    for index, tensor in enumerate(tensors):
        storage = tensor.untyped_storage()
        start = storage.data_ptr()
        inside = left & (addresses >= start) & (addresses < start + storage.nbytes())
        if inside.any():
            offsets = addresses[inside].view(np.int64) - np.int64(tensor.data_ptr())
            parts.append(Part(index, offsets, values[inside]))
            left &= ~inside
    return parts, int(np.count_nonzero(left))


def load(addresses: Addresses, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return the elements at these addresses."""
    from triton._C.libtriton import interpreter

    everywhere = np.ones(addresses.size, np.bool_)
    return interpreter.load(addresses, everywhere, np.zeros(addresses.size, dtype), dtype)  # type: ignore[no-any-return]


def store(addresses: Addresses, values: NDArray[Any]) -> None:
    """Write elements at these addresses."""
    from triton._C.libtriton import interpreter

    interpreter.store(addresses, values, np.ones(addresses.size, np.bool_))
