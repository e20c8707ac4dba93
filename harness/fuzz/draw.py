"""Strategies for batches: any legal one, or one that looks like the batch before and differs in one way.

A refresh that is skipped or shortened shows where the batch changes and some cheap look at it does
not, so most batches are made from the one before by a single move. What is drawn are plain values.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from hypothesis import strategies as st

from harness.fuzz.space import Room
from harness.fuzz.store import exchangeable
from harness.types import Mode

Draw = st.DrawFn
PAGE_SEEDS = 3
"""Page maps that batches of one sequence lie on."""
JUNK_SEEDS = (0, 0, 0, 0, 1, 2)
"""Seeds of junk in dead columns; 0: none."""
EAGER_ROWS = (3, 300, 8_192, 8_193, 16_384)
"""Query rows of eager calls: below and above what a KV counter is first sized for (8192)."""


@dataclass(frozen=True)
class Rows:
    """A live batch, free of its bucket."""

    lengths: tuple[int, ...]
    requests: tuple[int, ...]
    accepted: tuple[int, ...]
    """As many as lengths in draft-extend, else none."""
    pages: int
    exchange: tuple[int, ...] = ()
    junk: int = 0

    @property
    def live(self) -> int:
        """Live requests."""
        return len(self.lengths)


def lengths_of(room: Room) -> st.SearchStrategy[int]:
    """Lengths next to borders more often than others; short ones are simplest."""
    anywhere = st.integers(room.scale.low, room.scale.high)
    return st.one_of(st.sampled_from(room.lengths), anywhere, st.sampled_from(room.lengths))


@st.composite
def any_rows(draw: Draw, room: Room, bucket: int) -> Rows:
    """Draw a batch of its own for a bucket; full ones are as likely as padded ones, idle ones are rare."""
    idle = (0,) if room.scale.idle else ()
    live = draw(st.sampled_from((*range(1, bucket + 1), *([bucket] * bucket), *idle)))
    length = lengths_of(room)
    lengths = tuple(draw(length) for _ in range(live))
    requests = _requests(draw, room, live, ())
    accepted, pages = _accepted(draw, room, live), draw(st.integers(0, PAGE_SEEDS))
    return Rows(lengths, requests, accepted, pages, junk=_junk(draw))


@st.composite
def next_rows(draw: Draw, room: Room, bucket: int, base: Rows) -> Rows:
    """Draw a batch for a bucket that differs from `base` by one move (or by none)."""
    base = _fitted(base, bucket)
    if not base.live:
        return draw(any_rows(room, bucket))
    move = draw(st.sampled_from(_MOVES))
    moved = move(draw, room, bucket, replace(base, junk=_junk(draw)))
    if moved.exchange and not exchangeable(moved.exchange, moved.lengths, room.scale):
        return replace(moved, exchange=())
    return moved


def capture_rows(room: Room, bucket: int) -> st.SearchStrategy[Rows]:
    """Batches in place during capture: short and unequal mostly, as servers fill them, else any."""
    low = room.scale.low
    short = st.builds(
        lambda first, seed: _ascending(room, bucket, low + first, seed), st.integers(0, 70), st.integers(0, 1)
    )
    return st.one_of(short, short, any_rows(room, bucket))


def _ascending(room: Room, bucket: int, first: int, seed: int) -> Rows:
    lengths = tuple(room.scale.clip(first + 3 * row) for row in range(bucket))
    accepted = (1,) * bucket if room.scale.mode is Mode.DRAFT_EXTEND else ()
    return Rows(lengths, tuple(range(1, bucket + 1)), accepted, seed)


def _again(draw: Draw, room: Room, bucket: int, rows: Rows) -> Rows:
    return rows


def _other_pages(draw: Draw, room: Room, bucket: int, rows: Rows) -> Rows:
    return replace(rows, pages=draw(st.integers(0, PAGE_SEEDS)), exchange=())


def _exchanged(draw: st.DrawFn, room: Room, bucket: int, rows: Rows) -> Rows:
    """Two pages of one request change places: its first, last and number of pages may all stay."""
    row = _row(draw, rows)
    columns = room.scale.columns(rows.lengths[row])
    if columns < 2:
        return _other_pages(draw, room, bucket, rows)
    first = draw(st.integers(0, columns - 2))
    return replace(rows, exchange=(row, first, draw(st.integers(first + 1, columns - 1))))


def _grown(draw: Draw, room: Room, bucket: int, rows: Rows) -> Rows:
    """Every request grows by the tokens that were accepted."""
    grown = [
        room.scale.clip(length + draw(st.integers(1, room.scale.draft_tokens))) for length in rows.lengths
    ]
    return replace(rows, lengths=tuple(grown), accepted=_accepted(draw, room, rows.live))


def _one_other(draw: Draw, room: Room, bucket: int, rows: Rows) -> Rows:
    return _with(rows, _row(draw, rows), draw(lengths_of(room)))


def _all_but_one(draw: Draw, room: Room, bucket: int, rows: Rows) -> Rows:
    """Other lengths but for one row's, the longest if it may be: a maximum that stays."""
    keep = max(range(rows.live), key=lambda row: rows.lengths[row])
    top = rows.lengths[keep]
    others = st.integers(room.scale.low, max(room.scale.low, top))
    lengths = [top if row == keep else draw(others) for row in range(rows.live)]
    return replace(rows, lengths=tuple(lengths))


def _nudged(draw: Draw, room: Room, bucket: int, rows: Rows) -> Rows:
    """One row a little longer or shorter: pages, pools or segments may stay or not."""
    row, by = _row(draw, rows), draw(st.integers(1, room.scale.pool + 2))
    sign = draw(st.sampled_from((1, -1)))
    return _with(rows, row, room.scale.clip(rows.lengths[row] + sign * by))


def _balanced(draw: Draw, room: Room, bucket: int, rows: Rows) -> Rows:
    """Two rows change and their sum stays."""
    one, other = _row(draw, rows), _row(draw, rows)
    by = draw(st.integers(1, 64))
    longer, shorter = rows.lengths[one] + by, rows.lengths[other] - by
    if one == other or not (room.scale.legal(longer) and room.scale.legal(shorter)):
        return _swapped(draw, room, bucket, rows)
    return _with(_with(rows, one, longer), other, shorter)


def _swapped(draw: Draw, room: Room, bucket: int, rows: Rows) -> Rows:
    """The same lengths, each another row's."""
    by = draw(st.integers(1, max(1, rows.live - 1)))
    return replace(rows, lengths=rows.lengths[by:] + rows.lengths[:by])


def _reordered(draw: Draw, room: Room, bucket: int, rows: Rows) -> Rows:
    """The same requests in other rows."""
    return replace(
        rows,
        lengths=rows.lengths[::-1],
        requests=rows.requests[::-1],
        accepted=rows.accepted[::-1],
    )


def _renamed(draw: Draw, room: Room, bucket: int, rows: Rows) -> Rows:
    """Other rows of the request table, lengths kept."""
    return replace(rows, requests=_requests(draw, room, rows.live, ()))


def _accepting(draw: Draw, room: Room, bucket: int, rows: Rows) -> Rows:
    return replace(rows, accepted=_accepted(draw, room, rows.live))


def _dropped(draw: Draw, room: Room, bucket: int, rows: Rows) -> Rows:
    if rows.live == 1 and not room.scale.idle:
        return _one_other(draw, room, bucket, rows)
    gone = _row(draw, rows)

    def left(values: tuple[int, ...]) -> tuple[int, ...]:
        return values[:gone] + values[gone + 1 :]

    return replace(
        rows, lengths=left(rows.lengths), requests=left(rows.requests), accepted=left(rows.accepted)
    )


def _admitted(draw: Draw, room: Room, bucket: int, rows: Rows) -> Rows:
    if rows.live >= bucket:
        return _one_other(draw, room, bucket, rows)
    return replace(
        rows,
        lengths=(*rows.lengths, draw(lengths_of(room))),
        requests=rows.requests + _requests(draw, room, 1, rows.requests),
        accepted=rows.accepted + _accepted(draw, room, 1),
    )


Move = Callable[[Draw, Room, int, Rows], Rows]
_MOVES: tuple[Move, ...] = (
    _again, _again, _grown, _nudged, _one_other, _all_but_one, _other_pages, _exchanged, _exchanged,
    _balanced, _swapped, _swapped, _reordered, _renamed, _dropped, _admitted, _accepting,
)  # fmt: skip


def _fitted(rows: Rows, bucket: int) -> Rows:
    """Cut a batch down to a bucket."""
    return replace(
        rows,
        lengths=rows.lengths[:bucket],
        requests=rows.requests[:bucket],
        accepted=rows.accepted[:bucket],
    )


def _with(rows: Rows, row: int, length: int) -> Rows:
    return replace(rows, lengths=(*rows.lengths[:row], length, *rows.lengths[row + 1 :]))


def _row(draw: Draw, rows: Rows) -> int:
    return draw(st.integers(0, rows.live - 1))


def _junk(draw: Draw) -> int:
    return draw(st.sampled_from(JUNK_SEEDS))


def _accepted(draw: Draw, room: Room, count: int) -> tuple[int, ...]:
    if room.scale.mode is not Mode.DRAFT_EXTEND:
        return ()
    return tuple(draw(st.integers(1, room.scale.draft_tokens)) for _ in range(count))


def _requests(draw: Draw, room: Room, count: int, taken: tuple[int, ...]) -> tuple[int, ...]:
    """Draw distinct request rows, none of `taken`."""
    free = [row for row in range(1, room.requests + 1) if row not in taken]
    drawn = []
    for _ in range(count):
        drawn.append(free.pop(draw(st.integers(0, len(free) - 1))))
    return tuple(drawn)
