"""Expected value of every metadata field, from lengths, requests, table and geometry, in NumPy only.

Written from the specification (sections 2, 4 and 5); shares no code with any system under test.
Elements outside a field's live region are unspecified here as well: compare through
`fields.canonical`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.case import PHYSICAL_PAGE, PlanRule
from harness.fields import Dims, Live, fields_for, write_starts
from harness.rounds import Inputs
from harness.specification import Specification
from harness.types import Mode

Array = NDArray[np.generic]
Ints = NDArray[np.signedinteger[Any]]

SEGMENT = 256
"""Positions of one segment of the paged-MQA schedule (DeepGEMM)."""


def expected(dims: Dims, inputs: Inputs) -> dict[str, Array]:
    """Return the right value of every field that has a formula, in the leaf's dtype and shape."""
    if dims.own is not None:
        return _own(dims, inputs, dims.own)
    values = _values(dims, inputs)
    return {
        name: values[name]().astype(field.dtype).reshape(field.shape(dims))
        for name, field in fields_for(dims).items()
        if field.live is not Live.ELSEWHERE
    }


def _own(dims: Dims, inputs: Inputs, own: Specification) -> dict[str, Array]:
    values = own.expected(dims, inputs)
    return {
        name: np.asarray(values[name]).astype(field.dtype).reshape(field.shape(dims))
        for name, field in fields_for(dims).items()
        if field.live is not Live.ELSEWHERE
    }


def base_lengths(dims: Dims, inputs: Inputs) -> Ints:
    """`cache_seqlens`, int64 `[bs]`: `L`, but `L + N` in target-verify."""
    return inputs.lengths + (dims.draft_tokens if dims.mode is Mode.TARGET_VERIFY else 0)


def visible_lengths(dims: Dims, inputs: Inputs) -> Ints:
    """`dsa_seqlens_expanded`, int64 `[rows]`: what row `i*N + t` may look at.

    Decode `L`; target-verify `L + t + 1`; draft-extend `max(0, L - N + t + 1)`.
    """
    if dims.mode is Mode.DECODE:
        return inputs.lengths
    first = write_starts(dims, inputs)[:, None] + 1
    return np.maximum(first + np.arange(dims.draft_tokens)[None, :], 0).reshape(-1)


def sparse_lengths(visible: Ints, pool: int, topk: int) -> Ints:
    """`dsa_cache_seqlens`: `min(L, K)`, or whole pools up to K tokens plus the tail when P > 1."""
    if pool == 1:
        return np.minimum(visible, topk)
    return np.minimum(visible // pool * pool, topk) + visible % pool


def offsets(lengths: Ints) -> Ints:
    """`0, cumsum(lengths)`, one longer than its argument."""
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])


def schedule(context_lengths: Ints, workers: int) -> Ints:
    """Paged-MQA schedule, `[workers + 1, 2]`: (row, segment within the row) where each worker starts.

    Segments of 256 positions are dealt in row order; the last `total % workers` workers get one
    more. Workers without a segment: those at the very start begin at row 0, those past the end at
    row = rows. Source: specification, section 4.
    """
    segments = -(-context_lengths // SEGMENT)
    ends = np.cumsum(segments)
    total = int(ends[-1]) if ends.size else 0
    each, rest = divmod(total, workers)
    worker = np.arange(workers, dtype=np.int64)
    starts = worker * each + np.maximum(worker - (workers - rest), 0)
    rows = np.searchsorted(ends, starts, side="right")
    before = np.concatenate([np.zeros(1, np.int64), ends])
    entries = np.stack([rows, starts - before[rows]], axis=1)
    return np.concatenate([entries, [[len(context_lengths), 0]]])


def plan_threshold(lengths: Ints, rule: PlanRule) -> int:
    """Smallest candidate whose count of longer rows stays within its cap; the last if none does."""
    for threshold, most in rule.candidates:
        if np.count_nonzero(lengths > threshold) <= most:
            return threshold
    return rule.candidates[-1][0]


def topk_plan(lengths: Ints, rule: PlanRule) -> Ints:
    """Top-k v2 plan, `[rows + 1, 2]`: (threshold, count), then (row, length) of the longer rows."""
    threshold = plan_threshold(lengths, rule)
    rows = np.flatnonzero(lengths > threshold)
    plan = np.zeros((len(lengths) + 1, 2), np.int64)
    plan[0] = threshold, len(rows)
    plan[1 : len(rows) + 1] = np.stack([rows, lengths[rows]], axis=1)
    return plan


def _values(dims: Dims, inputs: Inputs) -> Mapping[str, Callable[[], Ints]]:
    """Name every formula; each is evaluated only for fields that exist."""
    pool, workers, rule = dims.pool, dims.num_sms, dims.plan
    base = base_lengths(dims, inputs)
    visible = visible_lengths(dims, inputs)
    sparse = sparse_lengths(visible, pool, dims.topk)
    wide = np.repeat(inputs.table[inputs.requests], dims.rows // dims.bucket, axis=0)
    real = wide[:, ::PHYSICAL_PAGE] // PHYSICAL_PAGE
    start = write_starts(dims, inputs)
    pooled_visible = visible // pool
    return {
        "cache_seqlens_int32": lambda: base,
        "cu_seqlens_q": lambda: np.arange(dims.rows + 1),
        "dsa_cu_seqlens_q": lambda: np.arange(dims.rows + 1),
        "cu_seqlens_k": lambda: offsets(base),
        "page_table_1": lambda: wide,
        "real_page_table": lambda: real,
        "dsa_cache_seqlens_int32": lambda: sparse,
        "dsa_cu_seqlens_k": lambda: offsets(sparse),
        "dsa_seqlens_expanded": lambda: visible,
        "paged_mqa_ctx_lens_2d": lambda: visible,
        "paged_mqa_schedule_metadata": lambda: schedule(visible, workers),
        "topk_v2_plan": lambda: topk_plan(visible, rule),
        "pooled_cache_seqlens_int32": lambda: pooled_visible,
        "pooled_real_page_table": lambda: real[:, ::pool] // pool,
        "pooled_paged_mqa_schedule_metadata": lambda: schedule(np.maximum(pooled_visible, 1), workers),
        "pooled_topk_v2_plan": lambda: topk_plan(pooled_visible, rule),
        "kpool_write_plan.req": lambda: inputs.requests,
        "kpool_write_plan.write_start": lambda: start,
        "kpool_write_plan.tail_logical_start": lambda: start // pool * pool,
        "kpool_write_plan.write_loc": lambda: _write_locations(dims, start, real),
        "kpool_write_plan.seqlens_per_q": lambda: visible,
        "kpool_write_plan.pool_seqlens_per_q": lambda: pooled_visible,
        "kpool_write_plan.pool_schedule_metadata": lambda: schedule(np.maximum(pooled_visible, 1), workers),
        "kpool_write_plan.pool_topk_v2_plan": lambda: topk_plan(pooled_visible, rule),
        "kpool_write_plan.effective_n_per_batch": lambda: inputs.accepted.astype(np.int64),
    }


def _write_locations(dims: Dims, start: Ints, real: Ints) -> Ints:
    """Pool slots of the candidates `start // P + c`, int64 `[bs, ceil(n / P)]`, through row `i*N`."""
    candidates = np.arange(-(-dims.written // dims.pool), dtype=np.int64)
    pools = start[:, None] // dims.pool + candidates[None, :]
    columns = np.clip(pools // PHYSICAL_PAGE * dims.pool, 0, real.shape[1] - 1)
    pages = np.take_along_axis(real[:: dims.rows // dims.bucket], columns, axis=1) // dims.pool
    return pages * PHYSICAL_PAGE + pools % PHYSICAL_PAGE
