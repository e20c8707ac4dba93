"""One Triton launch that writes every refreshed metadata field of a step into its captured buffers.

Nothing is staged: each program computes what it writes from the lengths, requests and table alone, so no
program waits for another. The first programs do one small job each (lengths, schedules, plans, the write
plan); the others copy live columns of page tables, several to a request. Which programs do what is decided
by `fused_plan.LaunchPlan`, whose constants are the parameters in capitals:

BS, ROWS: requests, and leaf rows (`BS * REPEAT`). REPEAT: rows per request. GROWN: `cache_seqlens` minus
`seq_lens`. FIRST: context length of a request's first row, minus `seq_lens`. START: `write_start` minus
`seq_lens`. POOL: tokens per pooled index key. TOPK: most tokens that attention looks at. SMS: workers.

Offsets of page tables are int64: a row times its stride passes 2^31 elements at widths in use. Imported
only through `fused_runtime`, which decides whether Triton compiles or interprets it.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
# Triton decides the types of a kernel's arguments at each launch.

import triton
import triton.language as tl

from harness.sut.embedded.fused_planners import PAGE, flashmla, plan_topk, schedule_rows, visible


@triton.jit
def _lengths(
    seq_lens, cache_seqlens, cu_seqlens_k, sparse, sparse_cu, expanded, pooled_lengths, per_query,
    BS: tl.constexpr, ROWS: tl.constexpr, REPEAT: tl.constexpr, GROWN: tl.constexpr, FIRST: tl.constexpr,
    POOL: tl.constexpr, TOPK: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write lengths and cumulative sums; element 0 of a sum is never written."""
    total = 0
    for start in range(0, BS, BLOCK):
        request = start + tl.arange(0, BLOCK)
        inside = request < BS
        length = tl.load(seq_lens + request, mask=inside, other=0).to(tl.int32)
        length = tl.where(inside, length + GROWN, 0)
        tl.store(cache_seqlens + request, length, mask=inside)
        tl.store(cu_seqlens_k + 1 + request, total + tl.cumsum(length, 0), mask=inside)
        total += tl.sum(length, 0)
    total = 0
    for start in range(0, ROWS, BLOCK):
        row = start + tl.arange(0, BLOCK)
        inside = row < ROWS
        length = visible(seq_lens, row, ROWS, REPEAT, FIRST)
        kept = tl.minimum(length // POOL * POOL, TOPK) + length % POOL
        tl.store(sparse + row, kept, mask=inside)
        tl.store(sparse_cu + 1 + row, total + tl.cumsum(kept, 0), mask=inside)
        total += tl.sum(kept, 0)
        if expanded is not None:
            tl.store(expanded + row, length, mask=inside)
        if per_query is not None:
            tl.store(per_query + row, length, mask=inside)
        if pooled_lengths is not None:
            tl.store(pooled_lengths + row, length // POOL, mask=inside)


@triton.jit
def _write_plan(
    seq_lens, requests, accepted, table, table_stride, width,
    request_out, write_start, tail_start, write_loc, effective,
    BS: tl.constexpr, START: tl.constexpr, POOL: tl.constexpr, LOCATIONS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write where pooled keys go: positions, and the slots of LOCATIONS pools from `write_start` on."""
    last_page = (width + (PAGE - 1)) // PAGE - 1
    for start in range(0, BS, BLOCK):
        row = start + tl.arange(0, BLOCK)
        inside = row < BS
        request = tl.load(requests + row, mask=inside, other=0)
        first = tl.load(seq_lens + row, mask=inside, other=0).to(tl.int32) + START
        # Division that rounds down, also for a position before the first token.
        pool = tl.where(first >= 0, first // POOL, -((POOL - 1 - first) // POOL))
        tl.store(request_out + row, request, mask=inside)
        tl.store(write_start + row, first, mask=inside)
        tl.store(tail_start + row, pool * POOL, mask=inside)
        for candidate in tl.static_range(LOCATIONS):
            slot = pool + candidate
            page = tl.minimum(tl.maximum((slot >> 6) * POOL, 0), last_page)
            token = tl.load(table + request * table_stride + page * PAGE, mask=inside, other=0)
            location = (token // (PAGE * POOL)).to(tl.int64) * PAGE + (slot & (PAGE - 1))
            tl.store(write_loc + row * LOCATIONS + candidate, location, mask=inside)
        if effective is not None:
            tl.store(effective + row, tl.load(accepted + row, mask=inside, other=0), mask=inside)


@triton.jit
def _tile(
    source, start, length, row, wide, wide_stride, real, real_stride, pooled, pooled_stride,
    REPEAT: tl.constexpr, POOL: tl.constexpr, TILE: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    """Copy one tile of a request's columns, and the pages that begin in it, to REPEAT rows from `row` on.

    WHOLE: every column is live. Without masks the copy moves 16 bytes at a time.
    """
    column = start + tl.arange(0, TILE)
    page = start // PAGE + tl.arange(0, TILE // PAGE)
    live = page * PAGE < length
    token = tl.load(source + column) if WHOLE else tl.load(source + column, mask=column < length, other=0)
    head = tl.load(source + page * PAGE, mask=live, other=0) // PAGE
    for copy in range(REPEAT):
        if WHOLE:
            tl.store(wide + (row + copy) * wide_stride + column, token)
        else:
            tl.store(wide + (row + copy) * wide_stride + column, token, mask=column < length)
        tl.store(real + (row + copy) * real_stride + page, head, mask=live)
        if pooled is not None:
            target = pooled + (row + copy) * pooled_stride + page // POOL
            tl.store(target, head // POOL, mask=live & (page % POOL == 0))


@triton.jit
def _tables(
    program, seq_lens, requests, table, table_stride, width,
    wide, wide_stride, real, real_stride, pooled, pooled_stride,
    REPEAT: tl.constexpr, GROWN: tl.constexpr, POOL: tl.constexpr, TILE: tl.constexpr, SHARES: tl.constexpr,
):  # fmt: skip
    """Copy every SHARES-th tile of one request's live columns; dead columns are not written."""
    index = program // SHARES
    length = tl.minimum(tl.load(seq_lens + index).to(tl.int32) + GROWN, width)
    source = table + tl.load(requests + index).to(tl.int64) * table_stride
    row = index.to(tl.int64) * REPEAT
    for start in range(program % SHARES * TILE, length, SHARES * TILE):
        if start + TILE <= length:
            _tile(
                source, start, length, row, wide, wide_stride, real, real_stride, pooled, pooled_stride,
                REPEAT, POOL, TILE, True,
            )  # fmt: skip
        else:
            _tile(
                source, start, length, row, wide, wide_stride, real, real_stride, pooled, pooled_stride,
                REPEAT, POOL, TILE, False,
            )  # fmt: skip


@triton.jit
def refresh(
    seq_lens, requests, accepted, table, table_stride, width,
    cache_seqlens, cu_seqlens_k, wide, wide_stride, real, real_stride, sparse, sparse_cu, expanded,
    schedule, plan, tiles, splits,
    pooled_lengths, pooled, pooled_stride, pooled_schedule, pooled_plan,
    request_out, write_start, tail_start, write_loc, per_query, effective,
    BS: tl.constexpr, ROWS: tl.constexpr, REPEAT: tl.constexpr, GROWN: tl.constexpr, FIRST: tl.constexpr,
    START: tl.constexpr, POOL: tl.constexpr, TOPK: tl.constexpr, SMS: tl.constexpr, LOCATIONS: tl.constexpr,
    THRESHOLDS: tl.constexpr, CAPS: tl.constexpr, CANDIDATES: tl.constexpr, SLOTS: tl.constexpr,
    SCHEDULE: tl.constexpr, POOLED_SCHEDULE: tl.constexpr, PLAN: tl.constexpr, POOLED_PLAN: tl.constexpr,
    WRITE_PLAN: tl.constexpr, FLASHMLA: tl.constexpr, TABLES: tl.constexpr,
    BLOCK: tl.constexpr, CHUNK: tl.constexpr, WORKERS: tl.constexpr, TILE: tl.constexpr, SHARES: tl.constexpr,
):  # fmt: skip
    """Refresh one bucket. Buffers that a mode, pool size or kernel lacks are None.

    SCHEDULE .. TABLES: the first program of each job; a job whose number is the next one's has none.
    """
    program = tl.program_id(0)
    if program >= TABLES:
        _tables(
            program - TABLES, seq_lens, requests, table, table_stride, width,
            wide, wide_stride, real, real_stride, pooled, pooled_stride, REPEAT, GROWN, POOL, TILE, SHARES,
        )  # fmt: skip
    elif program < SCHEDULE:
        _lengths(
            seq_lens, cache_seqlens, cu_seqlens_k, sparse, sparse_cu, expanded, pooled_lengths, per_query,
            BS, ROWS, REPEAT, GROWN, FIRST, POOL, TOPK, BLOCK,
        )  # fmt: skip
    elif program < POOLED_SCHEDULE:
        schedule_rows(
            program - SCHEDULE, seq_lens, schedule, ROWS, REPEAT, FIRST, 1, SMS, WORKERS, CHUNK, BLOCK
        )
    elif program < PLAN:
        if pooled_schedule is not None:
            schedule_rows(
                program - POOLED_SCHEDULE, seq_lens, pooled_schedule,
                ROWS, REPEAT, FIRST, POOL, SMS, WORKERS, CHUNK, BLOCK,
            )  # fmt: skip
    elif program < POOLED_PLAN:
        if plan is not None:
            plan_topk(
                seq_lens, plan, ROWS, REPEAT, FIRST, 1, THRESHOLDS, CAPS, CANDIDATES, SLOTS, BLOCK
            )  # fmt: skip
    elif program < WRITE_PLAN:
        if pooled_plan is not None:
            plan_topk(
                seq_lens, pooled_plan, ROWS, REPEAT, FIRST, POOL, THRESHOLDS, CAPS, CANDIDATES, SLOTS, BLOCK
            )  # fmt: skip
    elif program < FLASHMLA:
        if write_loc is not None:
            _write_plan(
                seq_lens, requests, accepted, table, table_stride, width, request_out, write_start,
                tail_start, write_loc, effective, BS, START, POOL, LOCATIONS, BLOCK,
            )  # fmt: skip
    elif tiles is not None:
        flashmla(
            program - FLASHMLA, seq_lens, tiles, splits,
            ROWS, REPEAT, FIRST, TOPK, SMS, WORKERS, CHUNK, BLOCK,
        )  # fmt: skip
