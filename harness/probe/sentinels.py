"""Which value to poison a leaf with: memory-safe to read by mistake, and right nowhere in this round."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain, count

import numpy as np
from numpy.typing import NDArray

from harness.case import PHYSICAL_PAGE
from harness.fields import Dims, FieldSpec, Live
from harness.rounds import Inputs

SCHEDULE_SEGMENT = 256
"""Tokens of one segment of a paged-MQA schedule (specification, section 4)."""


def sentinel_for(
    field: FieldSpec,
    dims: Dims,
    inputs: Inputs,
    salt: int,
    *,
    expected: NDArray[np.generic],
    guard_page: int,
) -> int:
    """Return the value to poison a leaf with.

    Page tables and write locations: within the guard page, a model page of the pool that no request
    ever uses (where one guard value is too few, a page that no request uses in this round). Lengths:
    within range and not a length of this round. The rest: within the leaf's range where it has an
    unused value, else just above.

    salt: 0, 1, ...; different salts give different values. expected: the leaf's right values in this
    round, of any shape, empty if unknown; the result is none of them.
    """
    found = 0
    for candidate in _candidates(field, dims, inputs, guard_page):
        if np.any(expected == candidate) or np.any(inputs.lengths == candidate):
            continue
        if found == salt:
            return candidate
        found += 1
    raise AssertionError("candidates never end")


def _candidates(field: FieldSpec, dims: Dims, inputs: Inputs, guard_page: int) -> Iterator[int]:
    """Yield values from the safest on: down through the leaf's range, then up from its top."""
    pool = dims.pool
    guards = {
        Live.TOKENS: (guard_page + 1) * PHYSICAL_PAGE * pool - 1,
        Live.PAGES: (guard_page + 1) * pool - 1,
        Live.POOLED_PAGES: guard_page,
        Live.CANDIDATES: (guard_page + 1) * PHYSICAL_PAGE - 1,
    }
    top = guards[field.live] if field.live in guards else _top(field, dims, inputs)
    down: Iterable[int] = range(top, 0, -1)
    return iter(chain(down, count(top + 1)))


def _top(field: FieldSpec, dims: Dims, inputs: Inputs) -> int:
    """Return the highest value that is safe in a leaf without page ids; 0 is never a sentinel."""
    if field.top:
        return field.top
    name = field.name.rpartition(".")[2]
    # Three quarters of a range: beyond usual lengths, and not the full width that a round may have.
    width = max(3 * dims.width // 4, 1)
    tops = {
        "req": int(inputs.table.shape[0]) - 1,
        "effective_n_per_batch": dims.draft_tokens,
        "dsa_cache_seqlens_int32": max(3 * dims.topk // 4, 1),
        "pooled_cache_seqlens_int32": max(width // dims.pool, 1),
        "pool_seqlens_per_q": max(width // dims.pool, 1),
    }
    if field.live is Live.PLAN:
        return max(dims.rows - 1, 1)
    if "schedule" in name:
        return max(-(-dims.width // SCHEDULE_SEGMENT) - 1, 1)
    return tops.get(name, width)
