"""An eager call between replays: a batch that no graph was captured for, and a wide prefill's attention.

Both run SGLang's own code. The batch makes each step build metadata of its own; the prefill goes through
the TRT-LLM attention up to the kernel, which asks for a KV counter of its query rows. The kernel itself is
FlashInfer's and is left out.
"""

from __future__ import annotations

import importlib
from types import SimpleNamespace
from typing import Any

import torch

from harness.case import PHYSICAL_PAGE
from harness.sut.patches import Patches
from harness.sut.sglang.backend import Batches
from harness.sut.sglang.seams import Seams

_KERNEL = "trtllm_batch_decode_with_kv_cache_mla"
_HEAD_DIM = 8
"""Nothing is computed, so queries are as narrow as the layout allows."""
_ATTRIBUTES = {
    "dcp_size": 1,
    "dcp_rank": 0,
    "kv_cache_dtype": torch.bfloat16,
    "kv_cache_dim": _HEAD_DIM,
    "kv_lora_rank": _HEAD_DIM,
    "qk_nope_head_dim": _HEAD_DIM,
    "qk_rope_head_dim": _HEAD_DIM,
    "workspace_buffer": None,
}
"""What the attention reads of a backend besides what the metadata code does."""


def run_batch(owner: Any, batches: Batches, seams: Seams, rows: int) -> None:
    """Build metadata for an eager decode batch of `rows` requests; it becomes every step's active one."""
    with seams.parallel.override(attn_cp_size=1):
        owner.init_forward_metadata(batches.oversize(rows))


def run_attention(backend: Any, patches: Patches, rows: int) -> torch.Tensor:
    """Call a backend's TRT-LLM attention with `rows` query rows; return the KV counter its kernel gets."""
    given: list[torch.Tensor] = []

    def kernel(*, query: torch.Tensor, multi_ctas_kv_counter_buffer: torch.Tensor, **_: Any) -> torch.Tensor:
        given.append(multi_ctas_kv_counter_buffer)
        return query

    patches.attribute(importlib.import_module("flashinfer.decode"), _KERNEL, kernel)
    device = backend.device
    cache = torch.zeros((PHYSICAL_PAGE, _HEAD_DIM), dtype=torch.bfloat16, device=device)
    patches.attribute(backend.token_to_kv_pool, "get_key_buffer", lambda layer_id: cache)
    for name, value in _ATTRIBUTES.items():
        patches.attribute(backend, name, value)
    layer = SimpleNamespace(
        layer_id=0, tp_q_head_num=1, head_dim=_HEAD_DIM, v_head_dim=_HEAD_DIM, scaling=1.0, k_scale_float=None
    )
    backend._forward_trtllm(
        torch.zeros((rows, 1, _HEAD_DIM), dtype=torch.bfloat16, device=device),
        None,
        None,
        layer,
        forward_batch=None,
        seq_lens=torch.ones(rows, dtype=torch.int32, device=device),
        save_kv_cache=False,
        topk_indices=torch.zeros((rows, 4), dtype=torch.int32, device=device),
        is_prefill=True,
    )
    return given[0]
