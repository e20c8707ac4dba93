"""How far two stored values lie apart, in words: how many, the first, the largest, ulp."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from harness.compare import decode
from harness.golden.model import Array, Stored, spaced


def apart(old: Stored, new: Stored, raw: str = "") -> str:
    """Say how two values differ, as far as both are kept.

    raw: name of the real dtype of raw float bits. Sampled values are compared at their samples.
    """
    if old.dtype != new.dtype:
        return f"dtype {old.dtype} -> {new.dtype}"
    if old.size != new.size:
        return f"{old.size} elements -> {new.size} elements"
    positions = spaced(old.size, old.size)
    if old.full is None or new.full is None:
        positions = spaced(old.size, max(old.samples.size, new.samples.size))
    ours, theirs = old.at(positions), new.at(positions)
    if ours is None or theirs is None or not ours.size:
        return f"kept as digests only, which differ: {old.digest[:12]} -> {new.digest[:12]}"
    differs = np.flatnonzero(_order(ours, raw) != _order(theirs, raw))
    if not differs.size:
        return f"equal at all {positions.size} samples, another digest"
    kept = "" if positions.size == old.size else f" of {positions.size} samples"
    first = int(differs[0])
    text = (
        f"{differs.size}{kept} differ, first element {positions[first]}:"
        f" {_text(ours, first, raw)} -> {_text(theirs, first, raw)}"
    )
    return f"{text}; {_largest(ours, theirs, positions, raw)}"


def _largest(old: Array, new: Array, positions: NDArray[np.int64], raw: str) -> str:
    before, after = _values(old, raw), _values(new, raw)
    with np.errstate(invalid="ignore"):
        distance = np.abs(after - before)
    if np.isnan(distance).any():
        at = int(np.flatnonzero(np.isnan(distance))[0])
        return f"not a number at element {positions[at]}"
    at = int(np.argmax(distance))
    text = f"largest difference {distance[at]:g} at element {positions[at]}"
    return f"{text}, {ulps(old, new, raw)} ulp at most" if _is_float(old, raw) else text


def ulps(old: Array, new: Array, raw: str = "") -> int:
    """Return the largest distance of two float arrays in units in the last place of their format."""
    distances = [abs(int(a) - int(b)) for a, b in zip(_order(old, raw), _order(new, raw), strict=True)]
    return max(distances, default=0)


def _is_float(array: Array, raw: str) -> bool:
    return bool(raw) or array.dtype.kind == "f"


def _order(array: Array, raw: str) -> NDArray[np.int64]:
    """Return integers in the order of the values: neighbours of a float format differ by one."""
    if not _is_float(array, raw):
        return array.astype(np.int64)
    width = array.dtype.itemsize
    magnitude = (array.view(f"u{width}") & np.array((1 << (8 * width - 1)) - 1, f"u{width}")).astype(np.int64)
    negative = (array.view(f"i{width}")) < 0
    return np.where(negative, -magnitude, magnitude)


def _values(array: Array, raw: str) -> NDArray[np.float64]:
    return (decode(array, raw) if raw else array).astype(np.float64)


def _text(array: Array, at: int, raw: str) -> str:
    value = decode(array[at : at + 1], raw)[0] if raw else array[at]
    return f"{value.item():g}" if _is_float(array, raw) else str(value)
