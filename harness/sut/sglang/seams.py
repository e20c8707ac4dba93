"""The places at which SGLang is driven and watched; all that differs between releases is here.

A seam is a class, function or attribute of SGLang that this system calls or wraps. A release that
lacks one cannot be driven: the error names the first that is missing.
"""

from __future__ import annotations

import importlib
import importlib.util
from dataclasses import dataclass, fields
from types import ModuleType
from typing import Any

import torch

from harness.errors import UsageError

_ATTENTION = "sglang.srt.layers.attention"
_OPS = "sglang.kernels.ops.attention"

STEP_METHODS = (
    "init_cuda_graph_state",
    "init_forward_metadata_out_graph",
    "init_forward_metadata_replay_cuda_graph_from_precomputed",
    "_apply_cuda_graph_metadata",
    "_copy_base_replay_buffers",
    "_copy_replay_metadata_from_sibling",
    "_init_kpool_metadata_fusion",
    "_precompute_replay_metadata",
    "_refresh_paged_mqa_schedule_metadata",
    "_refresh_topk_v2_plan",
    "_update_kpool_metadata_from_precomputed",
    "_update_kpool_metadata_replay",
    "set_dsa_prefill_impl",
)
"""Methods of a step's backend that are called or wrapped."""
MULTI_METHODS = ("init_cuda_graph_state", "init_forward_metadata_out_graph", "init_forward_metadata_in_graph")

COUNTER_FUNCTIONS = (
    "make_persistent_multi_ctas_kv_counter_buffer",
    "grow_multi_ctas_kv_counter_buffer_if_needed",
)


@dataclass(frozen=True)
class Seams:
    """SGLang's own objects, found in whatever place this release keeps them."""

    version: str
    backend_module: ModuleType
    step_backend: type[Any]
    """`DeepseekSparseAttnBackend`: one draft step's backend."""
    multi_backend: type[Any]
    """`DeepseekSparseAttnMultiStepBackend`: all draft steps."""
    forward_mode: Any
    """The `ForwardMode` enumeration."""
    topk_backend: Any
    environment: Any
    """`envs`, SGLang's environment switches."""
    parallel: Any
    """`get_parallel()`: the parallel layout, one rank here."""
    memory_saver: Any
    """An inert `TorchMemorySaverAdapter`."""
    copies: ModuleType
    """Holds `fused_metadata_copy_cuda`, `fused_metadata_copy_multi_cuda` and their JIT modules."""
    topk: ModuleType
    """Holds `plan_topk_v2` and its JIT module."""
    counters: ModuleType
    """Holds the functions that make and grow the KV counter."""
    flashmla: str
    """Name of the module that FlashMLA's planner is imported from, at each call."""
    physical_page: str
    """Name of the attribute that holds tokens per physical page."""
    index_page: str
    """Name of the pool attribute that holds pooled keys per index page."""
    lacks: frozenset[str]
    """Leaves that later releases have and this one has not."""
    packs_pools: bool
    """Whether pooled page ids count packed pages (`// P`), as the specification has them."""
    cached: tuple[Any, ...]
    """Cached functions whose answers depend on the device that is simulated."""

    def has_flashmla(self) -> bool:
        """Return whether the package that FlashMLA's planner comes from is installed."""
        package = "sgl_kernel" if self.flashmla.startswith("sgl_kernel") else "flash_mla"
        return importlib.util.find_spec(package) is not None


def find(version: str) -> Seams:
    """Find every seam of the SGLang that is importable now; UsageError names the first that is missing."""
    backend = _module(version, f"{_ATTENTION}.dsa_backend")
    step = _attribute(version, backend, "DeepseekSparseAttnBackend")
    multi = _attribute(version, backend, "DeepseekSparseAttnMultiStepBackend")
    for owner, methods in ((step, STEP_METHODS), (multi, MULTI_METHODS)):
        for method in methods:
            _attribute(version, owner, method)
    copies = _module(version, f"{_OPS}.dsa.fused_metadata_copy", f"{_OPS}.fused_metadata_copy")
    for name in (
        "fused_metadata_copy_cuda", "fused_metadata_copy_multi_cuda",
        "_jit_fused_metadata_copy_module", "_jit_fused_metadata_copy_multi_module",
    ):  # fmt: skip
        _attribute(version, copies, name)
    topk = _module(version, f"{_OPS}.dsv4.topk")
    for name in ("plan_topk_v2", "_jit_topk_v2_module"):
        _attribute(version, topk, name)
    counters = _module(version, f"{_ATTENTION}.trtllm_mla_backend")
    for name in COUNTER_FUNCTIONS:
        _attribute(version, counters, name)
    savers = _module(version, "sglang.srt.utils.torch_memory_saver_adapter")
    batches = _module(version, "sglang.srt.model_executor.forward_batch_info")
    topk_backends = _module(version, f"{_ATTENTION}.dsa.dsa_topk_backend")
    utilities = _module(version, f"{_ATTENTION}.dsa.utils")
    named = (getattr(utilities, name, None) for name in ("resolve_num_sms",))
    older = "real_page_size" in _names(step, "_transform_table_1_to_real")
    return Seams(
        version=version,
        backend_module=backend,
        step_backend=step,
        multi_backend=multi,
        forward_mode=_attribute(version, batches, "ForwardMode"),
        topk_backend=_attribute(version, _attribute(version, topk_backends, "DSATopKBackend"), "SGL_KERNEL"),
        environment=_attribute(version, _module(version, "sglang.srt.environ"), "envs"),
        parallel=_attribute(version, _module(version, "sglang.srt.runtime_context"), "get_parallel")(),
        memory_saver=_attribute(version, savers, "TorchMemorySaverAdapter").create(enable=False),
        copies=copies,
        topk=topk,
        counters=counters,
        flashmla=_flashmla_module(step),
        physical_page="real_page_size" if older else "physical_page_size",
        index_page="slots_per_page" if older else "index_page_size",
        lacks=_lacking(_module(version, f"{_ATTENTION}.dsa.kpool_plan"), backend),
        packs_pools=_packs_pools(_module(version, f"{_ATTENTION}.dsa.kpool_fp8_index")),
        cached=tuple(function for function in named if function is not None),
    )


def _lacking(plans: ModuleType, backend: ModuleType) -> frozenset[str]:
    leaves = {
        "pooled_topk_v2_plan": (backend.DSAMetadata, "pooled_topk_v2_plan"),
        "kpool_write_plan.pool_topk_v2_plan": (plans.KPoolWritePlan, "pool_topk_v2_plan"),
    }
    return frozenset(
        leaf for leaf, (owner, name) in leaves.items() if name not in {field.name for field in fields(owner)}
    )


def _packs_pools(index: ModuleType) -> bool:
    """Ask the release itself: which pooled page holds the keys of physical pages 4 to 7, at P = 4?"""
    return bool(index.build_pooled_page_table_64(torch.arange(4, 8)[None], 4).item() == 1)


def _flashmla_module(step: type[Any]) -> str:
    """Return the module that `_compute_flashmla_metadata` imports its planner from."""
    ours = f"{_OPS}.flash_mla_interface"
    return ours if ours in _names(step, "_compute_flashmla_metadata") else "sgl_kernel.flash_mla"


def _names(owner: type[Any], method: str) -> tuple[str, ...]:
    return tuple(getattr(owner, method).__code__.co_names)


def _module(version: str, *names: str) -> ModuleType:
    for name in names:
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name != name:
                raise UsageError(f"SGLang {version} cannot be driven: {name} needs {error.name}") from error
    raise UsageError(f"SGLang {version} cannot be driven: no module {' or '.join(names)}")


def _attribute(version: str, owner: Any, name: str) -> Any:
    try:
        return getattr(owner, name)
    except AttributeError as error:
        raise UsageError(f"SGLang {version} cannot be driven: {owner.__name__} has no {name}") from error
