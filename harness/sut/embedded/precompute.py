"""The base fields of a refresh, built the ordinary way: row gather, then transformation and prefix sums.

A `Builder` writes each base field exactly once, into temporaries (staged refresh) or straight into
captured buffers (direct refresh). The other builder is `fused`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

from harness.case import PHYSICAL_PAGE
from harness.fields import Dims
from harness.sut.embedded.metadata import DSAMetadata, FlashMLAMetadata
from harness.types import Mode


@dataclass(frozen=True, eq=False)
class DeviceInputs:
    """The persistent input tensors of one bucket (slices from the largest bucket's)."""

    seq_lens: torch.Tensor
    """int64 `[bs]`."""
    req_pool_indices: torch.Tensor
    """int64 `[bs]`."""
    accepted: torch.Tensor
    """int32 `[bs]`, draft-extend only."""
    req_to_token: torch.Tensor
    """int32 `[requests, W]`."""


@dataclass(frozen=True, eq=False)
class BaseFields:
    """The fields that every step copies; the others are derived from them."""

    cache_seqlens: torch.Tensor
    cu_seqlens_k: torch.Tensor
    """Element 0 is never written after the build."""
    page_table: torch.Tensor
    real_page_table: torch.Tensor
    seqlens_expanded: torch.Tensor
    """In decode `cache_seqlens` itself."""
    dsa_cache_seqlens: torch.Tensor
    dsa_cu_seqlens_k: torch.Tensor
    """Element 0 is never written after the build."""

    @classmethod
    def of(cls, metadata: DSAMetadata) -> BaseFields:
        """Return the captured buffers of the base fields."""
        return cls(
            cache_seqlens=metadata.cache_seqlens_int32,
            cu_seqlens_k=metadata.cu_seqlens_k,
            page_table=metadata.page_table_1,
            real_page_table=metadata.real_page_table,
            seqlens_expanded=metadata.dsa_seqlens_expanded,
            dsa_cache_seqlens=metadata.dsa_cache_seqlens_int32,
            dsa_cu_seqlens_k=metadata.dsa_cu_seqlens_k,
        )

    @classmethod
    def temporaries(cls, dims: Dims, device: torch.device) -> BaseFields:
        """Return uninitialised tensors of the right shapes."""

        def empty(*shape: int) -> torch.Tensor:
            return torch.empty(shape, dtype=torch.int32, device=device)

        lengths = empty(dims.bucket)
        return cls(
            cache_seqlens=lengths,
            cu_seqlens_k=empty(dims.bucket + 1),
            page_table=empty(dims.rows, dims.width),
            real_page_table=empty(dims.rows, dims.pages),
            seqlens_expanded=empty(dims.rows) if dims.expanded else lengths,
            dsa_cache_seqlens=empty(dims.rows),
            dsa_cu_seqlens_k=empty(dims.rows + 1),
        )

    def copied(self) -> tuple[torch.Tensor, ...]:
        """Return what a fused copy moves: every field once, without the elements that are init-once."""
        fields = [
            self.cache_seqlens,
            self.cu_seqlens_k[1:],
            self.page_table,
            self.real_page_table,
            self.dsa_cache_seqlens,
            self.dsa_cu_seqlens_k[1:],
        ]
        if self.seqlens_expanded is not self.cache_seqlens:
            fields.append(self.seqlens_expanded)
        return tuple(fields)


@dataclass(frozen=True, eq=False)
class Precomputed:
    """One round's base fields in temporaries, and what the derived refresh needs besides them."""

    base: BaseFields
    flashmla: FlashMLAMetadata | None


class Builder(Protocol):
    """Computes base fields; two builders, written apart, have to agree."""

    name: str

    def build(self, inputs: DeviceInputs, out: BaseFields) -> None:
        """Write every base field of `out`, first elements of the prefix sums excepted."""
        ...


class OrdinaryBuilder:
    """The formulas in the specification's order: wide table first, physical pages from it."""

    name = "ordinary"

    def __init__(self, dims: Dims, device: torch.device) -> None:
        self._dims = dims
        repeat = dims.rows // dims.bucket
        self._request_of_row = torch.arange(dims.bucket, device=device).repeat_interleave(repeat)
        self._offset_of_row = torch.arange(repeat, device=device).repeat(dims.bucket)

    def build(self, inputs: DeviceInputs, out: BaseFields) -> None:
        """See `Builder`."""
        dims = self._dims
        grown = dims.draft_tokens if dims.mode is Mode.TARGET_VERIFY else 0
        torch.add(inputs.seq_lens, grown, out=out.cache_seqlens)
        torch.cumsum(out.cache_seqlens, 0, dtype=torch.int32, out=out.cu_seqlens_k[1:])
        requests = inputs.req_pool_indices
        if dims.expanded:
            requests = requests[self._request_of_row]
            first = inputs.seq_lens + (1 if dims.mode is Mode.TARGET_VERIFY else 1 - dims.draft_tokens)
            visible = first[self._request_of_row] + self._offset_of_row
            torch.clamp(visible.to(torch.int32), min=0, out=out.seqlens_expanded)
        torch.index_select(inputs.req_to_token, 0, requests, out=out.page_table)
        torch.floor_divide(out.page_table[:, ::PHYSICAL_PAGE], PHYSICAL_PAGE, out=out.real_page_table)
        if dims.pool == 1:
            torch.clamp(out.seqlens_expanded, max=dims.topk, out=out.dsa_cache_seqlens)
        else:
            whole = out.seqlens_expanded // dims.pool * dims.pool
            tail = out.seqlens_expanded - whole
            torch.add(whole.clamp(max=dims.topk), tail, out=out.dsa_cache_seqlens)
        torch.cumsum(out.dsa_cache_seqlens, 0, dtype=torch.int32, out=out.dsa_cu_seqlens_k[1:])
