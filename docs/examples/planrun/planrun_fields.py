"""What `plan` has to leave in the wrapper's buffers, in NumPy, sharing no code with it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from harness.fields import Dims, FieldSpec, Live
from harness.rounds import Inputs
from harness.specification import Specification
from harness.types import Drill, Kernel, Mode, Path

Ints = NDArray[np.int64]


def pages_of(inputs: Inputs) -> Ints:
    """Pages of each request, a padded one included (one token)."""
    return np.ceil(inputs.lengths / 64).astype(np.int64)


def tiles_of(dims: Dims, inputs: Inputs) -> tuple[int, Ints]:
    """Pages of a tile, the smallest power of two whose tiles fit the grid, and tiles of each request."""
    powers = (1 << power for power in range(32))
    cuts = ((pages, np.ceil(pages_of(inputs) / pages).astype(np.int64)) for pages in powers)
    return next((pages, tiles) for pages, tiles in cuts if tiles.sum() <= 2 * dims.bucket)


def ends(counts: Ints) -> Ints:
    """`0, cumsum(counts)`."""
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])


def first_pages(dims: Dims, inputs: Inputs) -> NDArray[np.bool_]:
    """Defined page ids: as many as the batch has pages."""
    return np.arange(dims.bucket * dims.pages) < int(pages_of(inputs).sum())


def first_tiles(dims: Dims, inputs: Inputs) -> NDArray[np.bool_]:
    """Defined blocks of the grid: as many as there are tiles."""
    return np.arange(2 * dims.bucket) < int(tiles_of(dims, inputs)[1].sum())


def expected(dims: Dims, inputs: Inputs) -> dict[str, NDArray[np.generic]]:
    """Return the right values of one round."""
    pages, (chunk, tiles) = pages_of(inputs), tiles_of(dims, inputs)
    rows = zip(inputs.requests, pages, strict=True)
    ids = np.concatenate([inputs.table[request, : 64 * count : 64] // 64 for request, count in rows])
    blocks = [(request, tile) for request, count in enumerate(tiles) for tile in range(count)]
    grid = np.zeros((2 * dims.bucket, 2), np.int64)
    grid[: len(blocks)] = blocks
    return {
        "paged_kv_indptr": ends(pages),
        "paged_kv_indices": np.resize(ids, dims.bucket * dims.pages),
        "paged_kv_last_page_len": (inputs.lengths - 1) % 64 + 1,
        "request_indices": grid[:, 0],
        "kv_tile_indices": grid[:, 1],
        "o_indptr": ends(tiles),
        "kv_chunk_size": np.array([64 * chunk]),
    }


FIELDS = (
    FieldSpec("paged_kv_indptr", "int32", lambda d: (d.bucket + 1,)),
    FieldSpec(
        "paged_kv_indices", "int32", lambda d: (d.bucket * d.pages,), live=Live.MASKED, mask=first_pages
    ),
    FieldSpec("paged_kv_last_page_len", "int32", lambda d: (d.bucket,)),
    FieldSpec("request_indices", "int32", lambda d: (2 * d.bucket,), live=Live.MASKED, mask=first_tiles),
    FieldSpec("kv_tile_indices", "int32", lambda d: (2 * d.bucket,), live=Live.MASKED, mask=first_tiles),
    FieldSpec("o_indptr", "int32", lambda d: (d.bucket + 1,), derived=True),
    FieldSpec("kv_chunk_size", "int32", lambda d: (1,), derived=True),
)
SPECIFICATION = Specification(
    fields=FIELDS,
    expected=expected,
    axes={
        "path": (Path.RELEASED, Path.SHARED),
        "mode": (Mode.DECODE,),
        "fusion": (False,),
        "kernel": (Kernel.FA3,),
        "drill": tuple(drill for drill in Drill if drill is not Drill.OVERSIZE),
    },
)
