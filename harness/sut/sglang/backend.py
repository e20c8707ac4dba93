"""Building SGLang's backends without a model, and the batches that they read.

A backend is made without its `__init__`, which wants a model runner, by setting the attributes that the
metadata code reads (as the release's own test kit does). What runs afterwards is SGLang's code.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from harness.case import PHYSICAL_PAGE, Case
from harness.rounds import Inputs
from harness.sut.sglang.seams import Seams
from harness.types import Kernel, Mode

DECODE_IMPLEMENTATIONS = {
    Kernel.FA3: "fa3",
    Kernel.TRTLLM: "trtllm",
    Kernel.FLASHMLA_KV: "flashmla_kv",
}
ARANGE = 16384
"""Elements of the index buffer that SGLang's constructor makes."""
FLASHMLA_HEADS = (64, 128)
"""Query heads that FlashMLA is built for; fewer are padded."""

FORWARD_MODES = {
    Mode.DECODE: "DECODE",
    Mode.TARGET_VERIFY: "TARGET_VERIFY",
    Mode.DRAFT_EXTEND: "DRAFT_EXTEND_V2",
}


class Batches:
    """Persistent input tensors of all buckets, and one forward batch a bucket."""

    def __init__(self, case: Case, seams: Seams, buckets: tuple[int, ...], device: torch.device) -> None:
        largest = max(buckets)
        geometry = case.geometry
        self.table = torch.zeros((geometry.requests, geometry.width), dtype=torch.int32, device=device)
        """`req_to_token`, int32 `[requests, W]`."""
        self._lengths = torch.ones(largest, dtype=torch.int64, device=device)
        self._requests = torch.zeros(largest, dtype=torch.int64, device=device)
        self._accepted = torch.ones(largest, dtype=torch.int32, device=device)
        self._mode = getattr(seams.forward_mode, FORWARD_MODES[case.mode])
        self._decode = seams.forward_mode.DECODE
        self._extend = case.mode is Mode.DRAFT_EXTEND
        self._mirrors: dict[int, torch.Tensor] = {}
        self._batches = {bucket: self._batch(bucket) for bucket in buckets}

    def _batch(self, bucket: int) -> SimpleNamespace:
        accepted = self._accepted[:bucket]
        return SimpleNamespace(
            batch_size=bucket,
            forward_mode=self._mode,
            seq_lens=self._lengths[:bucket],
            req_pool_indices=self._requests[:bucket],
            seq_lens_cpu=None,
            seq_lens_sum=None,
            spec_info=SimpleNamespace(num_accept_tokens=accepted) if self._extend else None,
        )

    def __getitem__(self, bucket: int) -> SimpleNamespace:
        return self._batches[bucket]

    def inputs(self) -> dict[str, torch.Tensor]:
        """Return the persistent input tensors by name."""
        return {
            "seq_lens": self._lengths,
            "req_pool_indices": self._requests,
            "num_accept_tokens": self._accepted,
            "req_to_token": self.table,
        }

    def stage(self, inputs: Inputs, *, lagging: bool = False) -> None:
        """Write a round into the persistent tensors, and its host mirrors into the bucket's batch.

        lagging: give the mirrors of the bucket's previous round, as a server may that knows better than
        to wait for the device.
        """
        bucket = inputs.bucket
        for target, source in (
            (self._lengths[:bucket], inputs.lengths),
            (self._requests[:bucket], inputs.requests),
            (self._accepted[:bucket], inputs.accepted),
            (self.table, inputs.table),
        ):
            target.copy_(_tensor(source))
        batch = self._batches[bucket]
        mirror = _tensor(inputs.lengths).clone()
        given = self._mirrors.get(bucket, torch.ones_like(mirror)) if lagging else mirror
        batch.seq_lens_cpu, batch.seq_lens_sum = given, int(given.sum())
        self._mirrors[bucket] = mirror

    def oversize(self, rows: int) -> SimpleNamespace:
        """Return a decode batch of its own tensors, every row one token of the reserved request."""
        device = self.table.device
        return SimpleNamespace(
            batch_size=rows,
            forward_mode=self._decode,
            seq_lens=torch.ones(rows, dtype=torch.int64, device=device),
            req_pool_indices=torch.zeros(rows, dtype=torch.int64, device=device),
            seq_lens_cpu=torch.ones(rows, dtype=torch.int64),
            seq_lens_sum=rows,
            spec_info=None,
            global_num_tokens_cpu=None,
            attn_cp_metadata=None,
        )


def _tensor(array: NDArray[Any]) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(array))


def device_major(device: torch.device) -> int:
    """Return the major compute capability of a GPU, 9 (Hopper) for a CPU that simulates one."""
    return torch.cuda.get_device_capability(device)[0] if device.type == "cuda" else 9


def make_step(case: Case, seams: Seams, batches: Batches, step: int, largest: int) -> Any:
    """Make one step's `DeepseekSparseAttnBackend`; call it where SGLang may be called."""
    device = batches.table.device
    major = device_major(device)
    heads = case.model.heads
    rows = largest * case.variant.draft_tokens
    implementation = DECODE_IMPLEMENTATIONS[case.kernel]
    backend = object.__new__(seams.step_backend)
    vars(backend).update(
        {
            seams.physical_page: case.model.page_size // case.model.index_kpool,
            "device": device,
            "device_sm_major": major,
            "num_q_heads": heads,
            "num_dcp_q_heads": heads,
            "flashmla_kv_num_q_heads": min((h for h in FLASHMLA_HEADS if h >= heads), default=heads),
            "dsa_index_topk": case.geometry.topk,
            "dsa_index_kpool": case.model.index_kpool,
            "dsa_decode_impl": implementation,
            "dsa_prefill_impl": implementation,
            "dsa_topk_backend": seams.topk_backend,
            "dsa_kv_cache_store_fp8": case.kernel is Kernel.FLASHMLA_KV,
            "enable_auto_select_prefill_impl": False,
            "use_fused_topk": True,
            "use_mha": False,
            "speculative_num_draft_tokens": case.variant.draft_tokens,
            "speculative_step_id": step,
            "req_to_token": batches.table,
            "req_to_token_pool": SimpleNamespace(req_to_token=batches.table),
            "token_to_kv_pool": SimpleNamespace(**{seams.index_page: PHYSICAL_PAGE}),
            "hisparse_coordinator": None,
            "_kv_shard_pool": None,
            "_memory_saver_adapter": seams.memory_saver,
            "_arange_buf": torch.arange(max(ARANGE, rows + 1), dtype=torch.int32, device=device),
            "_is_in_breakable_cuda_graph": lambda: False,
            "_is_in_tc_piecewise_cuda_graph": lambda: False,
            "_get_device_sm": lambda: major * 10,
            "_is_blackwell": lambda: major == 10,
            "_multi_ctas_kv_counter_buffer": None,
        }
    )
    if case.kernel is Kernel.TRTLLM:
        backend._multi_ctas_kv_counter_buffer = seams.counters.make_persistent_multi_ctas_kv_counter_buffer(
            device, heads, max_batch_size=largest
        )
    with seams.environment.SGLANG_EXPERIMENTAL_DSA_KPOOL_METADATA_FUSION.override(case.fusion):
        backend._init_kpool_metadata_fusion()
    return backend


def make_multi(case: Case, seams: Seams, batches: Batches, largest: int) -> Any:
    """Make the `DeepseekSparseAttnMultiStepBackend` of S - 1 steps; call it where SGLang may be called."""
    multi = object.__new__(seams.multi_backend)
    multi.topk = case.variant.topk
    multi.speculative_num_steps = case.variant.steps
    multi._sink_pad_cache = {}
    multi.attn_backends = [make_step(case, seams, batches, step, largest) for step in range(case.backends)]
    return multi
