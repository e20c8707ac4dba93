"""The part of vLLM's configuration that draft decode and its metadata builders read, without a model."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from harness.case import PHYSICAL_PAGE, Case
from harness.sut.vllm.seams import Seams

HIDDEN = 8
"""Width of the hidden states that go from step to step."""
_LATENT = {"kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128}
"""Dimensions of the main attention; they size buffers and nothing that is judged."""


def max_requests(case: Case, largest: int) -> int:
    """Return the runner's limit of requests, of tokens in a batch as well: more than any bucket."""
    return max(case.geometry.requests, largest + 1, 16)


def make_config(case: Case, seams: Seams, largest: int, *, drafts: int, layers: dict[str, Any]) -> Any:
    """Return what stands for `VllmConfig`; `drafts`: speculative tokens, 0 where nothing is drafted."""
    geometry, pool = case.geometry, case.model.index_kpool
    most = max_requests(case, largest)
    text = SimpleNamespace(
        model_type="deepseek_v32", index_topk=geometry.topk, index_kpool=pool, q_lora_rank=None, **_LATENT
    )
    speculative = SimpleNamespace(
        num_speculative_tokens=drafts,
        enable_adaptive_verification=False,
        parallel_drafting=False,
        uses_dynamic_speculative_decoding=lambda: False,
        draft_model_config=None,
    )
    return SimpleNamespace(
        scheduler_config=SimpleNamespace(
            max_num_batched_tokens=most, max_num_seqs=most, async_scheduling=False
        ),
        parallel_config=SimpleNamespace(
            decode_context_parallel_size=1,
            tensor_parallel_size=1,
            prefill_context_parallel_size=1,
            cp_kv_cache_interleave_size=1,
            data_parallel_size=1,
        ),
        model_config=SimpleNamespace(
            max_model_len=geometry.width,
            architectures=["DeepseekV32ForCausalLM"],
            hf_config=text,
            hf_text_config=text,
            dtype=torch.bfloat16,
            get_num_attention_heads=lambda parallel: case.model.heads,
            model_arch_config=SimpleNamespace(total_num_attention_heads=case.model.heads),
        ),
        cache_config=SimpleNamespace(
            block_size=PHYSICAL_PAGE * pool,
            cache_dtype="auto",
            use_replayssm=False,
            replayssm_buffer_len=0,
            mamba_cache_mode="align",
        ),
        speculative_config=speculative if drafts else None,
        num_speculative_tokens=drafts,
        attention_config=SimpleNamespace(
            resolve_indexer_kv_dtype=lambda dtype: dtype,
            sparse_mla_prefill_workspace_factor=5,
            indexer_tp_shard_min_rows=0,
            hisparse_config=None,
        ),
        compilation_config=SimpleNamespace(
            cudagraph_mode=seams.modes.FULL,
            max_cudagraph_capture_size=most,
            cudagraph_capture_sizes=list(case.model.buckets),
            static_forward_context=layers,
        ),
        mamba_config=SimpleNamespace(backend=None),
    )
