"""The right value of every field of vLLM's draft metadata at one draft step, in NumPy only.

Written from the released builders' documentation and code; shares no code with them. A padded row is computed
as its declared policy says: as a row without a request, or as a request on null blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.case import PHYSICAL_PAGE
from harness.fields import Dims, FieldSpec, Padding
from harness.oracle import schedule
from harness.rounds import Inputs

Ints = NDArray[np.int64]

NO_SLOT = -1
"""Slot of a token that is not stored."""


def blocks(dims: Dims, inputs: Inputs) -> Ints:
    """Block of every column of every row, `[bs, W / (64 P)]`: the model page; null blocks in padded rows."""
    tokens = PHYSICAL_PAGE * dims.pool
    table = inputs.table[inputs.requests][:, ::tokens].astype(np.int64) // tokens
    table[inputs.live :] = 0
    return table


def ring_blocks(dims: Dims, inputs: Inputs) -> Ints:
    """Block of every row's tail ring, `[bs]`: the number of the page in the middle of what the request held.

    A request's ring is one block for its whole life in a server. Here it follows a page that the rounds move
    often, so that rings move between rounds, are freed and are given to others; within a round it stays.
    """
    staged = np.maximum(inputs.lengths - inputs.advanced, 1)
    middle = (staged - 1) // (PHYSICAL_PAGE * dims.pool) // 2
    return np.take_along_axis(blocks(dims, inputs), middle[:, None], axis=1)[:, 0]


def longest(dims: Dims, inputs: Inputs, captured: bool) -> object:
    """Upper bound of lengths that a build is given: the longest request and its drafts; at capture, the
    model's."""
    staged = int(inputs.lengths[: inputs.live].max(initial=0)) - inputs.advanced
    return dims.width if captured else min(staged + dims.steps, dims.width)


def policy(field: FieldSpec, inputs: Inputs, value: Ints, empty: int, captured: Ints | int) -> Ints:
    """Return `value` with padded rows as the field's policy says.

    value: every row treated as a request, padded ones on null blocks. empty: a row without a request.
    captured: a row as it was captured.
    """
    padded = np.arange(len(value)) >= inputs.live
    if field.padding is Padding.BUILT:
        return np.where(padded, empty, value)
    if field.padding in (Padding.CAPTURED, Padding.OWN):
        return np.where(padded, captured, value)
    return value


def values(
    dims: Dims, inputs: Inputs, ring: int, fields: Mapping[str, FieldSpec]
) -> Mapping[str, Callable[[], Any]]:
    """Name every formula; each is evaluated only for fields that exist. ring: slots of a tail ring."""
    lengths, table, rows = inputs.lengths.astype(np.int64), blocks(dims, inputs), np.arange(dims.bucket)
    tokens = PHYSICAL_PAGE * dims.pool
    positions = lengths - 1

    def context(name: str) -> Ints:
        return policy(fields[name], inputs, lengths // dims.pool, 0, 0)

    def slots(name: str, unit: int, index: Ints, stored: Any = True) -> Ints:
        column = np.clip(index // unit, 0, table.shape[1] - 1)
        block = np.take_along_axis(table, column[:, None], axis=1)[:, 0]
        found = np.where(stored, block * unit + index % unit, NO_SLOT)
        return policy(fields[name], inputs, found, NO_SLOT, NO_SLOT)

    def pooled_slots() -> Ints:
        """A pooled key is stored with the last token of its pool."""
        pool = np.maximum(positions, 0) // dims.pool
        return slots("indexer.slot_mapping", PHYSICAL_PAGE, pool, lengths % dims.pool == 0)

    def tail_slots() -> Ints:
        found = ring_blocks(dims, inputs) * ring + positions % ring
        return policy(fields["tail.slot_mapping"], inputs, found, NO_SLOT, NO_SLOT)

    def counted(name: str) -> Ints:
        return policy(fields[name], inputs, np.ones(dims.bucket, np.int64), 0, 1)

    def request_ids() -> Ints:
        return policy(fields["main.req_id_per_token"], inputs, rows, 0, dims.bucket - 1)

    def states() -> Ints:
        column = np.maximum(positions, 0) // tokens
        return np.take_along_axis(table, column[:, None], axis=1)

    return {
        **{f"{group}.seq_lens": lambda: lengths for group in ("indexer", "main", "tail", "state0", "state1")},
        "indexer.slot_mapping": lambda: (
            pooled_slots() if dims.pool > 1 else slots("indexer.slot_mapping", tokens, positions)
        ),
        "indexer.block_table": lambda: table,
        "indexer.decode.block_table": lambda: table,
        "indexer.decode.seq_lens": lambda: context("indexer.decode.seq_lens"),
        "indexer.decode.decode_lens": lambda: counted("indexer.decode.decode_lens"),
        "indexer.decode.schedule_metadata": lambda: schedule(
            context("indexer.decode.schedule_metadata"), dims.num_sms
        ),
        "indexer.decode.per_req_decode_lens": lambda: counted("indexer.decode.per_req_decode_lens"),
        "main.query_start_loc": lambda: np.minimum(np.arange(dims.bucket + 1), inputs.live),
        "main.slot_mapping": lambda: slots("main.slot_mapping", tokens, positions),
        "main.block_table": lambda: table,
        "main.req_id_per_token": request_ids,
        "tail.slot_mapping": tail_slots,
        "tail.positions": lambda: np.maximum(positions, 0),
        "state0.state_indices_tensor_d": states,
        "state1.state_indices_tensor_d": lambda: second_group(states()),
        "state0.state_indices_tensor_p": lambda: np.zeros(0),
        "state1.state_indices_tensor_p": lambda: np.zeros(0),
    }


def second_group(first: Ints) -> Ints:
    """Blocks that the second state group has where the first has these: others, the null block excepted."""
    return np.where(first > 0, first + 1, 0)
