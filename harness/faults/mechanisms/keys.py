"""Keys on which a refresh may be skipped: what a programmer takes for all that the result depends on."""

from __future__ import annotations

from collections.abc import Callable, Hashable

import numpy as np
from numpy.typing import NDArray

from harness.rounds import Inputs

Key = Callable[[Inputs], Hashable]
RowKey = Callable[[Inputs, int], Hashable]
"""The same of one live row."""


def _live(inputs: Inputs) -> NDArray[np.int64]:
    return inputs.lengths[: inputs.live]


def bucket(inputs: Inputs) -> Hashable:
    """The bucket alone: derived once per graph."""
    return inputs.bucket


def live_batch(inputs: Inputs) -> Hashable:
    """The number of live requests."""
    return inputs.live


def longest(inputs: Inputs) -> Hashable:
    """The largest length."""
    return int(_live(inputs).max(initial=0))


def total(inputs: Inputs) -> Hashable:
    """The sum of the lengths."""
    return int(_live(inputs).sum())


def lengths(inputs: Inputs) -> Hashable:
    """All lengths, padded rows included."""
    return tuple(inputs.lengths.tolist())


def lengths_in_any_order(inputs: Inputs) -> Hashable:
    """The lengths as a multiset."""
    return tuple(sorted(inputs.lengths.tolist()))


def requests(inputs: Inputs) -> Hashable:
    """The request ids in their rows."""
    return tuple(inputs.requests.tolist())


def request_set(inputs: Inputs) -> Hashable:
    """The request ids in any rows."""
    return frozenset(inputs.requests.tolist())


def lengths_and_requests(inputs: Inputs) -> Hashable:
    """Lengths and request ids: all but the request table."""
    return lengths(inputs), requests(inputs)


def pages(unit: int) -> Key:
    """Return the key that counts each row's units of so many tokens, rounded up."""

    def key(inputs: Inputs) -> Hashable:
        return tuple((-(-inputs.lengths // unit)).tolist())

    return key


def all_pages(inputs: Inputs) -> Hashable:
    """How many pages of 64 all requests have together."""
    return int((-(-_live(inputs) // 64)).sum())


def first_pages(inputs: Inputs) -> Hashable:
    """Each live request's first token location."""
    return tuple(inputs.table[inputs.requests[: inputs.live], 0].tolist())


def request_of_first_row(inputs: Inputs) -> Hashable:
    """The first row's request id."""
    return int(inputs.requests[0])


def row_request(inputs: Inputs, row: int) -> Hashable:
    """The row's request id."""
    return int(inputs.requests[row])


def row_ends(inputs: Inputs, row: int) -> Hashable:
    """The row's request id and length, and its first and last page."""
    request, length = int(inputs.requests[row]), int(inputs.lengths[row])
    return (
        request,
        length,
        int(inputs.table[request, 0]),
        int(inputs.table[request, max(length - 1, 0)] // 64),
    )
