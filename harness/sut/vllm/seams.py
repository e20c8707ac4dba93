"""The places at which vLLM is driven and watched; a release that lacks one cannot be driven."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from harness.errors import UsageError

_MLA = "vllm.v1.attention.backends.mla"
_GPU = "vllm.v1.worker.gpu"
_DRAFTS = f"{_GPU}.spec_decode.target_dependent_ar.speculator"

LOOP_METHODS = (
    "_multi_step_decode",
    "_fused_multi_step_decode",
    "_generate_fused_drafts",
    "_generate_draft",
    "_build_attn_metadata",
    "_update_draft_decode_metadata",
    "_run_model",
)
"""Methods of the speculator that are called, wrapped or overridden."""


@dataclass(frozen=True)
class Seams:
    """vLLM's own objects."""

    version: str
    speculator: type[Any]
    """`TargetDependentARSpeculator`: the draft decode loop of Model Runner V2."""
    indexer: ModuleType
    """Holds the builders of the sparse indexer and of the pooled keys' tail ring."""
    main: type[Any]
    """`FlashAttnMLASparseBackend`: main sparse attention whose builder has the update hook."""
    state: type[Any]
    """`Mamba1AttentionBackend`: state-space layers, whose metadata is reused across KV-cache groups."""
    specs: ModuleType
    """`vllm.v1.kv_cache_interface`."""
    groups: ModuleType
    """`vllm.v1.worker.utils`: `AttentionGroup`."""
    build: ModuleType
    """`vllm.v1.worker.gpu.attn_utils`: `build_attn_metadata`."""
    inputs: ModuleType
    """`InputBuffers` and `InputBatch`."""
    capture: ModuleType
    """`prepare_inputs_to_capture`, `BatchExecutionDescriptor`."""
    model_state: type[Any]
    """`DefaultModelState`, for its `prepare_attn`."""
    modes: Any
    """`CUDAGraphMode`."""
    tables: ModuleType
    """`BlockTables`."""
    buffers: ModuleType
    """Holds `UvaBuffer`."""
    deep_gemm: ModuleType
    """vLLM's wrapper, which looks DeepGEMM's functions up."""


def find(version: str) -> Seams:
    """Find every seam of the vLLM that is importable now; UsageError names the first that is missing."""

    def module(name: str) -> ModuleType:
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            missing = f"no module {name}" if error.name == name else f"{name} needs {error.name}"
            raise UsageError(f"vLLM {version} cannot be driven: {missing}") from error

    def attribute(owner: Any, name: str) -> Any:
        try:
            return getattr(owner, name)
        except AttributeError as error:
            raise UsageError(f"vLLM {version} cannot be driven: {owner.__name__} has no {name}") from error

    indexer = module(f"{_MLA}.indexer")
    for name in ("DeepseekV32IndexerMetadataBuilder", "KpoolTailMetadataBuilder"):
        for method in ("build", "update_draft_decode_metadata"):
            attribute(attribute(indexer, name), method)
    speculator = attribute(module(_DRAFTS), "TargetDependentARSpeculator")
    for method in LOOP_METHODS:
        attribute(speculator, method)
    return Seams(
        version=version,
        speculator=speculator,
        indexer=indexer,
        main=attribute(module(f"{_MLA}.flashattn_mla_sparse"), "FlashAttnMLASparseBackend"),
        state=attribute(module("vllm.v1.attention.backends.mamba1_attn"), "Mamba1AttentionBackend"),
        specs=module("vllm.v1.kv_cache_interface"),
        groups=module("vllm.v1.worker.utils"),
        build=module(f"{_GPU}.attn_utils"),
        inputs=module(f"{_GPU}.input_batch"),
        capture=module(f"{_GPU}.cudagraph_utils"),
        model_state=attribute(module(f"{_GPU}.model_states.default"), "DefaultModelState"),
        modes=attribute(module("vllm.config.compilation"), "CUDAGraphMode"),
        tables=module(f"{_GPU}.block_table"),
        buffers=module(f"{_GPU}.buffer_utils"),
        deep_gemm=module("vllm.utils.deep_gemm"),
    )
