"""Comparators on NumPy arrays: exact to the bit, or floats within a tolerance. NaN never equals by default.

bf16 and fp8, which NumPy does not know, come as raw `uint16` or `uint8` bits with their dtype's name.
Nothing here broadcasts, converts or pads: dtype and shape are compared first.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import numpy as np
from numpy.typing import NDArray

from harness.errors import HarnessError

Array = NDArray[np.generic]

SOLVER_STEPS = 10_000
"""Work that NumPy may spend on proving two interleaved views disjoint; beyond it they count as shared."""

BLOCK = 1 << 16
"""Elements compared at a time."""


@dataclass(frozen=True)
class Mismatch:
    """How two arrays differ."""

    kind: str
    """`dtype`, `shape`, `strides` or `value`."""
    count: int
    """Differing elements; all of the larger array where dtype, shape or strides differ."""
    index: int
    """Flat C-order index of the first differing element, -1 where no element was compared."""
    expected: str
    """The first differing element as text, or the expected dtype, shape or strides."""
    got: str


@dataclass(frozen=True)
class Tolerance:
    """`|got - expected| <= atol + rtol * |expected|`."""

    rtol: float
    atol: float


@dataclass(frozen=True)
class _RawFormat:
    """A float format given as raw bits: 1 sign bit, then exponent and mantissa."""

    raw: str
    exponent: int = 0
    """Exponent bits; like the rest left out for bfloat16, which is the upper half of a float32."""
    mantissa: int = 0
    """Mantissa bits."""
    bias: int = 0
    specials: str = ""
    """`ieee`: the top exponent holds inf and NaN; `fn`: only all ones is NaN; `fnuz`: only -0 is NaN."""


def _raw_format(name: str) -> _RawFormat:
    formats = {
        "bfloat16": _RawFormat("uint16"),
        "float8_e4m3fn": _RawFormat("uint8", 4, 3, 7, "fn"),
        "float8_e5m2": _RawFormat("uint8", 5, 2, 15, "ieee"),
        "float8_e4m3fnuz": _RawFormat("uint8", 4, 3, 8, "fnuz"),
        "float8_e5m2fnuz": _RawFormat("uint8", 5, 2, 16, "fnuz"),
    }
    if name not in formats:
        raise HarnessError(f"raw dtype {name!r} is none of {', '.join(formats)}")
    return formats[name]


def decode(bits: Array, dtype: str) -> NDArray[np.float32]:
    """Return the values of raw float bits (`uint16` for bfloat16, `uint8` for fp8) as float32.

    Raises HarnessError for an unknown dtype name or bits of another width.
    """
    form = _raw_format(dtype)
    if bits.dtype != np.dtype(form.raw):
        raise HarnessError(f"{dtype} comes as {form.raw}, not as {bits.dtype}")
    if dtype == "bfloat16":
        return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return _fp8_table(form)[bits.astype(np.intp)]


def _fp8_table(form: _RawFormat) -> NDArray[np.float32]:
    codes = np.arange(256)
    mantissa = codes & ((1 << form.mantissa) - 1)
    exponent = (codes >> form.mantissa) & ((1 << form.exponent) - 1)
    fraction = mantissa / (1 << form.mantissa)
    subnormal = exponent == 0
    values = np.where(subnormal, fraction, 1 + fraction) * 2.0 ** (np.maximum(exponent, 1) - form.bias)
    top = exponent == (1 << form.exponent) - 1
    if form.specials == "ieee":
        values[top & (mantissa == 0)] = np.inf
        values[top & (mantissa != 0)] = np.nan
    elif form.specials == "fn":
        values[top & (mantissa == (1 << form.mantissa) - 1)] = np.nan
    values = np.where(codes >> 7, -values, values)
    if form.specials == "fnuz":
        values[0x80] = np.nan
    return values.astype(np.float32)


def compare(
    expected: Array, got: Array, *, dtype: str = "", strides: bool = False, allow_nan: bool = False
) -> Mismatch | None:
    """Compare dtype, shape, strides if asked for, then every element's bits; None if all are equal.

    dtype: name of the real format where both arrays are raw bits. `-0.0` differs from `0.0`; NaN
    differs from everything unless `allow_nan`, where NaNs with the same bits are equal. Raises
    HarnessError if the arrays share memory (the comparison would prove nothing) or hold objects.
    """
    outer = _outer(expected, got, strides=strides)
    if outer is not None:
        return outer

    def differ(wanted: Array, found: Array) -> NDArray[np.bool_]:
        differs: NDArray[np.bool_] = _bits(wanted) != _bits(found)
        if not allow_nan and (dtype or wanted.dtype.kind == "f"):
            differs |= np.isnan(_floats(wanted, dtype))  # where the bits are equal, both are NaN or none is
        return differs

    return _search(differ, expected, got, dtype)


def close(expected: Array, got: Array, tolerance: Tolerance, *, dtype: str = "") -> Mismatch | None:
    """Compare floats within a tolerance; None if all are close.

    dtype: as in `compare`. NaN is close to nothing, an infinity only to itself. Dtype and shape
    must agree. Raises HarnessError for arrays that share memory or hold no floats.
    """
    outer = _outer(expected, got, strides=False)
    if outer is not None:
        return outer
    if not dtype and expected.dtype.kind != "f":
        raise HarnessError(f"a tolerance needs floats, not {expected.dtype}; compare integers exactly")

    def differ(expected_block: Array, got_block: Array) -> NDArray[np.bool_]:
        wanted = _floats(expected_block, dtype).astype(np.float64)
        found = _floats(got_block, dtype).astype(np.float64)
        finite = np.isfinite(wanted) & np.isfinite(found)
        with np.errstate(invalid="ignore"):
            near = np.abs(found - wanted) <= tolerance.atol + tolerance.rtol * np.abs(wanted)
        return ~np.where(finite, near, wanted == found)

    return _search(differ, expected, got, dtype)


def tolerance_of(dtype: str) -> Tolerance:
    """Return how far outputs of a dtype may lie apart between devices; raises HarnessError for others."""
    match dtype:
        case "float32":
            return Tolerance(rtol=1e-4, atol=1e-5)
        case "bfloat16":
            return Tolerance(rtol=2e-2, atol=2e-2)
    raise HarnessError(f"no tolerance is agreed for {dtype}; outputs are float32 or bfloat16")


def _outer(expected: Array, got: Array, *, strides: bool) -> Mismatch | None:
    for array in (expected, got):
        if array.dtype.kind not in "biuf" or array.dtype.itemsize > 8:
            raise HarnessError(f"cannot compare {array.dtype}: only booleans, integers and floats to 64 bits")
    if _share_memory(expected, got):
        raise HarnessError("the two arrays share memory: comparing them proves nothing; copy one of them")
    pairs: list[tuple[str, object, object]] = [
        ("dtype", expected.dtype, got.dtype),
        ("shape", expected.shape, got.shape),
    ]
    if strides:
        pairs.append(("strides", expected.strides, got.strides))
    for kind, wanted, found in pairs:
        if wanted != found:
            return Mismatch(kind, max(expected.size, got.size), -1, str(wanted), str(found))
    return None


def _share_memory(one: Array, other: Array) -> bool:
    if not np.may_share_memory(one, other):
        return False
    try:
        return np.shares_memory(one, other, max_work=SOLVER_STEPS)
    except np.exceptions.TooHardError:
        return True


def _bits(array: Array) -> Array:
    return array.view(f"u{array.dtype.itemsize}")


def _floats(array: Array, dtype: str) -> NDArray[np.float64]:
    """Return the values of a float array as they are, those of raw bits decoded."""
    floats = decode(array, dtype) if dtype and array.dtype.kind != "f" else array
    return cast("NDArray[np.float64]", floats)  # of any float width: only read by float functions


def _search(
    differ: Callable[[Array, Array], NDArray[np.bool_]], expected: Array, got: Array, dtype: str
) -> Mismatch | None:
    """Count differing elements block by block, so that temporaries stay in the processor's cache."""
    wanted, found = expected.reshape(-1), got.reshape(-1)
    count, first = 0, -1
    for start in range(0, wanted.size, BLOCK):
        differs = differ(wanted[start : start + BLOCK], found[start : start + BLOCK])
        here = int(np.count_nonzero(differs))
        if here and first < 0:
            first = start + int(np.argmax(differs))
        count += here
    if not count:
        return None
    return Mismatch("value", count, first, _text(wanted[first], dtype), _text(found[first], dtype))


def _text(value: np.generic, dtype: str) -> str:
    """Return an element as text; NaNs show their bits, which may be what differs."""
    array = np.asarray(value)
    text = repr(_floats(array, dtype).item())
    return f"{text} ({_bits(array).item():#x})" if text == "nan" else text
