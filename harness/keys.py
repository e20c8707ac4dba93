"""Keys on which a programmer might skip or shorten a refresh, as data: cheap looks at a round's inputs."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping

import numpy as np
from numpy.typing import NDArray

from harness.case import PHYSICAL_PAGE
from harness.fields import Dims, row_lengths, write_starts
from harness.rounds import Inputs
from harness.types import Mode

SEGMENT = 256
"""Context tokens of one schedule segment."""

KeyOf = Callable[[Inputs, Dims], Hashable]


def _live(inputs: Inputs) -> NDArray[np.int64]:
    return inputs.lengths[: inputs.live]


def _requests(inputs: Inputs) -> NDArray[np.int64]:
    return inputs.requests[: inputs.live]


def _reach(inputs: Inputs, dims: Dims) -> NDArray[np.int64]:
    """Tokens per live request up to which its page table is defined."""
    return row_lengths(dims, inputs)[:: dims.rows // dims.bucket][: inputs.live]


def _visible(inputs: Inputs, dims: Dims) -> NDArray[np.int64]:
    """Context lengths of the live requests' rows."""
    if dims.mode is Mode.DECODE:
        return _live(inputs)
    first = write_starts(dims, inputs)[: inputs.live, None] + 1
    return np.maximum(first + np.arange(dims.draft_tokens)[None, :], 0).reshape(-1)


def _up(values: NDArray[np.int64], unit: int) -> tuple[int, ...]:
    return tuple((-(-values // unit)).tolist())


def _ids(inputs: Inputs) -> tuple[int, ...]:
    return tuple(_requests(inputs).tolist())


def _lengths(inputs: Inputs) -> tuple[int, ...]:
    return tuple(_live(inputs).tolist())


def _table(inputs: Inputs) -> bytes:
    """The request table by physical page, which is all there is to it."""
    return np.ascontiguousarray(inputs.table[:, ::PHYSICAL_PAGE]).tobytes()


def _column(inputs: Inputs, tokens: NDArray[np.int64]) -> tuple[int, ...]:
    return tuple((inputs.table[_requests(inputs), tokens] // PHYSICAL_PAGE).tolist())


def _prefixes(inputs: Inputs, dims: Dims, tokens: int) -> Hashable:
    reach = np.minimum(_reach(inputs, dims), tokens)
    return tuple(inputs.table[r, :n].tobytes() for r, n in zip(_requests(inputs), reach, strict=True))


def _first_row(inputs: Inputs, dims: Dims) -> bytes:
    return inputs.table[inputs.requests[0], : int(row_lengths(dims, inputs)[0])].tobytes()


def _unordered_pages(inputs: Inputs, dims: Dims) -> Hashable:
    """The batch, each request's first page and those that it writes, and the others in any order."""
    reach = _reach(inputs, dims)
    written = [np.maximum(reach - back, 0) for back in (1, 1 + dims.draft_tokens + dims.pool)]
    ends = [_column(inputs, at) for at in (np.zeros(inputs.live, np.int64), *written)]
    rows = zip(_requests(inputs), reach, strict=True)
    between = tuple(tuple(sorted(inputs.table[r, :n:PHYSICAL_PAGE].tolist())) for r, n in rows)
    accepted = tuple(inputs.accepted[: inputs.live].tolist())
    return _lengths(inputs), _ids(inputs), accepted, tuple(ends), between


def _threshold(inputs: Inputs, dims: Dims) -> tuple[int, int]:
    """The plan's threshold over the visible lengths, and how many rows are longer."""
    visible = _visible(inputs, dims)
    counts = [(threshold, int((visible > threshold).sum())) for threshold, _ in dims.plan.candidates]
    fits = (c for c, (_, cap) in zip(counts, dims.plan.candidates, strict=True) if c[1] <= cap)
    return next(fits, counts[-1])


KEYS: Mapping[str, KeyOf] = {
    "bucket": lambda i, d: i.bucket,
    "live_batch": lambda i, d: i.live,
    "max_length": lambda i, d: int(i.lengths[: max(i.live, 1)].max()),
    "min_length": lambda i, d: int(i.lengths[: max(i.live, 1)].min()),
    "sum_length": lambda i, d: int(_live(i).sum()),
    "first_length": lambda i, d: int(i.lengths[0]),
    "last_length": lambda i, d: int(i.lengths[max(i.live, 1) - 1]),
    "live_and_max": lambda i, d: (i.live, int(_live(i).max(initial=0))),
    "lengths": lambda i, d: _lengths(i),
    "sorted_lengths": lambda i, d: tuple(sorted(_lengths(i))),
    "requests": lambda i, d: _ids(i),
    "request_set": lambda i, d: frozenset(_ids(i)),
    "lengths_and_requests": lambda i, d: (_lengths(i), _ids(i)),
    "requests_and_sum": lambda i, d: (_ids(i), int(_live(i).sum())),
    "requests_and_pages": lambda i, d: (_ids(i), _up(_reach(i, d), PHYSICAL_PAGE)),
    "host_pages": lambda i, d: _up(_live(i), PHYSICAL_PAGE),
    "pages": lambda i, d: _up(_reach(i, d), PHYSICAL_PAGE),
    "total_pages": lambda i, d: sum(_up(_reach(i, d), PHYSICAL_PAGE)),
    "max_pages": lambda i, d: max(_up(_reach(i, d), PHYSICAL_PAGE), default=0),
    "table_width": lambda i, d: int(-(-_reach(i, d).max(initial=0) // 128)),
    "page_offset": lambda i, d: tuple((_live(i) % PHYSICAL_PAGE).tolist()),
    "pooled_lengths": lambda i, d: tuple((_live(i) // d.pool).tolist()),
    "pool_tail": lambda i, d: tuple((_live(i) % d.pool).tolist()),
    "pooled_pages": lambda i, d: _up(_reach(i, d), PHYSICAL_PAGE * d.pool),
    "host_segments": lambda i, d: _up(_live(i), SEGMENT),
    "segments": lambda i, d: _up(_visible(i, d), SEGMENT),
    "total_segments": lambda i, d: sum(_up(_visible(i, d), SEGMENT)),
    "pooled_segments": lambda i, d: _up(np.maximum(_live(i) // d.pool, 1), SEGMENT),
    "capped_lengths": lambda i, d: tuple(np.minimum(_live(i), d.topk).tolist()),
    "first_table_row": _first_row,
    "first_page_column": lambda i, d: _column(i, np.zeros(i.live, np.int64)),
    "last_page_column": lambda i, d: _column(i, _reach(i, d) - 1),
    "first_128_columns": lambda i, d: _prefixes(i, d, 128),
    "batch_and_page_set": _unordered_pages,
    "table": lambda i, d: _table(i),
    "table_and_requests": lambda i, d: (_table(i), _ids(i)),
    "rows_above_threshold": lambda i, d: _threshold(i, d)[1],
    "plan_threshold": lambda i, d: _threshold(i, d)[0],
    "accepted": lambda i, d: tuple(i.accepted[: i.live].tolist()),
}
"""What a refresh might be keyed on: name -> value for one round (live rows only, as the host sees them)."""
