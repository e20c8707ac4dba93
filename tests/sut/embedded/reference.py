"""What a draft step computes, derived again in NumPy from a round's inputs: no metadata, no pages."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from harness.case import Case
from harness.rounds import Inputs
from harness.sut.embedded.counter import HEADS
from harness.sut.embedded.forward import Model
from harness.sut.embedded.weights import INDEX_DIM, INDEX_HEADS, LATENT, VOCABULARY
from harness.types import Mode


@dataclass(frozen=True)
class Row:
    """One query row's results."""

    attention: NDArray[np.float64]
    draft_token: int
    selected: int


def reference_row(
    case: Case, model: Model, inputs: Inputs, request: int, visible: int, token: int, step: int
) -> Row:
    """Return what the row of a live request computes that sees `visible` tokens and asks with `token`."""
    pool, topk = case.model.index_kpool, case.geometry.topk
    locations = inputs.table[inputs.requests[request], :visible].astype(np.int64)
    query = model.weights.queries[token + step].numpy().astype(np.float64)
    index, attention, bias = np.split(
        query, [INDEX_HEADS * INDEX_DIM, INDEX_HEADS * INDEX_DIM + HEADS * LATENT]
    )
    keys = model.caches.index_keys.reshape(-1, INDEX_DIM).numpy()[locations]
    pooled = keys[: visible // pool * pool].reshape(-1, pool, INDEX_DIM).sum(axis=1)
    scores = np.maximum(pooled @ index.reshape(INDEX_HEADS, INDEX_DIM).T, 0).sum(axis=1)
    best = np.argsort(-scores, kind="stable")[: topk // pool]
    positions = [pool * pick + lane for pick in best for lane in range(pool)]
    positions += range(visible // pool * pool, visible)
    chosen = locations[positions]
    kv = model.caches.kv.float().numpy().astype(np.float64)[chosen]
    logits = attention.reshape(HEADS, LATENT) @ kv.T
    weights = np.exp(logits - logits.max(axis=1, keepdims=True, initial=-np.inf))
    weights /= np.maximum(weights.sum(axis=1, keepdims=True), 1e-300)
    draft = bias + kv.sum(axis=0) @ model.weights.draft_head.numpy().astype(np.float64)
    assert draft.shape == (VOCABULARY,)
    slots = topk // pool * pool + (pool - 1 if pool > 1 else 0)
    guard = model.caches.tokens - 1
    everything = [*chosen.tolist(), *[guard] * (slots - len(chosen))]
    total = sum(location * location for location in everything)
    return Row((weights @ kv).reshape(-1), int(np.argmax(draft)), total)


def visible_lengths(case: Case, inputs: Inputs, request: int) -> list[int]:
    """Return what each row of a request sees, tokens (specification, section 2)."""
    length, count = int(inputs.lengths[request]), case.variant.draft_tokens
    if case.mode is Mode.DECODE:
        return [length]
    first = length + 1 if case.mode is Mode.TARGET_VERIFY else length - count + 1
    return [max(first + row, 0) for row in range(count)]


def asked_as(case: Case, row: int, step: int) -> int:
    """Return the draft step whose query a row asks with."""
    return {Mode.DECODE: step, Mode.TARGET_VERIFY: max(row - 1, 0), Mode.DRAFT_EXTEND: 0}[case.mode]
