"""Caches are a function of the location, pools are sums, and numbers are exact in float32."""

from __future__ import annotations

import pytest
import torch

from harness.sut.embedded.weights import (
    INDEX_DIM,
    INDEX_HEADS,
    INDEX_LARGEST,
    LATENT,
    QUERIES,
    VOCABULARY,
    Caches,
    Weights,
    largest_score,
)
from harness.types import Precision

CPU = torch.device("cpu")


@pytest.mark.parametrize("precision", list(Precision))
@pytest.mark.parametrize("pool", [1, 4])
def test_contents_depend_on_the_location_alone(pool: int, precision: Precision) -> None:
    small = Caches.seeded(3, 1024, pool, precision, CPU)
    large = Caches.seeded(3, 4096, pool, precision, CPU)
    assert small.tokens == 1024 + 64 * pool
    assert torch.equal(small.kv[:1024], large.kv[:1024])
    assert torch.equal(small.index_keys[:16], large.index_keys[:16])
    assert not torch.equal(small.kv[:1024], Caches.seeded(4, 1024, pool, precision, CPU).kv[:1024])
    assert len({tuple(row) for row in small.kv[:1024].tolist()}) > 900


@pytest.mark.parametrize("pool", [1, 4])
def test_guard_page_is_zero(pool: int) -> None:
    caches = Caches.seeded(0, 1024, pool, Precision.FP32, CPU)
    assert not caches.kv[1024:].any()
    assert not caches.index_keys.view(-1, INDEX_DIM)[1024:].any()


def test_pooled_keys_are_sums_of_their_tokens() -> None:
    caches = Caches.seeded(0, 1024, 4, Precision.FP32, CPU)
    keys = caches.index_keys.view(-1, INDEX_DIM)
    for slot in (0, 17, 255):
        assert torch.equal(caches.pooled_keys[slot], keys[4 * slot : 4 * slot + 4].sum(0))
    assert caches.pooled_keys.shape == (caches.tokens // 4 + 64, INDEX_DIM)


def test_bfloat16_holds_the_same_numbers() -> None:
    exact = Caches.seeded(0, 1024, 4, Precision.FP32, CPU).kv
    assert torch.equal(Caches.seeded(0, 1024, 4, Precision.BF16, CPU).kv.float(), exact)


@pytest.mark.parametrize("pool", [1, 4])
def test_no_score_exceeds_the_bound(pool: int) -> None:
    weights = Weights.seeded(0, CPU)
    index = weights.queries[:, : INDEX_HEADS * INDEX_DIM].view(QUERIES, INDEX_HEADS, INDEX_DIM)
    best = (index.abs().sum(2) * INDEX_LARGEST * pool).sum(1).max()
    assert 0 < float(best) <= largest_score(pool)


def test_a_target_dissents_after_some_tokens_only() -> None:
    weights = Weights.seeded(0, CPU)
    target = weights.target(0)
    changed = (target.queries != weights.queries).any(1)
    assert 0 < int(changed.sum()) < QUERIES // 2
    assert torch.equal(target.queries[:, :-VOCABULARY], weights.queries[:, :-VOCABULARY])
    assert weights.draft_head.shape == (LATENT, VOCABULARY)
