"""Which bytes of a region a strided view or a list of elements occupies, exactly."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
import torch
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from harness.observation import LeafFact

BoolArray = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Extent:
    """The bytes of a strided view, from the start of a region or storage."""

    start: int
    """First byte."""
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    """Elements; zero-stride dimensions repeat bytes and add none."""
    itemsize: int
    elements: NDArray[np.int64] | None = None
    """Where given, only these elements: flat indices in units of `itemsize`, from `start`."""

    @staticmethod
    def of_tensor(tensor: torch.Tensor) -> Extent:
        """Return a tensor's bytes, from the start of its storage."""
        itemsize = tensor.element_size()
        start = int(tensor.storage_offset()) * itemsize
        return _strided(start, tuple(tensor.shape), tensor.stride(), itemsize)

    @classmethod
    def of_elements(cls, tensor: torch.Tensor, elements: torch.Tensor) -> Extent:
        """Return the bytes of flat storage elements (indices in units of the tensor's dtype)."""
        indices = elements.detach().reshape(-1).to(device="cpu", dtype=torch.int64).numpy().copy()
        return cls(0, (), (), tensor.element_size(), indices)

    @staticmethod
    @lru_cache(maxsize=4096)
    def of_leaf(leaf: LeafFact) -> Extent:
        """Return a leaf's bytes, from the start of its region."""
        dtype: torch.dtype = getattr(torch, leaf.dtype)
        return _strided(leaf.start, leaf.shape, leaf.stride, dtype.itemsize)

    def moved(self, offset: int) -> Extent:
        """Return the same bytes seen from `offset` bytes earlier."""
        if not offset:
            return self
        if self.elements is None:
            return _strided(self.start + offset, self.shape, self.stride, self.itemsize)
        return Extent(self.start + offset, self.shape, self.stride, self.itemsize, self.elements)

    @cached_property
    def span(self) -> tuple[int, int]:
        """First byte, and one past the last; equal if empty."""
        if self.elements is not None:
            if not self.elements.size:
                return self.start, self.start
            low, high = int(self.elements.min()), int(self.elements.max())
            return self.start + low * self.itemsize, self.start + (high + 1) * self.itemsize
        if 0 in self.shape:
            return self.start, self.start
        last = sum((size - 1) * step for size, step in zip(self.shape, self.stride, strict=True))
        return self.start, self.start + (last + 1) * self.itemsize

    @cached_property
    def identity(self) -> tuple[object, ...]:
        """Equal for two strided extents of the same geometry, whatever their order of dimensions."""
        return self.start, self.itemsize, self._dimensions(), 0 in self.shape

    @cached_property
    def dense(self) -> bool:
        """Whether every byte of the span is occupied (false where that is not plain to see)."""
        if self.elements is not None:
            return False
        run = 1
        for step, size in self._dimensions():
            if step != run:
                return False
            run *= size
        return True

    def _dimensions(self) -> tuple[tuple[int, int], ...]:
        pairs = zip(self.stride, self.shape, strict=True)
        return tuple(sorted((step, size) for step, size in pairs if size != 1 and step != 0))

    def touches(self, other: Extent) -> bool:
        """Whether the two have a byte in common; both counted from the same point."""
        (start, stop), (other_start, other_stop) = self.span, other.span
        low, high = max(start, other_start), min(stop, other_stop)
        if low >= high:
            return False
        if self.dense and other.dense:
            return True
        grain = self.grain(other)
        return bool((self.painted(low, high, grain) & other.painted(low, high, grain)).any())

    def grain(self, other: Extent) -> int:
        """Return the largest unit, bytes, in which both can be painted."""
        return math.gcd(self.itemsize, other.itemsize, abs(self.span[0] - other.span[0]))

    def painted(self, low: int, high: int, grain: int) -> BoolArray:
        """Return which units of `grain` bytes are occupied, bool, one per unit within [low, high)."""
        start, stop = self.span
        canvas = np.zeros(max(stop - start, 0) // grain, np.bool_)
        unit = self.itemsize // grain
        if self.elements is not None:
            first = (self.elements - self.elements.min()) * unit if self.elements.size else self.elements
            for part in range(unit):
                canvas[first + part] = True
        elif start < stop:
            view = as_strided(canvas, (*self.shape, unit), (*(step * unit for step in self.stride), 1))
            view[...] = True
        window = np.zeros((high - low) // grain, np.bool_)
        left, right = max(low, start), min(high, stop)
        if left < right:
            window[(left - low) // grain : (right - low) // grain] = canvas[
                (left - start) // grain : (right - start) // grain
            ]
        return window


@lru_cache(maxsize=8192)
def _strided(start: int, shape: tuple[int, ...], stride: tuple[int, ...], itemsize: int) -> Extent:
    """One object for all extents of the same geometry, so that what is worked out of it is so once."""
    return Extent(start, shape, tuple(stride), itemsize)
