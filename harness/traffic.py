"""Makes the rounds of a case: first moves that deceive lazy refreshes, then traffic as a server has it.

Everything is drawn from a seed made of what the rounds may depend on (`rounds.rounds_key`), so a
program is the same on every path, with fusion on or off and for any number of draft steps. Drills that
only disturb the ordinary order run part of the plain drill's rounds.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import msgspec
import numpy as np
from numpy.typing import NDArray

from harness.case import Case
from harness.deception import deceive_batch, deceive_single
from harness.lengths import Scale
from harness.opening import MANY, opening
from harness.pages import fill_dead_columns, guard_page, seeded_pages
from harness.rounds import AGAIN, Program, Round
from harness.stream import Stream
from harness.types import Drill, Mode

SMALL_BUCKET = 8
"""Largest bucket whose programs are long."""
ALONE = (Drill.REPEAT, Drill.CHURN, Drill.DEAD_COLUMNS)
"""Drills that disturb one graph and have nothing to do with another one beside it."""


@dataclass(frozen=True)
class _Part:
    """One bucket's share of a program."""

    stream: Stream
    capture: Round
    deceptive: int
    """Its first rounds, which belong together; the rest is traffic."""

    def condensed(self, count: int) -> list[Round]:
        """Return `count` rounds: the end of the traffic and as many of the first rounds as fit."""
        first, traffic = self.stream.rounds[: self.deceptive], self.stream.rounds[self.deceptive :][-6:]
        return first[: max(1, count - len(traffic))] + traffic


def build_program(case: Case) -> Program:
    """Return the rounds of a case, its captured buckets and page maps.

    Two buckets are captured, the case's and a neighbour (`other_bucket`), or one (`ALONE`). The rounds named
    `b4.NN` belong to bucket 4 and are numbered within it; equal names in programs of equal key mean equal
    inputs.
    """
    parts = [_main_part(case)]
    other = 0 if case.drill in ALONE else other_bucket(case)
    if other:
        parts.append(_other_part(case, other))
    rounds = _ordered(case, parts)
    captures = {part.stream.bucket: part.capture for part in parts}
    tables = {key: table for part in parts for key, table in part.stream.tables.items()}
    extra, extra_tables = _case_file_rounds(case)
    rounds, tables = [*rounds, *extra], tables | extra_tables
    if case.drill is Drill.DEAD_COLUMNS:
        rounds, tables = _with_dead_columns(case, rounds, tables)
    used = {round_.table for round_ in (*rounds, *captures.values())}
    return Program(
        buckets=tuple(sorted(captures, reverse=True)),
        capture=captures,
        rounds=tuple(rounds),
        tables={key: table for key, table in tables.items() if key in used},
    )


def other_bucket(case: Case) -> int:
    """Return the second bucket that a case captures: the next smaller, else the next larger one, else 0."""
    smaller = [bucket for bucket in case.model.buckets if bucket < case.bucket]
    larger = [bucket for bucket in case.model.buckets if bucket > case.bucket]
    return max(smaller) if smaller else min(larger, default=0)


def _rng(case: Case, *purpose: object) -> np.random.Generator:
    """Return a generator seeded by everything that rounds may depend on."""
    geometry = msgspec.json.encode(case.geometry, order="deterministic")
    model = (case.model.name, case.model.index_kpool, geometry)
    key = (*model, case.mode.value, case.metadata_tokens, case.bucket, case.seed, *purpose)
    digest = hashlib.sha256(repr(key).encode()).digest()
    return np.random.default_rng(np.frombuffer(digest, np.uint32))


def _main_part(case: Case) -> _Part:
    padded = case.drill is Drill.PADDED and case.bucket > 1
    live = case.bucket - 1 if padded else case.bucket
    rng = _rng(case, "main", padded)
    stream = Stream(case, case.bucket, f"b{case.bucket}.{'p' if padded else ''}", rng)
    start = opening(stream, live)
    captured = _captured_lengths(stream, like_fill=bool(rng.integers(3) == 0))
    capture = stream.capture(stream.requests, captured, stream.accepted)
    (deceive_batch if live > 1 else deceive_single)(stream, start)
    deceptive = len(stream.rounds)
    _serve(stream, live, capture, brief=case.bucket > SMALL_BUCKET)
    return _Part(stream, capture, deceptive)


def _other_part(case: Case, bucket: int) -> _Part:
    padded = case.drill is Drill.PADDED and bucket > 1
    full = bucket - 1 if padded else bucket
    stream = Stream(case, bucket, f"b{bucket}.{'p' if padded else ''}", _rng(case, "other", bucket, padded))
    stream.arrive([stream.next_awkward(stream.scale.width) for _ in range(full)])
    capture = stream.capture(stream.requests, _captured_lengths(stream), stream.accepted)
    stream.emit("the other bucket")
    small = case.bucket <= SMALL_BUCKET
    count = (9 if small else 7) if case.drill is Drill.BUCKET_SWITCH else 4 if small else 3
    for index in range(1, count):
        stream.grow()
        turn = index % 3
        if turn == 1:
            for row in range(stream.live):
                stream.move_pages(row, 0, stream.scale.columns(stream.lengths[row]), 0.5)
            stream.emit("grown by accepted tokens, pages moved")
        elif turn == 2:
            _drop(stream)
            stream.emit("a request finished")
        else:
            _admit(stream, full)
            stream.emit("a request arrived")
    return _Part(stream, capture, 0)


def _captured_lengths(stream: Stream, *, like_fill: bool = False) -> list[int]:
    """Return short lengths for the live requests while a graph is captured: all the fill, or unequal ones."""
    if like_fill:
        return [stream.scale.clip(stream.fill)] * stream.live
    return [stream.scale.low + (7 * row + 3) % 61 for row in range(stream.live)]


def _serve(stream: Stream, live: int, capture: Round, *, brief: bool) -> None:
    """Traffic: growth by accepted tokens, requests that come and go, a long batch, then short ones again."""
    scale = stream.scale
    if not brief:
        stream.grow()
        stream.emit("grown by accepted tokens")
    stream.grow()
    _drop(stream)
    stream.emit("a request finished, the others grew")
    if not brief:
        stream.grow()
        _admit(stream, live)
        stream.emit("a request arrived on pages that were freed")
        stream.grow()
        stream.rename([0])
        stream.move_pages(0, 0, scale.columns(stream.lengths[0]), 0.5)
        stream.emit("grown by accepted tokens, one request moved elsewhere")
    stream.replace_all(_long_lengths(stream))
    stream.emit("another batch, of long requests")
    if scale.idle:
        stream.finish(range(stream.live))
        stream.emit("no request at all: an idle rank")
    few = max(1, live // 2)
    stream.replace_all([scale.low + row % 3 for row in range(few)])
    stream.emit(
        "shortest requests only, fewer than the bucket holds" if few < stream.bucket else "shortest length"
    )
    stream.replace_all(capture.lengths, capture.requests)
    stream.accepted = [value % scale.draft_tokens + 1 for value in capture.accepted] or stream.accepted
    stream.emit("the captured batch again, on other pages")
    if not brief:
        stream.lengths = _otherwise_short(stream.lengths)
        stream.requests.reverse()
        stream.emit("the captured lengths and requests in another order")


def _long_lengths(stream: Stream) -> list[int]:
    """Return lengths for a full batch, so many of them long that the plan's threshold rises if it can."""
    scale, bucket = stream.scale, stream.bucket
    threshold, cap = scale.thresholds[0]
    base = max(threshold + scale.draft_tokens + 1, scale.width // 2)
    long = min(bucket, max(2, cap // scale.rows_per_request + 1))
    lengths = [stream.draw(base, base + 200) for _ in range(long)]
    lengths += [stream.next_awkward(1100) for _ in range(bucket - long)]
    if bucket < MANY:  # larger batches have had a nearly full request from the start
        lengths[-1] = scale.clip(scale.near_full)
    return lengths


def _otherwise_short(lengths: Sequence[int]) -> list[int]:
    """Return short lengths in another order, first and last kept if possible; others where all are equal."""
    if len(set(lengths)) == 1:
        return [length + 5 + 3 * row for row, length in enumerate(lengths)]
    first, last = (1, len(lengths) - 2) if len(lengths) >= MANY else (0, len(lengths) - 1)
    other = list(lengths)
    other[first], other[last] = lengths[last], lengths[first]
    return other


def _drop(stream: Stream) -> None:
    """Let a request in the middle finish; a request alone makes room for another one."""
    stream.finish([stream.live // 2])
    if not stream.live:
        stream.arrive([stream.next_awkward(1100)])


def _admit(stream: Stream, live: int) -> None:
    """Let requests arrive until `live` are there; with one row only, the request is exchanged."""
    if stream.live >= live:
        stream.finish([0])
    stream.arrive([stream.next_awkward(1100) for _ in range(live - stream.live)])


def _ordered(case: Case, parts: Sequence[_Part]) -> list[Round]:
    """Put both buckets' rounds into the drill's order.

    Only the plain drill runs the rounds whole: what the others look for shows in part of them.
    """
    main, others = parts[0], [round_ for part in parts[1:] for round_ in part.stream.rounds]
    if case.drill is Drill.PLAIN:
        return _interleaved(main.stream.rounds, main.deceptive, others)
    if case.drill is Drill.PADDED:
        return _interleaved(main.condensed(10), 4, others)
    own = main.condensed(7)
    if case.drill is Drill.BUCKET_SWITCH:
        return [round_ for pair in zip(own, others, strict=False) for round_ in pair] if others else own
    chosen = _interleaved(own, 1, others[:4:2])
    if case.drill is Drill.REPEAT:
        return [
            twice for r in chosen for twice in (r, replace(r, name=r.name + AGAIN, why=f"again: {r.why}"))
        ]
    return chosen


def _interleaved(own: Sequence[Round], undivided: int, others: Sequence[Round]) -> list[Round]:
    """Spread the other bucket's rounds over the traffic, after the first `undivided` rounds."""
    rounds = list(own)
    start = min(undivided, max(1, len(own) - len(others)))
    gap = max(1, (len(own) - start) // max(1, len(others)))
    for index, other in enumerate(others):
        rounds.insert(start + index * (gap + 1), other)
    return rounds


def _case_file_rounds(case: Case) -> tuple[list[Round], dict[str, NDArray[np.int32]]]:
    """Return the rounds that the model's case file adds to this program, and their page maps."""
    scale, geometry = Scale.of(case), case.geometry
    chosen = [
        extra
        for extra in case.model.rounds
        if extra.mode is case.mode and extra.bucket == case.bucket and extra.engine in (None, case.engine)
    ]
    rounds, reach = [], dict[int, dict[int, int]]()
    for index, extra in enumerate(chosen):
        accepted = extra.accepted or (scale.draft_tokens,) * len(extra.lengths)
        name, table = f"b{extra.bucket}.x{index:02d}", f"x.pages{extra.pages}"
        given = accepted if case.mode is Mode.DRAFT_EXTEND else ()
        rounds.append(Round(name, extra.bucket, extra.lengths, extra.requests, table, given, extra.why))
        columns = reach.setdefault(extra.pages, {})
        for request, length in zip(extra.requests, extra.lengths, strict=True):
            columns[request] = max(columns.get(request, 0), scale.columns(length))
    tables = {
        f"x.pages{seed}": seeded_pages(case.model, geometry, columns, seed) for seed, columns in reach.items()
    }
    return rounds, tables


def _with_dead_columns(
    case: Case, rounds: Iterable[Round], tables: dict[str, NDArray[np.int32]]
) -> tuple[list[Round], dict[str, NDArray[np.int32]]]:
    """Give every round a page map of its own, with fresh junk in all dead columns; live columns stay."""
    scale, rng = Scale.of(case), _rng(case, "dead columns")
    valid = case.geometry.first_page, guard_page(case.model, case.geometry)
    changed, made = [], dict(tables)
    for round_ in rounds:
        live = {r: scale.columns(length) for r, length in zip(round_.requests, round_.lengths, strict=True)}
        key = f"{round_.name}.junk"
        made[key] = fill_dead_columns(tables[round_.table], live, valid, rng)
        changed.append(replace(round_, table=key))
    return changed, made
