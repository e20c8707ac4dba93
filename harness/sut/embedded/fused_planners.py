"""Device functions of the fused refresh that deal work out: schedules, top-k plans, FlashMLA's tiles.

Written apart from `planners`, which says the same in torch operations. What the capitals mean is said in
`fused_kernel`; BLOCK, CHUNK and WORKERS are rows looked at together (in one dimension, against workers) and
workers of one program. Like `fused_kernel` imported only through `fused_runtime`.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
# Triton decides the types of a kernel's arguments at each launch.

import triton
import triton.language as tl

PAGE = tl.constexpr(64)
"""Tokens of a physical page."""
SEGMENT = tl.constexpr(256)
"""Positions of one segment of the schedule."""
OVERHEAD = tl.constexpr(5)
"""Blocks that starting a row costs a FlashMLA worker (`planners.SPLIT_OVERHEAD`)."""


@triton.jit
def visible(seq_lens, row, ROWS: tl.constexpr, REPEAT: tl.constexpr, FIRST: tl.constexpr):
    """Return the context lengths of leaf rows `row`, int32; 0 past the last row."""
    inside = row < ROWS
    length = tl.load(seq_lens + row // REPEAT, mask=inside, other=0).to(tl.int32)
    return tl.where(inside, tl.maximum(length + FIRST + row % REPEAT, 0), 0)


@triton.jit
def _segments(
    seq_lens, row, ROWS: tl.constexpr, REPEAT: tl.constexpr, FIRST: tl.constexpr, POOL: tl.constexpr
):
    """Return how many segments each row has, int32; over pooled keys every row has one at least."""
    context = visible(seq_lens, row, ROWS, REPEAT, FIRST)
    if POOL > 1:
        context = tl.where(row < ROWS, tl.maximum(context // POOL, 1), 0)
    return (context + (SEGMENT - 1)) // SEGMENT


@triton.jit
def schedule_rows(
    part, seq_lens, out,
    ROWS: tl.constexpr, REPEAT: tl.constexpr, FIRST: tl.constexpr, POOL: tl.constexpr, SMS: tl.constexpr,
    WORKERS: tl.constexpr, CHUNK: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write WORKERS entries of a paged-MQA schedule: (row, segment within it) where a worker starts.

    The last `total % SMS` workers take one segment more; entry SMS ends the list.
    """
    total = 0
    for start in range(0, ROWS, BLOCK):
        row = start + tl.arange(0, BLOCK)
        total += tl.sum(_segments(seq_lens, row, ROWS, REPEAT, FIRST, POOL), 0)
    worker = part * WORKERS + tl.arange(0, WORKERS)
    begin = worker * (total // SMS) + tl.maximum(worker - (SMS - total % SMS), 0)
    found = tl.zeros([WORKERS], tl.int32)
    before = tl.zeros([WORKERS], tl.int32)
    done = 0
    for start in range(0, ROWS, CHUNK):
        row = start + tl.arange(0, CHUNK)
        segments = _segments(seq_lens, row, ROWS, REPEAT, FIRST, POOL)
        ends = done + tl.cumsum(segments, 0)
        past = (ends[None, :] <= begin[:, None]) & (row < ROWS)[None, :]
        found += tl.sum(past.to(tl.int32), 1)
        before = tl.maximum(before, tl.max(tl.where(past, ends[None, :], 0), 1))
        done += tl.sum(segments, 0)
    tl.store(out + worker * 2, found, mask=worker <= SMS)
    tl.store(out + worker * 2 + 1, begin - before, mask=worker <= SMS)


@triton.jit
def plan_topk(
    seq_lens, out, ROWS: tl.constexpr, REPEAT: tl.constexpr, FIRST: tl.constexpr, POOL: tl.constexpr,
    THRESHOLDS: tl.constexpr, CAPS: tl.constexpr, CANDIDATES: tl.constexpr, SLOTS: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Write a top-k plan: (threshold, count), then (row, length) of the rows longer than the threshold.

    The threshold is the smallest candidate that no more rows exceed than its cap, else the last.
    """
    slot = tl.arange(0, SLOTS)
    threshold = tl.full([SLOTS], THRESHOLDS[CANDIDATES - 1], tl.int32)
    cap = tl.full([SLOTS], CAPS[CANDIDATES - 1], tl.int32)
    for candidate in tl.static_range(CANDIDATES - 1):
        threshold = tl.where(slot == candidate, THRESHOLDS[candidate], threshold)
        cap = tl.where(slot == candidate, CAPS[candidate], cap)
    longer = tl.zeros([SLOTS], tl.int32)
    for start in range(0, ROWS, BLOCK):
        row = start + tl.arange(0, BLOCK)
        length = visible(seq_lens, row, ROWS, REPEAT, FIRST) // POOL
        longer += tl.sum((length[None, :] > threshold[:, None]).to(tl.int32), 1)
    chosen_threshold = tl.min(tl.where(longer <= cap, threshold, THRESHOLDS[CANDIDATES - 1]), 0)
    count = 0
    for start in range(0, ROWS, BLOCK):
        row = start + tl.arange(0, BLOCK)
        length = visible(seq_lens, row, ROWS, REPEAT, FIRST) // POOL
        chosen = (length > chosen_threshold) & (row < ROWS)
        position = count + tl.cumsum(chosen.to(tl.int32), 0)
        tl.store(out + position * 2, row, mask=chosen)
        tl.store(out + position * 2 + 1, length, mask=chosen)
        count += tl.sum(chosen.to(tl.int32), 0)
    tl.store(out, chosen_threshold)
    tl.store(out + 1, count)


@triton.jit
def _blocks(seq_lens, row, ROWS: tl.constexpr, REPEAT: tl.constexpr, FIRST: tl.constexpr, TOPK: tl.constexpr):
    """Return what each row costs FlashMLA's workers, int32 blocks; 0 past the last row."""
    sparse = tl.minimum(visible(seq_lens, row, ROWS, REPEAT, FIRST), TOPK)
    return tl.where(row < ROWS, (sparse + (PAGE - 1)) // PAGE + OVERHEAD, 0)


@triton.jit
def flashmla(
    part, seq_lens, tiles, splits,
    ROWS: tl.constexpr, REPEAT: tl.constexpr, FIRST: tl.constexpr, TOPK: tl.constexpr, SMS: tl.constexpr,
    WORKERS: tl.constexpr, CHUNK: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write WORKERS rows of the FlashMLA stand-in's tile plan (`Planners.flashmla`); part 0 its splits."""
    total = 0
    for start in range(0, ROWS, BLOCK):
        total += tl.sum(_blocks(seq_lens, start + tl.arange(0, BLOCK), ROWS, REPEAT, FIRST, TOPK), 0)
    share = (total + (SMS - 1)) // SMS
    worker = part * WORKERS + tl.arange(0, WORKERS)
    begin = tl.minimum(worker * share, total)
    end = tl.minimum((worker + 1) * share, total)
    first = tl.zeros([WORKERS], tl.int32)
    last = tl.zeros([WORKERS], tl.int32)
    done = 0
    for start in range(0, ROWS, CHUNK):
        row = start + tl.arange(0, CHUNK)
        blocks = _blocks(seq_lens, row, ROWS, REPEAT, FIRST, TOPK)
        ends = done + tl.cumsum(blocks, 0)
        inside = (row < ROWS)[None, :]
        first += tl.sum(((ends[None, :] <= begin[:, None]) & inside).to(tl.int32), 1)
        last += tl.sum(((ends[None, :] < end[:, None]) & inside).to(tl.int32), 1)
        done += tl.sum(blocks, 0)
    first = tl.minimum(first, ROWS - 1)
    last = tl.minimum(last, ROWS - 1)
    first_begin = tl.zeros([WORKERS], tl.int32)
    last_begin = tl.zeros([WORKERS], tl.int32)
    for start in range(0, ROWS, CHUNK):
        row = start + tl.arange(0, CHUNK)
        blocks = _blocks(seq_lens, row, ROWS, REPEAT, FIRST, TOPK)[None, :]
        first_begin += tl.sum(tl.where(row[None, :] < first[:, None], blocks, 0), 1)
        last_begin += tl.sum(tl.where(row[None, :] < last[:, None], blocks, 0), 1)
    inside = worker < SMS
    tl.store(tiles + worker * 8, first, mask=inside)
    tl.store(tiles + worker * 8 + 1, begin - first_begin, mask=inside)
    tl.store(tiles + worker * 8 + 2, last, mask=inside)
    tl.store(tiles + worker * 8 + 3, end - last_begin, mask=inside)
    tl.store(tiles + worker * 8 + 4, worker - first_begin // share, mask=inside)
    for unused in tl.static_range(5, 8):
        tl.store(tiles + worker * 8 + unused, tl.zeros([WORKERS], tl.int32), mask=inside)
    if part == 0:
        tl.store(splits, 0)
        done = 0
        counted = 0
        for start in range(0, ROWS, BLOCK):
            row = start + tl.arange(0, BLOCK)
            blocks = _blocks(seq_lens, row, ROWS, REPEAT, FIRST, TOPK)
            ends = done + tl.cumsum(blocks, 0)
            count = tl.where(row < ROWS, (ends - 1) // share - (ends - blocks) // share + 1, 0)
            tl.store(splits + 1 + row, counted + tl.cumsum(count, 0), mask=row < ROWS)
            done += tl.sum(blocks, 0)
            counted += tl.sum(count, 0)
