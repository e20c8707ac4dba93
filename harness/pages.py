"""Page maps: which model page each request's columns lie on, and a small allocator that changes them.

A page map is `[requests, W / page_tokens]`, int32: the page-level form of `req_to_token`
(`rounds.expand_table`). A model page holds 64 * P tokens; a finer shuffle would make pooled page
ids collide. Page 0 is reserved for padded rows, the highest page is a guard that no request ever
gets: a sentinel made of it is memory-safe and never right.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
from numpy.typing import NDArray

from harness.case import Geometry, Model

PageMap = NDArray[np.int32]

_FULL_ROWS = 4
"""Requests of full width that the pool always has room for."""
_SHORT_ROW = 8
"""Columns that it has room for in every row besides."""


def page_columns(model: Model, geometry: Geometry) -> int:
    """Columns of a page map: model pages that a request of full width has."""
    return geometry.width // model.page_tokens


def pool_pages(model: Model, geometry: Geometry) -> int:
    """Model pages of the KV pool, page 0 and the guard included.

    Valid ids are 0 and `first_page` .. `guard_page`. The pool is over-committed as a server's is, so pages
    are reused: it holds a third of what full rows would need, or a few full rows beside a few pages for each
    request where that is more, and never more than full rows need.
    """
    columns = page_columns(model, geometry)
    full = geometry.requests * columns
    least = _FULL_ROWS * columns + geometry.requests * _SHORT_ROW
    return min(full, max(full // 3, least)) + 2


def guard_page(model: Model, geometry: Geometry) -> int:
    """The highest page of the pool, which no request is ever given."""
    return geometry.first_page + pool_pages(model, geometry) - 2


class PagePool:
    """Hands out pages and keeps the page map; one per stream of rounds, used only while a program is made.

    Freed columns keep their old page ids in the map, as `req_to_token` does: they are dead, and
    their pages may belong to another request by then.
    """

    def __init__(self, model: Model, geometry: Geometry, rng: np.random.Generator) -> None:
        self._rng = rng
        self._map: PageMap = np.zeros((geometry.requests, page_columns(model, geometry)), np.int32)
        self._owned = [0] * geometry.requests
        pages = np.arange(geometry.first_page, guard_page(model, geometry), dtype=np.int32)
        self._free = rng.permutation(pages)
        self.version = 0
        """Counts the changes of the map: equal versions mean equal maps."""

    def owned(self, request: int) -> int:
        """Columns that a request owns pages for."""
        return self._owned[request]

    def cover(self, request: int, columns: int) -> None:
        """Give a request pages until it owns `columns` of them."""
        have = self._owned[request]
        if columns <= have:
            return
        self._map[request, have:columns] = self._take(columns - have)
        self._owned[request] = columns
        self.version += 1

    def release(self, requests: Collection[int]) -> None:
        """Free all pages of these requests; who gets them next is random."""
        freed = [self._map[request, : self._owned[request]] for request in requests]
        for request in requests:
            self._owned[request] = 0
        self._free = np.concatenate([self._free, *freed])
        self._rng.shuffle(self._free)

    def move(self, request: int, columns: Collection[int]) -> None:
        """Give a request other pages in some columns that it owns; the old ones become free."""
        where = np.fromiter(columns, np.int64, len(columns))
        if not where.size:
            return
        if where.max() >= self._owned[request]:
            raise ValueError(f"request {request} owns {self._owned[request]} columns, not {where.max()}")
        old = self._map[request, where]
        self._map[request, where] = self._take(where.size)
        self._free = np.concatenate([old, self._free])
        self.version += 1

    def swap(self, request: int, first: int, second: int) -> None:
        """Exchange the pages of two columns that a request owns."""
        self._map[request, [first, second]] = self._map[request, [second, first]]
        self.version += 1

    def rename(self, old: int, new: int) -> None:
        """Let `new`, which owns nothing, take over all pages of `old` in their order."""
        count = self._owned[old]
        self._map[new, :count] = self._map[old, :count]
        self._owned[old], self._owned[new] = 0, count
        self.version += 1

    def snapshot(self) -> PageMap:
        """Return a read-only copy of the map."""
        copy = self._map.copy()
        copy.flags.writeable = False
        return copy

    def _take(self, count: int) -> PageMap:
        if count > self._free.size:
            raise ValueError(f"the page pool has {self._free.size} free pages, {count} are needed")
        taken, self._free = self._free[-count:], self._free[:-count]
        return taken


def fill_dead_columns(
    pages: PageMap, live_columns: dict[int, int], valid: tuple[int, int], rng: np.random.Generator
) -> PageMap:
    """Return a map whose dead columns hold foreign pages: valid ids that the row's live part does not use.

    live_columns: per live request, the columns that its live length reaches. Rows of other requests
    are dead as a whole; row 0 stays zero. valid: the lowest page that a request may have, and the guard page.
    """
    columns = pages.shape[1]
    live = np.zeros(pages.shape[0], np.int64)
    for request, count in live_columns.items():
        live[request] = count
    dead = np.arange(columns)[None, :] >= live[:, None]
    junk = rng.integers(*valid, pages.shape, dtype=np.int32)
    for request, count in live_columns.items():
        own = pages[request, :count]
        for _ in range(columns):  # ends at the first pass that meets none of the row's own pages
            clash = np.isin(junk[request], own)
            if not clash.any():
                break
            junk[request, clash] = rng.integers(*valid, int(clash.sum()), dtype=np.int32)
    result = np.where(dead, junk, pages).astype(np.int32)
    result[0] = 0
    result.flags.writeable = False
    return result


def seeded_pages(model: Model, geometry: Geometry, columns: dict[int, int], seed: int) -> PageMap:
    """Return a map that gives each request of `columns` that many pages, drawn by `seed`, all distinct.

    Raises ValueError if the pool has too few pages.
    """
    pool = PagePool(model, geometry, np.random.default_rng([seed, 0x9A6E5]))
    for request in sorted(columns):
        pool.cover(request, columns[request])
    return pool.snapshot()
