"""An eager call between replays, as a prefill makes one: it brings its own metadata."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from harness.sut.embedded.counter import HEADS, KVCounter
from harness.sut.embedded.weights import LATENT, VOCABULARY, Caches, Weights

ATTENDED = 2
"""Tokens that each query row of an eager call looks at."""


@dataclass(frozen=True, eq=False)
class EagerMetadata:
    """What an eager call leaves active until the next refresh re-points it."""

    cache_seqlens_int32: torch.Tensor
    """int32 `[rows]`."""


def run_eager(
    rows: int, weights: Weights, caches: Caches, counter: KVCounter | None
) -> tuple[EagerMetadata, torch.Tensor]:
    """Attend from `rows` rows to a few tokens each; return the metadata and float32 `[rows, heads, latent]`.

    More rows than the KV counter serves take a private counter; the captured one stays where it is.
    """
    device = caches.kv.device
    row = torch.arange(rows, dtype=torch.int64, device=device)
    lengths = (row % ATTENDED + 1).to(torch.int32)
    slot = torch.arange(ATTENDED, dtype=torch.int64, device=device)
    location = (row[:, None] * ATTENDED + slot) % caches.tokens
    query = weights.queries.index_select(0, row % VOCABULARY)[:, -VOCABULARY - HEADS * LATENT : -VOCABULARY]
    kv = caches.kv.index_select(0, location.view(-1)).view(rows, ATTENDED, LATENT).float()
    logits = torch.bmm(query.reshape(rows, HEADS, LATENT), kv.transpose(1, 2))
    seen = (slot[None, :] < lengths[:, None])[:, None, :]
    attention = torch.bmm(torch.where(seen, logits, -1.0e30).softmax(-1), kv)
    if counter is not None:
        arrivals = counter.for_rows(rows)
        arrivals.add_(1)
        attention = attention.masked_fill(arrivals.view(rows, HEADS, 1) != 1, 0.0)
        arrivals.sub_(1)
    return EagerMetadata(lengths), attention
