"""What SGLang needs on a real GPU: launches that a ledger can see.

Triton and JIT kernels bypass torch's dispatcher. They are wrapped where SGLang calls them and declare what
they write: whole tensors for Triton kernels, by argument name, and the exact views for the copies and plans.
A kernel that is in no list declares nothing; what it writes then shows as an unattributed write.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from harness.case import PlanRule
from harness.probe.launches import Launch, Written, perform
from harness.sut.patches import Patches
from harness.sut.sglang.seams import Seams
from harness.sut.sglang.standins import copy_pairs, multi_copy_pairs

_BASE_LEAVES = (
    "cache_seqlens", "cu_seqlens_k", "page_table_1",
    "dsa_cache_seqlens", "dsa_cu_seqlens_k", "real_page_table",
)  # fmt: skip
TRITON_OUTPUTS = {
    "_fused_dsa_decode_metadata_kernel": _BASE_LEAVES,
    "_fused_dsa_decode_metadata_kpool_kernel": _BASE_LEAVES,
    "_fused_dsa_target_verify_metadata_kernel": (*_BASE_LEAVES, "seqlens_expanded"),
    "_fused_dsa_target_verify_metadata_kpool_kernel": (*_BASE_LEAVES, "seqlens_expanded"),
    "_fused_dsa_draft_extend_metadata_kernel": (*_BASE_LEAVES, "seqlens_expanded"),
    "_fused_dsa_draft_extend_metadata_kpool_kernel": (*_BASE_LEAVES, "seqlens_expanded"),
    "_update_kpool_write_plan_kernel": (
        "req_out_ptr", "write_start_out_ptr", "tail_logical_start_out_ptr", "write_loc_out_ptr",
        "pool_seqlens_per_q_out_ptr", "seqlens_per_q_out_ptr",
    ),
}  # fmt: skip
"""Names of the arguments that SGLang's Triton kernels write, by kernel."""


def build_kernels(seams: Seams) -> None:
    """Build the JIT modules of the metadata path side by side: the first time, up to a minute each."""
    jobs: list[Callable[[], Any]] = [seams.topk._jit_topk_v2_module]
    for tiles in (False, True):
        jobs.append(partial(seams.copies._jit_fused_metadata_copy_multi_module, True, tiles))
        for mode in (0, 1):
            jobs.append(partial(seams.copies._jit_fused_metadata_copy_module, mode, True, tiles))
    with ThreadPoolExecutor(len(jobs)) as pool:
        for built in [pool.submit(job) for job in jobs]:
            built.result()


def declare_launches(patches: Patches, seams: Seams, rule: PlanRule) -> None:
    """Report Triton launches, fused copies and top-k plans through `perform` until the patches are undone."""
    from triton.runtime.jit import JITFunction

    launch = JITFunction.run

    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        name = self.fn.__name__
        given = dict(zip(self.arg_names, args, strict=False)) | kwargs
        tensors = {key: value for key, value in given.items() if isinstance(value, torch.Tensor)}
        outputs = [tensors[key] for key in TRITON_OUTPUTS.get(name, ()) if key in tensors]
        return _declared(
            f"triton:{name}", tuple(tensors.values()), outputs, lambda: launch(self, *args, **kwargs)
        )

    patches.attribute(JITFunction, "run", run)
    plans = seams.topk._jit_topk_v2_module
    single = seams.copies._jit_fused_metadata_copy_module
    multi = seams.copies._jit_fused_metadata_copy_multi_module

    def copies(mode: int, *rest: Any) -> _Copies:
        return _Copies(single(mode, *rest), decode=mode == 0)

    def multi_copies(*args: Any) -> _Copies:
        return _Copies(multi(*args), decode=True)

    patches.attribute(seams.topk, "_jit_topk_v2_module", lambda: _Plans(plans(), rule))
    patches.attribute(seams.copies, "_jit_fused_metadata_copy_module", copies)
    patches.attribute(seams.copies, "_jit_fused_metadata_copy_multi_module", multi_copies)


def _declared(
    kernel: str, tensors: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor], call: Callable[[], Any]
) -> Any:
    """Run a kernel as one launch that writes `outputs`; return what it returns."""
    results: list[Any] = []

    def body() -> tuple[Written, ...]:
        results.append(call())
        return tuple(Written(tensor) for tensor in outputs)

    perform(Launch(kernel, body, tuple(tensors)))
    return results[0]


@dataclass(frozen=True)
class _Plans:
    """The JIT module of top-k v2 with plans that declare what they write."""

    module: Any
    rule: PlanRule

    def topk_plan(self, seq_lens: torch.Tensor, plan: torch.Tensor, static_threshold: int) -> None:
        """Plan; small and large batches leave the plan as it was."""
        written = self.rule.min_rows <= seq_lens.shape[0] <= self.rule.max_rows
        _declared(
            "topk_plan", (seq_lens, plan), (plan,) if written else (),
            lambda: self.module.topk_plan(seq_lens, plan, static_threshold),
        )  # fmt: skip

    def __getattr__(self, name: str) -> Any:
        return getattr(self.module, name)


@dataclass(frozen=True)
class _Copies:
    """A JIT module of the fused copies that declares the views it writes."""

    module: Any
    decode: bool

    def fused_metadata_copy(self, *args: Any) -> None:
        """Copy to one destination."""
        self._declare("fused_metadata_copy", args, [to for to, _ in copy_pairs(args, decode=self.decode)])

    def fused_metadata_copy_multi(self, *args: Any) -> None:
        """Copy to three destinations."""
        self._declare("fused_metadata_copy_multi", args, [to for to, _ in multi_copy_pairs(args)])

    def _declare(self, kernel: str, args: tuple[Any, ...], outputs: list[torch.Tensor]) -> None:
        tensors = [arg for arg in args if isinstance(arg, torch.Tensor)]
        _declared(kernel, tensors, outputs, lambda: getattr(self.module, kernel)(*args))
