"""Lengths worth trying: legal bounds per mode, awkward values, and small steps that cross a border.

Scalar arithmetic of one request, as the specification's section 2 gives it per mode; used to place
lengths, never to judge a system.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from itertools import combinations

from harness.case import PHYSICAL_PAGE, Case
from harness.specification import specification_of
from harness.types import Mode

SEGMENT = 256
"""Context tokens (or pooled keys) of one schedule segment; specification, section 4."""


@dataclass(frozen=True)
class Scale:
    """What bounds and shapes one request's length."""

    mode: Mode
    pool: int
    """`P`."""
    draft_tokens: int
    """`N`."""
    topk: int
    """`K`, tokens."""
    width: int
    """`W`, tokens."""
    workers: int
    """Workers of the paged-MQA schedule."""
    thresholds: tuple[tuple[int, int], ...]
    """The plan's (threshold, cap) candidates, ascending."""
    ahead: int = 0
    """Tokens by which a request may grow within a round."""
    idle: bool = True
    """Whether a batch without any request is run."""

    @classmethod
    def of(cls, case: Case) -> Scale:
        """Return the scale of a case's requests."""
        geometry, own = case.geometry, specification_of(case.sut)
        return cls(
            mode=case.mode,
            pool=case.model.index_kpool,
            draft_tokens=case.metadata_tokens,
            topk=geometry.topk,
            width=geometry.width,
            workers=geometry.num_sms,
            thresholds=geometry.plan.candidates,
            ahead=0 if own is None else own.ahead(case.model),
            idle=own is None or own.idle,
        )

    @property
    def page_tokens(self) -> int:
        """Tokens of a model page."""
        return PHYSICAL_PAGE * self.pool

    @property
    def low(self) -> int:
        """Shortest legal length: draft-extend already holds the N draft tokens."""
        return self.draft_tokens if self.mode is Mode.DRAFT_EXTEND else 1

    @property
    def high(self) -> int:
        """Longest legal length."""
        return self.width - {Mode.DECODE: 1, Mode.TARGET_VERIFY: self.draft_tokens}.get(self.mode, 0)

    @property
    def near_full(self) -> int:
        """A length close to W that is legal in every mode and may still grow a little."""
        return self.width - self.draft_tokens - self.pool - 3

    @property
    def rows_per_request(self) -> int:
        """Rows of expanded leaves per request."""
        return 1 if self.mode is Mode.DECODE else self.draft_tokens

    @property
    def unit(self) -> int:
        """Tokens between segment borders of the pooled schedule; of the plain one where W is too small."""
        return SEGMENT * self.pool if self.width >= 4 * SEGMENT * self.pool else SEGMENT

    @property
    def tall(self) -> int:
        """A segment border at about 3/4 of W, above the thresholds that come into force beside it.

        Of pooled keys, too, where so many of them fit.
        """
        most, pooled = 3 * self.width // 4, SEGMENT * self.pool
        return most // pooled * pooled or most // self.unit * self.unit

    @property
    def stride(self) -> int:
        """A jump that keeps every offset within pages and pools, and passes K."""
        return -(-self.topk // self.unit) * self.unit

    def live(self, length: int) -> int:
        """Tokens whose table columns are defined."""
        live = length + (self.draft_tokens if self.mode is Mode.TARGET_VERIFY else self.ahead)
        return min(live, self.width) if self.ahead else live

    def columns(self, length: int) -> int:
        """Model pages that the live tokens reach."""
        return -(-self.live(length) // self.page_tokens)

    def write_start(self, length: int) -> int:
        """First token position that the forward writes."""
        offset = {Mode.DECODE: -1, Mode.DRAFT_EXTEND: -self.draft_tokens}
        return length + offset.get(self.mode, 0)

    def visible(self, length: int) -> tuple[int, ...]:
        """`dsa_seqlens_expanded` of the request's rows."""
        if self.mode is Mode.DECODE:
            return (length,)
        start = self.write_start(length)
        return tuple(max(0, start + t + 1) for t in range(self.draft_tokens))

    def legal(self, length: int) -> bool:
        """Whether a request of this length may occur."""
        return self.low <= length <= self.high

    def clip(self, length: int) -> int:
        """Return the nearest legal length."""
        return min(max(length, self.low), self.high)

    def awkward(self) -> tuple[int, ...]:
        """Lengths that have hurt somebody: next to page, segment, pool and top-k borders, and near W.

        Specification, section 6; those of the large geometry appear where they fit.
        """
        top = self.topk
        borders = (65, 1028, 63, 257, 1023, top + 1, 64, 255, 1024, top - 1, top + 3, 256, top)
        values = (self.near_full, 65539, 65530, *borders)
        return tuple(value for value in dict.fromkeys(values) if self.legal(value))

    def marks(self, length: int) -> tuple[Hashable, ...]:
        """What refreshed fields hold of a request besides the length itself: one entry per kind of field."""
        rows = self.visible(length)
        pooled = [row // self.pool for row in rows]
        return (
            tuple(-(-row // SEGMENT) for row in rows),
            tuple(-(-max(row, 1) // SEGMENT) for row in pooled) if self.pool > 1 else (),
            tuple(pooled),
            tuple(min(row // self.pool * self.pool, self.topk) + row % self.pool for row in rows),
            self.write_start(length) // self.pool,
        )


_WANTED = 100
SEGMENTS, POOLED_SEGMENTS = 0, 1
"""Entries of `Scale.marks` that decide the schedules."""


@dataclass(frozen=True)
class Steps:
    """Three lengths next to a border, made to deceive.

    before -> after keeps L // P where P > 1 (and the page counts, except in decode); after -> last
    keeps the page counts and every row's segments. `last` is `after` where no such length is near.
    """

    before: int
    after: int
    last: int


def border_steps(scale: Scale, border: int, wanted: int, *, twice: bool) -> list[Steps]:
    """Return the steps next to a border that change the `wanted` mark as often as possible, best first.

    The better ones change more kinds of fields in the first step, with `twice` in both.
    """
    lengths = range(max(scale.low, border - 12), min(scale.high, border + 12) + 1)
    marks = {length: scale.marks(length) for length in lengths}

    def gain(before: int, after: int) -> int:
        changed = sum(x != y for x, y in zip(marks[before], marks[after], strict=True))
        return changed + _WANTED * (marks[before][wanted] != marks[after][wanted])

    pages = {
        length: (-(-length // PHYSICAL_PAGE), -(-scale.live(length) // PHYSICAL_PAGE)) for length in lengths
    }

    def keeps_pools(before: int, after: int) -> bool:
        same_pages = scale.mode is Mode.DECODE or pages[before] == pages[after]
        same_pools = before // scale.pool == after // scale.pool if scale.pool > 1 else after == before + 1
        return same_pools and same_pages

    def keeps_segments(before: int, after: int) -> bool:
        return marks[before][SEGMENTS] == marks[after][SEGMENTS] and pages[before] == pages[after]

    found: dict[Steps, int] = {}
    for a, b in combinations(lengths, 2):
        if keeps_pools(a, b):
            second = {c: gain(b, c) for c in lengths if c > b and keeps_segments(b, c)} or {b: 0}
            best = max(second.values())
            for c, score in second.items():
                if score == best:
                    found[Steps(a, b, c)] = gain(a, b) + (best if twice else 0)
    top = max(found.values()) // _WANTED
    best_first = sorted(found, key=lambda steps: -found[steps])
    return [steps for steps in best_first if found[steps] // _WANTED == top]
