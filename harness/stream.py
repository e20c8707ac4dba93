"""A bucket's batches while a program is made: who is live, how long, on which pages; its rounds so far."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import cycle

import numpy as np
from numpy.typing import NDArray

from harness.case import Case
from harness.lengths import Scale
from harness.pages import PagePool
from harness.rounds import Round, length_fill
from harness.types import Mode


class Stream:
    """Rounds of one bucket. Its pages are its own, so another bucket's rounds never change them.

    `requests`, `lengths` and `accepted` are the batch that the next `emit` turns into a round; a
    move changes them, then emits.
    """

    def __init__(self, case: Case, bucket: int, prefix: str, rng: np.random.Generator) -> None:
        """Start with an empty batch; `prefix` begins the rounds' names."""
        self.scale = Scale.of(case)
        self.bucket = bucket
        self.fill = length_fill(case.mode, case.model.index_kpool, case.metadata_tokens)
        """Length of a padded row."""
        self.rounds: list[Round] = []
        self.tables: dict[str, NDArray[np.int32]] = {}
        self.requests: list[int] = []
        self.lengths: list[int] = []
        self.accepted: list[int] = []
        self.pages = PagePool(case.model, case.geometry, rng)
        self._rows = case.geometry.requests
        self._rng = rng
        self._prefix = prefix
        self._versions: dict[int, str] = {}
        self._awkward = cycle(self.scale.awkward())

    # What the batch is

    def emit(self, why: str, name: str = "") -> Round:
        """Give every live request the pages that it needs and make the batch a round of the program."""
        round_ = self._round(why, name or f"{self._prefix}{len(self.rounds):02d}")
        self.rounds.append(round_)
        return round_

    def capture(self, requests: Sequence[int], lengths: Sequence[int], accepted: Sequence[int]) -> Round:
        """Return the round whose inputs are in place during capture; the batch stays as it is."""
        now = self.requests, self.lengths, self.accepted
        self.requests, self.lengths, self.accepted = list(requests), list(lengths), list(accepted)
        round_ = self._round("in place during capture", f"{self._prefix}capture")
        self.requests, self.lengths, self.accepted = now
        return round_

    def _round(self, why: str, name: str) -> Round:
        for request, length in zip(self.requests, self.lengths, strict=True):
            self.pages.cover(request, self.scale.columns(length))
        extend = self.scale.mode is Mode.DRAFT_EXTEND
        return Round(
            name=name,
            bucket=self.bucket,
            lengths=tuple(self.lengths),
            requests=tuple(self.requests),
            table=self._table(),
            accepted=tuple(self.accepted) if extend else (),
            why=why,
        )

    def _table(self) -> str:
        version = self.pages.version
        if version not in self._versions:
            key = f"{self._prefix}t{len(self._versions):02d}"
            self._versions[version] = key
            self.tables[key] = self.pages.snapshot()
        return self._versions[version]

    @property
    def live(self) -> int:
        """Live requests."""
        return len(self.requests)

    # Drawing

    def draw(self, low: int, high: int) -> int:
        """Draw a legal length between two lengths, both included."""
        low = self.scale.clip(low)
        return int(self._rng.integers(low, max(low, self.scale.clip(high)) + 1))

    def draw_accepted(self, count: int) -> list[int]:
        """Draw accepted tokens, 1..N each."""
        return [int(value) for value in self._rng.integers(1, self.scale.draft_tokens + 1, count)]

    def draw_requests(self, count: int) -> list[int]:
        """Draw idle rows of the request table, not in ascending order where there are two or more."""
        idle = np.setdiff1d(np.arange(1, self._rows), self.requests)
        drawn = [int(value) for value in self._rng.choice(idle, count, replace=False)]
        if count > 1 and drawn == sorted(drawn):
            drawn.reverse()
        return drawn

    def idle(self) -> int:
        """Return how many rows of the request table are free for new requests."""
        return self._rows - 1 - self.live

    def next_awkward(self, most: int) -> int:
        """Return the next of the scale's awkward lengths that is at most `most`, in turn."""
        count = len(self.scale.awkward())
        return next(
            (v for v, _ in zip(self._awkward, range(count), strict=False) if v <= most), self.scale.low
        )

    # What happens to requests and pages

    def finish(self, rows: Iterable[int]) -> None:
        """Take the requests in these rows out of the batch and free their pages."""
        gone = set(rows)
        self.pages.release([request for row, request in enumerate(self.requests) if row in gone])
        keep = [row for row in range(self.live) if row not in gone]
        self.requests = [self.requests[row] for row in keep]
        self.lengths = [self.lengths[row] for row in keep]
        self.accepted = [self.accepted[row] for row in keep]

    def arrive(self, lengths: Sequence[int], requests: Sequence[int] = ()) -> None:
        """Add requests with new pages, in drawn rows of the request table unless `requests` names them."""
        self.requests += requests or self.draw_requests(len(lengths))
        self.lengths += lengths
        self.accepted += self.draw_accepted(len(lengths))

    def replace_all(self, lengths: Sequence[int], requests: Sequence[int] = ()) -> None:
        """Finish the whole batch and let another one arrive."""
        self.finish(range(self.live))
        self.arrive(lengths, requests)

    def rename(self, rows: Iterable[int]) -> None:
        """Move requests to other rows of the request table, pages and lengths unchanged."""
        chosen = list(rows)[: self.idle()]
        for row, new in zip(chosen, self.draw_requests(len(chosen)), strict=True):
            self.pages.rename(self.requests[row], new)
            self.requests[row] = new

    def move_pages(self, row: int, first: int, stop: int, share: float = 1.0) -> None:
        """Give the request in `row` other pages for a share of its columns first .. stop - 1."""
        self.pages.cover(self.requests[row], stop)
        columns = np.arange(first, stop)
        if columns.size:
            count = max(1, round(share * columns.size))
            self.pages.move(self.requests[row], self._rng.choice(columns, count, replace=False).tolist())

    def exchange_pages(self, row: int, first: int, stop: int) -> bool:
        """Exchange the pages of the columns `first` and `stop - 1` of a row; False if they are not two."""
        if stop - first < 2:
            return False
        self.pages.swap(self.requests[row], first, stop - 1)
        return True

    def grow(self) -> None:
        """Lengthen every request by the tokens that were accepted; a full request makes room for another."""
        self.accepted = self.draw_accepted(self.live)
        grown = [length + taken for length, taken in zip(self.lengths, self.accepted, strict=True)]
        full = [row for row, length in enumerate(grown) if not self.scale.legal(length)]
        self.lengths = grown
        if full:
            self.finish(full)
            self.arrive([self.next_awkward(1100) for _ in full])
