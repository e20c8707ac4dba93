"""Rounds that deceive lazy refreshes: neighbours that agree in some key and differ in a field.

A refresh that is skipped, or shortened, while some cheap key stays equal (`keys.KEYS`) passes
on ordinary traffic, where everything changes together. Each move here changes little: pages under
unchanged lengths, lengths under unchanged sums, lengths under unchanged pages, and so on. That no
key is left out is proved by a test that evaluates all keys on the finished programs.
"""

from __future__ import annotations

from harness.case import PHYSICAL_PAGE
from harness.lengths import SEGMENT, Scale
from harness.opening import MANY, Opening, Roles, schedules
from harness.stream import Stream
from harness.types import Mode


def deceive_batch(stream: Stream, opening: Opening) -> None:
    """Run through the moves with two or more live requests; the stream holds its opening batch."""
    scale, roles, live = stream.scale, opening.roles, opening.roles.live
    first = _first_free_column(scale)
    stream.emit("opening: unequal lengths, requests in no order")

    for row in range(1, live):
        stream.move_pages(row, first, _last(stream, row), 0.4)
    stream.rename(range(live))
    stream.emit("other request rows; inner pages moved, first and last pages kept")

    for row in range(1, live):
        whole = row == (roles.tall if live > 2 else 1)
        stream.move_pages(row, first, scale.columns(stream.lengths[row]), 1.0 if whole else 0.5)
    stream.emit("same lengths and requests, pages moved under them")

    roles = roles.swapped()
    stream.lengths = roles.place(stream.lengths, opening.small.before, opening.tall.before)
    stream.emit("two lengths swapped: same sum, largest, smallest and counts")

    stream.lengths = roles.place(stream.lengths, opening.small.after, opening.tall.after)
    _accept_otherwise(stream)
    stream.emit("a token more: 256 -> 257 where the pools stay")

    stream.lengths[roles.tall] = opening.tall.last
    if live >= MANY:
        stream.lengths[roles.topk] += 6
    if scale.pool == 1:  # pages in which sparse lengths are still below K
        stream.lengths[roles.small] = opening.small.last
    stream.emit("longer within the same pages and segments")

    _jump(stream, roles.small, scale.stride)
    if live >= MANY:
        _jump(stream, roles.tall, -2 * scale.page_tokens)
    stream.rename(range(1, live, 2))
    _accept_otherwise(stream)
    stream.emit("jumps by whole pages, the last pages taken along")

    _exchange_inner(stream)

    early = live < MANY or scale.mode is Mode.DRAFT_EXTEND
    if early:
        _settle(stream, roles)
    _beyond_topk(stream, roles)
    if not early:
        _settle(stream, roles)
    _accept_only(stream)


def deceive_single(stream: Stream, opening: Opening) -> None:
    """Run through the moves that one live request allows; the stream holds its opening batch."""
    scale = stream.scale
    first = _first_free_column(scale)
    stream.emit("opening: one long request")

    if not _exchange_inner(stream):
        stream.move_pages(0, first, _last(stream, 0), 0.4)
        stream.emit("inner pages moved, first and last page kept")

    stream.rename([0])
    if scale.pool > 1:  # without pools no field holds request rows
        stream.emit("another request row, same pages and length")

    resident = stream.draw_requests(1)
    stream.pages.cover(resident[0], stream.pages.owned(stream.requests[0]))

    stream.move_pages(0, first, scale.columns(stream.lengths[0]))
    stream.emit("same length and request, pages moved under them")

    stream.lengths = [opening.tall.after]
    stream.emit("a token more" if scale.pool == 1 else "a token more in the same pool")

    stream.lengths = [opening.tall.last]
    stream.emit("longer within the same page and segment")

    former, stream.requests = stream.requests, resident
    stream.lengths = [scale.clip(scale.topk + scale.unit + 4)]
    stream.emit("the other request's turn, beyond K")
    stream.pages.release(former)

    stream.lengths = [opening.small.before]
    stream.rename([0])
    _accept_otherwise(stream)
    stream.emit("shrunk: leftovers of a long request")

    stream.lengths = [opening.small.after]
    stream.emit("a token more: 256 -> 257")

    _jump(stream, 0, scale.stride)
    stream.emit("jump by whole pages, the last page taken along")

    stream.lengths = [scale.clip(scale.topk + 3)]
    _accept_otherwise(stream)
    stream.emit("a little beyond K")

    stream.lengths = [scale.clip(scale.topk)]
    stream.rename([0])
    stream.emit("exactly K")

    _accept_only(stream)


def _exchange_inner(stream: Stream) -> bool:
    """A round in which only the order of inner pages differs; False where no request has two of them."""
    scale = stream.scale
    last = [scale.columns(max(length - scale.draft_tokens - scale.pool, 1)) - 1 for length in stream.lengths]
    changed = [stream.exchange_pages(row, _first_free_column(scale), stop) for row, stop in enumerate(last)]
    if any(changed):
        stream.emit("two inner pages of each request exchanged, nothing else")
    return any(changed)


def _settle(stream: Stream, roles: Roles) -> None:
    """Bring a row to K while pages and requests move; in large batches the tall row grows by a segment."""
    scale = stream.scale
    if stream.live < MANY:
        stream.lengths[roles.topk] = _below_topk(scale)
        why = "the first row shrinks to K, the others stay"
    else:
        stream.lengths[roles.topk] = scale.clip(scale.topk)
        stream.lengths[roles.tall] += scale.unit if scale.mode is Mode.DRAFT_EXTEND else SEGMENT
        why = "a segment more, exactly K"
    for row in range(1, stream.live):
        stream.move_pages(row, 0, scale.columns(stream.lengths[row]), 0.5)
    stream.rename(range(1, stream.live))
    stream.emit(why)


def _beyond_topk(stream: Stream, roles: Roles) -> None:
    """Lengthen rows that are at K or beyond, and exchange the request rows of two requests."""
    scale = stream.scale
    if stream.lengths[roles.topk] >= scale.topk:
        stream.lengths[roles.topk] = scale.clip(scale.topk + 3)
    if stream.live >= MANY:
        stream.lengths[roles.tall] += PHYSICAL_PAGE
    _lengthen(stream, roles.small, scale.unit + (2 if scale.mode is Mode.DECODE else 1))
    _swap(stream.requests, roles.small, roles.tall)
    _accept_otherwise(stream)
    stream.emit("longer beyond K, two requests in exchanged rows")


def _lengthen(stream: Stream, row: int, tokens: int) -> None:
    """Lengthen a row by that much, or by up to three segments more if else a schedule would stay as it is."""
    scale, before = stream.scale, schedules(stream, stream.lengths)
    start = stream.lengths[row]
    for extra in range(4):
        stream.lengths[row] = scale.clip(start + tokens + extra * SEGMENT)
        if all(x != y for x, y in zip(before, schedules(stream, stream.lengths), strict=True)):
            return


def _accept_otherwise(stream: Stream) -> None:
    stream.accepted = [value % stream.scale.draft_tokens + 1 for value in stream.accepted]


def _accept_only(stream: Stream) -> None:
    """Draft-extend with P > 1: a round in which nothing but the accepted tokens differs."""
    if stream.scale.mode is Mode.DRAFT_EXTEND and stream.scale.pool > 1:
        _accept_otherwise(stream)
        stream.emit("other accepted tokens only")


def _first_free_column(scale: Scale) -> int:
    """First page column beyond the first page and the first 128 tokens, which many keys look at."""
    return -(-128 // scale.page_tokens)


def _last(stream: Stream, row: int) -> int:
    """Column of the row's last live page."""
    return stream.scale.columns(stream.lengths[row]) - 1


def _jump(stream: Stream, row: int, tokens: int) -> None:
    """Lengthen a row by whole pages and let its last live page be the same page as before."""
    before = _last(stream, row)
    stream.lengths[row] += tokens
    stream.pages.cover(stream.requests[row], stream.scale.columns(stream.lengths[row]))
    stream.pages.swap(stream.requests[row], before, _last(stream, row))


def _below_topk(scale: Scale) -> int:
    """A length near K that still changes the sparse lengths of a row that was beyond K."""
    return scale.clip(scale.topk - {Mode.DECODE: 1, Mode.TARGET_VERIFY: 3}.get(scale.mode, 0))


def _swap(values: list[int], first: int, second: int) -> None:
    values[first], values[second] = values[second], values[first]
