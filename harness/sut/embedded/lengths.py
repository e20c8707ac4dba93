"""Reading a step's lengths, rows and write plan: what is small in metadata, bounded in one operation."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from harness.fields import Dims, plan_is_written
from harness.sut.embedded.bounds import RangeCheck
from harness.sut.embedded.metadata import DSAMetadata, present, present_plan
from harness.sut.embedded.planners import SEGMENT
from harness.sut.embedded.pooling import PoolWriter


@dataclass(frozen=True, eq=False)
class Lengths:
    """Bounded lengths of one step, int32 `[rows]`."""

    limit: torch.Tensor
    """Token positions below it may be attended to."""
    sparse: torch.Tensor
    """Tokens that attention looks at."""
    keys: torch.Tensor
    """(Pooled) index keys that the row sees."""
    query: torch.Tensor
    """Row of the query token."""
    write_plan: torch.Tensor
    """What `PoolWriter.write` needs; empty for P = 1."""


class LengthReader:
    """Bounds all of them in one operation: `keys` is the most index keys that a row can see.

    A length that two leaves state is the smaller of both, so that neither can be wrong unseen.
    """

    def __init__(self, dims: Dims, keys: int, writer: PoolWriter | None, device: torch.device) -> None:
        self._dims = dims
        self._writer = writer
        rows = dims.rows
        repeat = rows // dims.bucket
        self._request_of_row = torch.arange(dims.bucket, device=device).repeat_interleave(repeat)
        self._plan_is_read = plan_is_written(dims)
        self._per_query = dims.expanded and dims.pool > 1
        write_plan = writer.bounds if writer is not None else []
        # The schedule only deals work to workers, which this forward has none of: bounded, not followed.
        rest = [max(rows, -(-dims.width // SEGMENT))] * (2 * (dims.num_sms + 1))
        rest += [rows] if self._plan_is_read else []
        bounds = [dims.width] * (2 * dims.bucket + 3 * rows) + [keys] * rows + [rows - 1] * rows
        per_query = [dims.width] * rows if self._per_query else []
        self._upper = torch.tensor(bounds + write_plan + per_query + rest, dtype=torch.int32, device=device)
        self._lower = torch.zeros_like(self._upper)
        self._sizes = [dims.bucket] * 2 + [rows] * 5 + [len(write_plan), len(per_query), len(rest)]

    def read(self, metadata: DSAMetadata, check: RangeCheck) -> Lengths:
        """Return the lengths as `check` bounds them."""
        cu_k, sparse_cu = metadata.cu_seqlens_k, metadata.dsa_cu_seqlens_k
        parts = [
            metadata.cache_seqlens_int32,
            cu_k[1:] - cu_k[:-1],
            metadata.dsa_seqlens_expanded,
            metadata.dsa_cache_seqlens_int32,
            sparse_cu[1:] - sparse_cu[:-1],
            self._key_lengths(metadata),
            torch.minimum(metadata.cu_seqlens_q[:-1], metadata.dsa_cu_seqlens_q[:-1]),
        ]
        if self._writer is not None:
            parts += self._writer.read(present_plan(metadata))
        if self._per_query:
            parts.append(present(present_plan(metadata).seqlens_per_q))
        parts.append(self._schedule(metadata).reshape(-1))
        if self._plan_is_read:
            parts.append(metadata.topk_v2_plan[0, 1:])
        bounded = check.clamp_each(torch.cat(parts), self._lower, self._upper)
        lengths, spans, visible, sparse, sparse_spans, keys, query, write_plan, per_query, _ = torch.split(
            bounded, self._sizes
        )
        limit = torch.minimum(lengths, spans)
        if self._dims.expanded:
            limit = limit.index_select(0, self._request_of_row)
        if self._per_query:
            visible = torch.minimum(visible, per_query)
        return Lengths(
            limit=torch.minimum(limit, visible),
            sparse=torch.minimum(sparse, sparse_spans),
            keys=keys,
            query=query,
            write_plan=write_plan,
        )

    def _key_lengths(self, metadata: DSAMetadata) -> torch.Tensor:
        """Return how many index keys each row sees, int32 `[rows]`."""
        if self._dims.pool == 1:
            return metadata.paged_mqa_ctx_lens_2d.reshape(-1)
        if self._dims.expanded:
            return present(present_plan(metadata).pool_seqlens_per_q)
        return present(metadata.pooled_cache_seqlens_int32)

    def _schedule(self, metadata: DSAMetadata) -> torch.Tensor:
        """Return the schedule that this mode's index kernel would follow."""
        if self._dims.pool == 1:
            return metadata.paged_mqa_schedule_metadata
        if self._dims.expanded:
            return present(present_plan(metadata).pool_schedule_metadata)
        return present(metadata.pooled_paged_mqa_schedule_metadata)
