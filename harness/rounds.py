"""Rounds: what each replay is given. The data is here, the generator is `traffic.build_program`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec
import numpy as np
from numpy.typing import NDArray

from harness.case import Case, Model
from harness.types import Drill, Mode

OWN_INPUTS = (Drill.BUCKET_SWITCH, Drill.PADDED)
"""Drills whose programs have rounds that the plain one does not have."""
OWN_ORDER = (Drill.BUCKET_SWITCH, Drill.PADDED, Drill.REPEAT, Drill.DEAD_COLUMNS)
"""Drills that are an order of rounds of their own; the others disturb the plain order."""


AGAIN = "-again"
"""Ends the name of a round that gives the batch of the round before it once more."""


def given_name(name: str) -> str:
    """Return the name under which a round's inputs were first given: without `AGAIN`."""
    return name.removesuffix(AGAIN)


@dataclass(frozen=True)
class Round:
    """The inputs of one refresh and replay, live rows only.

    `lengths` mean what the mode's `seq_lens` means: in decode and target-verify the tokens before
    this forward (decode: the current one included), in draft-extend the draft tokens included.
    """

    name: str
    """Unique within a program, e.g. `b4.07`."""
    bucket: int
    lengths: tuple[int, ...]
    """Tokens, one per live request; at most `bucket`; none where all rows are padded (an idle rank)."""
    requests: tuple[int, ...]
    """Rows of `req_to_token`, distinct, never 0."""
    table: str
    """Key of the page map in `Program.tables`."""
    accepted: tuple[int, ...] = ()
    """Draft-extend: accepted tokens per request, 1..N; empty in the other modes."""
    why: str = ""
    """What this round is for, in a few words: shown in reports."""


class Captured(msgspec.Struct, frozen=True, tag=True):
    """Between two rounds: a bucket is captured, for the first time or again."""

    round: Round
    """Whose inputs are in place meanwhile."""


class Eager(msgspec.Struct, frozen=True, tag=True):
    """Between two rounds: an unrelated eager call."""

    rows: int
    """Query rows."""


class Churn(msgspec.Struct, frozen=True, tag=True):
    """Between two rounds: blocks of many sizes are allocated and freed."""


class Pause(msgspec.Struct, frozen=True, tag=True):
    """Between two rounds: memory is released and taken again (`sut.protocol.Pausable`)."""


Disturbance = Captured | Eager | Churn | Pause


@dataclass(frozen=True, eq=False)
class Program:
    """The rounds of a case, the buckets that it captures and the page maps that its rounds use."""

    buckets: tuple[int, ...]
    """Captured in this order before the first round (largest first, as servers do)."""
    capture: Mapping[int, Round]
    """By bucket: the round whose inputs are in place while it is captured first."""
    rounds: tuple[Round, ...]
    tables: Mapping[str, NDArray[np.int32]]
    """Page maps, `[requests, W / page_tokens]`: model page of each column; row 0 is all zero."""
    before: Mapping[int, tuple[Disturbance, ...]] = field(default_factory=dict)
    """By index of the round that follows (`len(rounds)`: after the last): what happens besides the drill."""
    delayed: frozenset[int] | None = None
    """Indices of rounds whose replay is held back while the next is staged and refreshed; None: as the
    drill says."""


@dataclass(frozen=True, eq=False)
class Inputs:
    """A round as the device sees it: padded to its bucket."""

    bucket: int
    live: int
    lengths: NDArray[np.int64]
    """`[bucket]`, padded with the mode's length fill."""
    requests: NDArray[np.int64]
    """`[bucket]`, padded with request 0."""
    accepted: NDArray[np.int32]
    """`[bucket]`, draft-extend's accepted tokens, padded with N."""
    table: NDArray[np.int32]
    """`req_to_token`, `[requests, W]`."""
    advanced: int = 0
    """Draft steps by which lengths have advanced since the round was staged."""


def length_fill(mode: Mode, index_kpool: int, draft_tokens: int) -> int:
    """Length of a padded row: 1, but N + P in draft-extend with P > 1 (specification, section 2)."""
    if mode is Mode.DRAFT_EXTEND and index_kpool > 1:
        return draft_tokens + index_kpool
    return 1


def expand_table(pages: NDArray[np.int32], page_tokens: int) -> NDArray[np.int32]:
    """Turn a page map `[requests, columns]` into `req_to_token` `[requests, columns * page_tokens]`, int32.

    Row 0 is reserved for padded rows and all zero.
    """
    tokens = pages[:, :, None] * page_tokens + np.arange(page_tokens, dtype=np.int32)
    table = tokens.reshape(pages.shape[0], -1).astype(np.int32)
    table[0] = 0
    return table


def pad_round(
    round_: Round,
    table: NDArray[np.int32],
    mode: Mode,
    index_kpool: int,
    draft_tokens: int,
    fill: int | None = None,
) -> Inputs:
    """Pad a round's rows to its bucket; `table` is its expanded request table.

    fill: length of a padded row, by default the mode's `length_fill`.
    """
    bucket, live = round_.bucket, len(round_.lengths)
    if fill is None:
        fill = length_fill(mode, index_kpool, draft_tokens)
    lengths = np.full(bucket, fill, np.int64)
    lengths[:live] = round_.lengths
    requests = np.zeros(bucket, np.int64)
    requests[:live] = round_.requests
    accepted = np.full(bucket, draft_tokens, np.int32)
    accepted[: len(round_.accepted)] = round_.accepted
    return Inputs(bucket, live, lengths, requests, accepted, table)


def padded_inputs(round_: Round, program: Program, model: Model, mode: Mode, draft_tokens: int) -> Inputs:
    """Expand a round's table and pad its rows to its bucket."""
    table = expand_table(program.tables[round_.table], model.page_tokens)
    return pad_round(round_, table, mode, model.index_kpool, draft_tokens)


def rounds_key(case: Case) -> tuple[object, ...]:
    """Return what a case's rounds depend on, besides the model: equal keys, equal inputs under equal names.

    Drills that disturb the plain order share the plain drill's key and run part of its rounds.
    """
    order = case.drill if case.drill in OWN_ORDER else Drill.PLAIN
    return case.engine, case.mode, case.metadata_tokens, case.bucket, case.seed, order
