"""Goldens as tensors: every field's values stacked over all entries, each distinct value once.

A column is one field in one dtype. Its tensors, under `<table>/<field>:<dtype>/`:

- `index` int16 `[entries]`: which distinct value the entry has, -1 for none;
- `size` int32 `[distinct]`: elements of the value;
- `full` uint8 `[distinct]`: 1 where it is kept in full;
- `values` `[sum of sizes]`: the values kept in full, one after the other;
- `digest` uint8 `[digests, 32]`: SHA-256 of the others;
- `sampled` int16 `[digests]`: how many samples each of those has;
- `samples` `[sum of sampled]`: the samples.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.digest import value_digest
from harness.golden.model import Stored

Tensors = dict[str, NDArray[Any]]
Row = Mapping[str, Stored]


class Inconsistent(Exception):
    """Tensors that do not fit each other or the manifest; the store says which file."""


def encode(table: str, rows: Sequence[Row]) -> Tensors:
    """Return the tensors of a table of entries, contiguous and owning their memory."""
    tensors: Tensors = {}
    for name, dtype in sorted({(name, stored.dtype) for row in rows for name, stored in row.items()}):
        tensors.update(_encode_column(f"{table}/{name}:{dtype}/", name, dtype, rows))
    return tensors


def _encode_column(prefix: str, name: str, dtype: str, rows: Sequence[Row]) -> Tensors:
    numbers: dict[tuple[str, bool], int] = {}
    distinct: list[Stored] = []
    index = np.full(len(rows), -1, np.int16)
    for i, row in enumerate(rows):
        stored = row.get(name)
        if stored is None or stored.dtype != dtype:
            continue
        key = (stored.digest, stored.full is not None)
        if key not in numbers:
            numbers[key] = len(distinct)
            distinct.append(stored)
        index[i] = numbers[key]
    digests = [stored for stored in distinct if stored.full is None]
    raw = b"".join(bytes.fromhex(stored.digest) for stored in digests)
    return {
        prefix + "index": index,
        prefix + "size": np.array([stored.size for stored in distinct], np.int32),
        prefix + "full": np.array([stored.full is not None for stored in distinct], np.uint8),
        prefix + "values": _joined([stored.full for stored in distinct if stored.full is not None], dtype),
        prefix + "digest": np.frombuffer(raw, np.uint8).reshape(-1, 32).copy(),
        prefix + "sampled": np.array([stored.samples.size for stored in digests], np.int16),
        prefix + "samples": _joined([stored.samples for stored in digests], dtype),
    }


def _joined(parts: Sequence[NDArray[Any]], dtype: str) -> NDArray[Any]:
    joined: NDArray[Any] = np.concatenate([np.zeros(0, dtype), *parts])
    return joined


def decode(table: str, tensors: Tensors, rows: int) -> list[dict[str, Stored]]:
    """Return the entries of a table. Raises Inconsistent where lengths or dtypes do not fit."""
    decoded: list[dict[str, Stored]] = [{} for _ in range(rows)]
    prefixes = sorted({key.rpartition("/")[0] for key in tensors if key.startswith(table + "/")})
    for prefix in prefixes:
        name, _, dtype = prefix[len(table) + 1 :].rpartition(":")
        try:
            column = {part: tensors[f"{prefix}/{part}"] for part in _PARTS}
        except KeyError as error:
            raise Inconsistent(f"no tensor {error}") from error
        distinct = _decode_column(prefix, dtype, column)
        index = column["index"]
        if index.shape != (rows,):
            raise Inconsistent(f"{prefix}/index has {index.size} entries, the manifest lists {rows}")
        if index.size and not -1 <= index.min() <= index.max() < len(distinct):
            raise Inconsistent(f"{prefix}/index points beyond its {len(distinct)} values")
        for i in np.flatnonzero(index >= 0):
            if name in decoded[i]:
                raise Inconsistent(f"{prefix}: entry {i} has {name} in two dtypes")
            decoded[i][name] = distinct[index[i]]
    return decoded


_PARTS = ("index", "size", "full", "values", "digest", "sampled", "samples")


def _decode_column(prefix: str, dtype: str, column: Tensors) -> list[Stored]:
    sizes, full = column["size"], column["full"].astype(bool)
    sampled_counts = column["sampled"].astype(np.int64)
    digests = int(np.count_nonzero(~full))
    wanted = {
        "full": sizes.size, "values": int(sizes[full].sum()), "digest": 32 * digests,
        "sampled": digests, "samples": int(sampled_counts.sum()),
    }  # fmt: skip
    for part, size in wanted.items():
        if column[part].size != size:
            raise Inconsistent(f"{prefix}/{part} has {column[part].size} elements, its sizes say {size}")
    for part in ("values", "samples"):
        if column[part].dtype.name != dtype:
            raise Inconsistent(f"{prefix}/{part} is {column[part].dtype}, its name says {dtype}")
    values = iter(np.split(column["values"], np.cumsum(sizes[full])[:-1]))
    sampled = iter(np.split(column["samples"], np.cumsum(sampled_counts)[:-1]))
    hashes = iter(column["digest"].reshape(-1, 32))
    distinct = []
    for size, is_full in zip(sizes.tolist(), full.tolist(), strict=True):
        if is_full:
            value = next(values).copy()
            distinct.append(Stored(value_digest(value), size, dtype, value, value[:0].copy()))
        else:
            digest = next(hashes).tobytes().hex()
            distinct.append(Stored(digest, size, dtype, None, next(sampled).copy()))
    return distinct
