"""Seeded weights and caches of the embedded forward, the same numbers on every device.

Index keys and index queries are small integers and KV entries are eighths, so that logits, pooled
keys and the draft head are exact in float32 whatever the order of summation. Cache contents are a
pure function of the physical location: writing a pooled key again writes the same value, and what a
forward computes depends only on its round's inputs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from harness.case import PHYSICAL_PAGE
from harness.sut.embedded.counter import HEADS
from harness.types import Precision

VOCABULARY = 64
"""Tokens that the draft head chooses from."""
MOST_STEPS = 16
"""Draft steps, and draft tokens, that the query table has rows for."""
QUERIES = VOCABULARY + MOST_STEPS
"""Rows of the query table: token + draft step."""
INDEX_DIM = 4
INDEX_HEADS = 2
INDEX_LARGEST = 7
"""Largest magnitude of an index key's and an index query's entries."""
HEAD_WEIGHTS = (1, 3)
"""Weights of the index heads, folded into the queries (they are positive, so ReLU lets them through)."""
LATENT = 8
"""Entries of a KV row; keys and values are the same vector, as in MLA."""
CODES = 4096
"""Distinct cache rows; a hash of the location picks one."""
DISSENT = 0.15
"""Share of tokens after which a target model has its own mind."""
_HASH = 2_654_435_761


@dataclass(frozen=True, eq=False)
class Weights:
    """The query table and the draft head, float32."""

    queries: torch.Tensor
    """`[QUERIES, INDEX_HEADS * INDEX_DIM + HEADS * LATENT + VOCABULARY]`: index query, query, draft bias."""
    draft_head: torch.Tensor
    """`[LATENT, VOCABULARY]`, 8 or -8: sums of KV rows give whole numbers, told apart by the bias."""

    @classmethod
    def seeded(cls, seed: int, device: torch.device) -> Weights:
        """Draw the weights of a seed."""
        rng = np.random.default_rng([seed, 1])
        entries = rng.integers(-INDEX_LARGEST, INDEX_LARGEST + 1, (QUERIES, INDEX_HEADS, INDEX_DIM))
        index = entries * np.array(HEAD_WEIGHTS)[None, :, None]
        attention = rng.normal(size=(QUERIES, HEADS * LATENT))
        # A fraction of its own for every token: no two logits of a row can be equal.
        ties = np.arange(VOCABULARY)[::-1] / VOCABULARY
        bias = rng.integers(-50, 51, (QUERIES, VOCABULARY)) + ties
        table = np.concatenate([index.reshape(QUERIES, -1), attention, bias], axis=1)
        head = rng.choice((-8, 8), (LATENT, VOCABULARY))
        return cls(_tensor(table, torch.float32, device), _tensor(head, torch.float32, device))

    def target(self, seed: int) -> Weights:
        """Return a target model's weights: these, but for some tokens it prefers a successor of its own.

        What a draft model learns of its target is never all of it; without this the two would agree
        on nearly everything in long contexts.
        """
        rng = np.random.default_rng([seed, 4])
        queries = self.queries.clone()
        tokens = np.flatnonzero(rng.random(QUERIES) < DISSENT)
        successors = rng.integers(0, VOCABULARY, tokens.size) - VOCABULARY
        for token, successor in zip(tokens.tolist(), successors.tolist(), strict=True):
            queries[token, successor] += 1 << 16
        return Weights(queries, self.draft_head)


@dataclass(frozen=True, eq=False)
class Caches:
    """Paged caches; the last page of each is a guard page that no request owns, all zero."""

    tokens: int
    """Token locations, guard page included."""
    index_keys: torch.Tensor
    """float32 `[tokens / 64, 64 * INDEX_DIM]`, whole numbers, by physical page."""
    pooled_keys: torch.Tensor
    """float32 `[tokens / P + 64, INDEX_DIM]`: sums over P tokens, then a page that takes the writes of
    incomplete pools and that nothing reads. With P = 1 the index keys themselves."""
    kv: torch.Tensor
    """`[tokens, LATENT]`, float32 or bfloat16."""

    @classmethod
    def seeded(cls, seed: int, tokens: int, pool: int, precision: Precision, device: torch.device) -> Caches:
        """Fill the caches for `tokens` locations and one guard page of 64 * P tokens more."""
        rng = np.random.default_rng([seed, 2])
        codes = rng.integers(-INDEX_LARGEST, INDEX_LARGEST + 1, (CODES, INDEX_DIM))
        index_codes = _tensor(codes, torch.float32, device)
        dtype = torch.bfloat16 if precision is Precision.BF16 else torch.float32
        kv_codes = _tensor(rng.integers(-8, 9, (CODES, LATENT)) / 8, dtype, device)
        guard = PHYSICAL_PAGE * pool
        location = torch.arange(tokens + guard, dtype=torch.int64, device=device)
        code = ((location * _HASH) >> 16) & (CODES - 1)
        index = index_codes.index_select(0, code)
        kv = kv_codes.index_select(0, code)
        index[tokens:] = 0
        kv[tokens:] = 0
        pooled = index
        if pool > 1:
            slots = (tokens + guard) // pool
            pooled = torch.zeros(slots + PHYSICAL_PAGE, INDEX_DIM, device=device)
            torch.sum(index.view(slots, pool, INDEX_DIM), 1, out=pooled[:slots])
        return cls(tokens + guard, index.view(-1, PHYSICAL_PAGE * INDEX_DIM), pooled, kv)


def largest_score(pool: int) -> int:
    """Return a bound of index scores: all entries at their largest and in agreement."""
    return sum(HEAD_WEIGHTS) * INDEX_DIM * INDEX_LARGEST * INDEX_LARGEST * pool


def _tensor(values: NDArray[np.generic], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(values)).to(dtype).to(device)
