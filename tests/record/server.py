"""A stand-in for a server's backends: the attributes and the call that a recorder knows, no SGLang."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

PAGE = 64


class DeepseekSparseAttnBackend:
    """A single backend."""

    def __init__(self, table: torch.Tensor) -> None:
        self.req_to_token = table
        self.dsa_index_kpool = 1
        self.speculative_num_draft_tokens = 5
        self.dsa_decode_impl = "fa3"
        self.calls = 0

    def init_forward_metadata_out_graph(self, forward_batch: Any, in_capture: bool = False) -> None:
        """Count the call."""
        self.calls += 1


class DeepseekSparseAttnMultiStepBackend:
    """S - 1 single backends, which it calls while it captures, as SGLang's does."""

    def __init__(self, table: torch.Tensor, steps: int = 3) -> None:
        self.attn_backends = [DeepseekSparseAttnBackend(table) for _ in range(steps)]
        self.speculative_num_steps = steps + 1

    def init_forward_metadata_out_graph(self, forward_batch: Any, in_capture: bool = False) -> None:
        """Refresh every step."""
        for backend in self.attn_backends:
            backend.init_forward_metadata_out_graph(forward_batch, in_capture=in_capture)


def table(requests: int = 8, width: int = 1024) -> torch.Tensor:
    """Return a request table whose page `j` of request `r` is `100 * r + j`."""
    pages = torch.arange(width // PAGE)[None, :] + 100 * torch.arange(requests)[:, None]
    tokens = pages[:, :, None] * PAGE + torch.arange(PAGE)
    found = tokens.reshape(requests, width).to(torch.int32)
    found[0] = 0
    return found


def batch(bucket: int, lengths: list[int], requests: list[int], mode: str = "DECODE") -> SimpleNamespace:
    """Return a padded batch."""
    padding = bucket - len(lengths)
    return SimpleNamespace(
        batch_size=bucket,
        forward_mode=SimpleNamespace(name=mode),
        seq_lens=torch.tensor([*lengths, *[1] * padding], dtype=torch.int64),
        req_pool_indices=torch.tensor([*requests, *[0] * padding], dtype=torch.int64),
        seq_lens_cpu=None,
        spec_info=None,
    )
