"""One draft step's forward: indexer, top-k, mapping through the wide table, sparse attention, draft token.

Every id, length, row and location that comes from metadata is bounded before it is used: a wrong one
becomes data (`out_of_range` counts it, a guard page stands in), never a crash. Metadata is only read.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from harness.case import PHYSICAL_PAGE
from harness.fields import Dims
from harness.sut.embedded.bounds import RangeCheck
from harness.sut.embedded.counter import HEADS
from harness.sut.embedded.lengths import LengthReader, Lengths
from harness.sut.embedded.metadata import DSAMetadata, present, present_plan, read_leaves
from harness.sut.embedded.pooling import PoolWriter
from harness.sut.embedded.weights import (
    INDEX_DIM,
    INDEX_HEADS,
    LATENT,
    VOCABULARY,
    Caches,
    Weights,
    largest_score,
)
from harness.sut.protocol import StepOutputs
from harness.types import Mode

CHUNK_ELEMENTS = 1 << 25
"""Most gathered key elements at a time: 128 MiB as float32."""
QUERY_PARTS = [INDEX_HEADS * INDEX_DIM, HEADS * LATENT, VOCABULARY]
NO_WEIGHT = -1.0e30
"""Logit of a slot without a token."""


@dataclass(frozen=True, eq=False)
class Model:
    """What all steps of all buckets compute with."""

    weights: Weights
    caches: Caches


class StepForward:
    """The forward of one bucket; holds its constants, made outside any capture."""

    def __init__(self, dims: Dims, requests: int, model: Model, device: torch.device) -> None:
        self._dims = dims
        self._model = model
        pool = dims.pool
        self._guard_token = model.caches.tokens - 1
        self._guard_page = model.caches.tokens // (PHYSICAL_PAGE * pool) - 1
        columns = -(-dims.pages // pool)
        self._keys = columns * PHYSICAL_PAGE
        self._picked = min(dims.topk // pool, self._keys)
        # Score and position in one number: int32 if it holds them (half the memory), else int64.
        self._rank = 1 << (self._keys - 1).bit_length()
        fits = (largest_score(pool) + 1) * self._rank <= 1 << 31
        self._composite = torch.int32 if fits else torch.int64
        position = torch.arange(self._keys, dtype=self._composite, device=device)
        self._position = position[None, :]
        self._descending = (self._rank - 1) - position[None, :]
        self._dead = torch.tensor(-1, dtype=self._composite, device=device)
        self._no_page = torch.full((1,), self._guard_page, dtype=torch.int32, device=device)
        self._no_token = torch.full((1,), self._guard_token, dtype=torch.int64, device=device)
        self._no_weight = torch.tensor(NO_WEIGHT, device=device)
        self._page_start = torch.arange(columns, dtype=torch.int32, device=device)[None, :] * PHYSICAL_PAGE
        self._slot = torch.arange(self._picked * pool, dtype=torch.int32, device=device)[None, :]
        self._lane = torch.arange(pool, dtype=torch.int64, device=device)
        self._tail = torch.arange(max(pool - 1, 1), dtype=torch.int32, device=device)[None, :]
        self._draft_position = _draft_positions(dims, device) if dims.expanded else None
        self._writer = PoolWriter(dims, requests, model.caches, device) if pool > 1 else None
        self._lengths = LengthReader(dims, self._keys, self._writer, device)

    def run(
        self,
        step: int,
        metadata: DSAMetadata,
        token: torch.Tensor,
        req_to_token: torch.Tensor,
        counter: torch.Tensor | None,
    ) -> StepOutputs:
        """Run draft step `step` on tokens int64 `[rows]`; `counter` int32 `[rows * heads]` or None.

        Returns `attention` float32 `[rows, heads * latent]`, `draft_token` int64 `[rows]`, `selected`
        int64 `[rows]` (sum of the chosen locations' squares, in any order) and `out_of_range` int32 `[1]`.
        """
        check = RangeCheck()
        lengths = self._lengths.read(metadata, check)
        if self._writer is not None:
            self._writer.write(present_plan(metadata), lengths.write_plan, req_to_token, check)
        rows = self._dims.rows
        query_row = token.index_select(0, lengths.query)
        queries = self._model.weights.queries
        if self._draft_position is None:
            queries = queries[step:]
        else:
            query_row = query_row + self._draft_position
        table = queries.index_select(0, query_row)
        index_query, query, bias = torch.split(table, QUERY_PARTS, dim=1)
        scores = self._scores(metadata, lengths.keys, index_query, check)
        locations, valid = self._locations(metadata, scores, lengths, check)
        kv = self._model.caches.kv.index_select(0, locations.reshape(-1)).view(rows, -1, LATENT).float()
        attention = self._attend(query.reshape(rows, HEADS, LATENT), kv, valid)
        if counter is not None:
            attention = _count_arrivals(attention, counter)
        # All numbers here are exact in float32 and no two logits are equal: every device drafts the same.
        logits = torch.addmm(bias, kv.sum(1), self._model.weights.draft_head)
        return StepOutputs(
            read=read_leaves(metadata),
            computed={
                "attention": attention.reshape(rows, -1),
                "draft_token": logits.argmax(1),
                "selected": locations.square().sum(1),
                "out_of_range": check.count(),
            },
        )

    def _key_pages(self, metadata: DSAMetadata) -> torch.Tensor:
        """Return the pages of the index keys, int32 `[rows, columns]`."""
        if self._dims.pool == 1:
            return metadata.real_page_table
        if self._dims.mode is Mode.DRAFT_EXTEND:
            return metadata.real_page_table[:, :: self._dims.pool] // self._dims.pool
        return present(metadata.pooled_real_page_table)

    def _scores(
        self, metadata: DSAMetadata, lengths: torch.Tensor, query: torch.Tensor, check: RangeCheck
    ) -> torch.Tensor:
        """Return composite keys, `[rows, keys]`: (score, earlier position first), -1 past the length.

        No two live keys of a row are equal, so every device picks the same ones in the same order.
        """
        pages = torch.where(self._page_start < lengths[:, None], self._key_pages(metadata), self._no_page)
        bounded = check.clamp(pages, self._guard_page)
        rows = self._dims.rows
        chunk = max(1, CHUNK_ELEMENTS // (self._keys * INDEX_DIM))
        heads = query.reshape(rows, INDEX_HEADS, INDEX_DIM)
        parts = [
            self._chunk_scores(bounded[start : start + chunk], heads[start : start + chunk])
            for start in range(0, rows, chunk)
        ]
        scores = parts[0] if len(parts) == 1 else torch.cat(parts)
        composite = torch.add(self._descending, scores.to(self._composite), alpha=self._rank)
        return torch.where(self._position < lengths[:, None], composite, self._dead)

    def _chunk_scores(self, pages: torch.Tensor, heads: torch.Tensor) -> torch.Tensor:
        cache = self._model.caches.index_keys
        if self._writer is not None:
            cache = self._writer.pages
        keys = cache.index_select(0, pages.reshape(-1)).view(pages.shape[0], self._keys, INDEX_DIM)
        return torch.bmm(heads, keys.transpose(1, 2)).relu_().sum(1)

    def _locations(
        self, metadata: DSAMetadata, scores: torch.Tensor, lengths: Lengths, check: RangeCheck
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Pick the best keys and map them, and the unpooled tail, to locations int64 `[rows, slots]`.

        Returns them and which slots hold a token, bool; the others hold the guard location.
        """
        pool = self._dims.pool
        picked = scores.topk(self._picked, dim=1).indices
        limit, sparse = lengths.limit[:, None], lengths.sparse[:, None]
        if pool == 1:
            valid = (picked < limit) & (self._slot < sparse)
            found = metadata.page_table_1.gather(1, picked)
        else:
            position = (picked[:, :, None] * pool + self._lane).view(picked.shape[0], -1)
            whole = lengths.keys[:, None] * pool
            kept = (position < limit) & (self._slot < sparse - (limit - whole))
            tail = whole + self._tail
            valid = torch.cat((kept, (tail < limit) & (self._tail < sparse)), 1)
            mapped = metadata.page_table_1.gather(1, position)
            found = torch.cat((mapped, self._tail_locations(metadata, tail)), 1)
        return check.clamp(torch.where(valid, found, self._no_token), self._guard_token), valid

    def _tail_locations(self, metadata: DSAMetadata, tail: torch.Tensor) -> torch.Tensor:
        """Map the tail, which no pooled key stands for, through the physical pages; int64 `[rows, P - 1]`."""
        position = tail.clamp(max=self._dims.width - 1).to(torch.int64)
        column = position >> (PHYSICAL_PAGE.bit_length() - 1)
        page = metadata.real_page_table.gather(1, column)
        return torch.add(position & (PHYSICAL_PAGE - 1), page, alpha=PHYSICAL_PAGE)

    def _attend(self, query: torch.Tensor, kv: torch.Tensor, valid: torch.Tensor) -> torch.Tensor:
        """Softmax attention `[rows, heads, latent]`; no valid slot leaves guard rows, so zeros."""
        logits = torch.bmm(query, kv.transpose(1, 2))
        weights = torch.where(valid[:, None, :], logits, self._no_weight).softmax(-1)
        return torch.bmm(weights, kv)


def _draft_positions(dims: Dims, device: torch.device) -> torch.Tensor:
    """Return the draft step that each row of an expanded mode answers, int64 `[rows]`.

    Verify row t checks the token that draft step t - 1 made of the same input (row 0: that the draft
    extension made); the rows of a draft extension are all at the start.
    """
    steps = torch.arange(-1, dims.draft_tokens - 1, dtype=torch.int64, device=device).clamp(min=0)
    if dims.mode is Mode.DRAFT_EXTEND:
        steps.zero_()
    return steps.repeat(dims.bucket)


def _count_arrivals(attention: torch.Tensor, counter: torch.Tensor) -> torch.Tensor:
    """Let every (row, head) arrive once, keep results whose count is exact, and take the arrivals back.

    As with the real kernel, a counter that is not zero at the start spoils its row and stays dirty.
    """
    counter.add_(1)
    attention = attention.masked_fill(counter.view(attention.shape[0], HEADS, 1) != 1, 0.0)
    counter.sub_(1)
    return attention
