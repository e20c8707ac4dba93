"""Sharing one metadata object between the draft steps, as a drop-in for the released SGLang classes.

The described change, applied from outside: at graph-state init, steps 1.. size their KV counter and nothing
else; at capture of a bucket they point at step 0's metadata; at replay only step 0 refreshes, straight into
its captured buffers, and the others re-point. `install()` patches the classes of the SGLang that is
importable, `uninstall()` puts them back exactly as they were. An SGLang that shares by itself is left alone.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any

from harness.errors import HarnessError, UsageError
from harness.sut.patches import Patches

_INSTALLED = "_replay_harness_sharing"
"""Attribute of the multi-step class that holds the patches in force."""

BACKEND_MODULE = "sglang.srt.layers.attention.dsa_backend"


@dataclass(frozen=True)
class Options:
    """How step 0 is refreshed."""

    staged: bool = False
    """Through the precomputed temporaries and one copy, instead of straight into the captured buffers."""
    in_graph: bool = False
    """By `init_forward_metadata_in_graph`, that is inside the captured draft graph (direct form)."""


def shares_by_itself() -> bool:
    """Return whether the importable SGLang has the change already."""
    return hasattr(_classes()[0], "_share_cuda_graph_metadata") and not is_installed()


def is_installed() -> bool:
    """Return whether the drop-in is in force."""
    return _INSTALLED in vars(_classes()[1])


def install(options: Options | None = None) -> None:
    """Patch the two backend classes.

    Raises HarnessError if it is installed already, UsageError if this SGLang shares by itself.
    """
    step, multi = _classes()
    if is_installed():
        raise HarnessError("sharing is installed already: call uninstall() first")
    if shares_by_itself():
        raise UsageError("this SGLang shares the draft steps' metadata by itself: nothing to install")
    patches = Patches()
    for owner, methods in ((step, _step_methods()), (multi, _multi_methods(options or Options()))):
        for name, method in methods.items():
            patches.attribute(owner, name, method)
    patches.attribute(multi, _INSTALLED, patches)


def uninstall() -> None:
    """Put the classes back. HarnessError if the drop-in is not installed."""
    multi = _classes()[1]
    if not is_installed():
        raise HarnessError("sharing is not installed")
    with getattr(multi, _INSTALLED):
        pass  # leaving the context undoes the patches


def _classes() -> tuple[type[Any], type[Any]]:
    module = importlib.import_module(BACKEND_MODULE)
    return module.DeepseekSparseAttnBackend, module.DeepseekSparseAttnMultiStepBackend


def _step_methods() -> dict[str, Any]:
    def _init_cuda_graph_state_shared(self: Any, max_bs: int, max_num_tokens: int) -> None:
        """Make room for shared entries; of a step's own buffers only the KV counter is sized."""
        self.decode_cuda_graph_metadata = {}
        if hasattr(self, "_ensure_multi_ctas_kv_counter_capacity"):  # releases before 0.5.22 have none
            self._ensure_multi_ctas_kv_counter_capacity(max(max_bs, max_num_tokens))

    def _share_cuda_graph_metadata(self: Any, first: Any, bs: int) -> None:
        """Point this bucket's entry and the active metadata at step 0's object."""
        self.set_dsa_prefill_impl(forward_batch=None)
        metadata = first.decode_cuda_graph_metadata[bs]
        self.decode_cuda_graph_metadata[bs] = metadata
        self.forward_metadata = metadata

    return {
        "_init_cuda_graph_state_shared": _init_cuda_graph_state_shared,
        "_share_cuda_graph_metadata": _share_cuda_graph_metadata,
    }


def _multi_methods(options: Options) -> dict[str, Any]:
    batches = importlib.import_module("sglang.srt.model_executor.forward_batch_info")
    decode = batches.ForwardMode.DECODE

    def view(forward_batch: Any) -> Any:
        return batches.build_inner_fb_view(forward_batch, bs=forward_batch.batch_size, forward_mode=decode)

    def staged_refresh(first: Any, batch: Any) -> None:
        precomputed = first._precompute_replay_metadata(
            bs=batch.batch_size,
            req_pool_indices=batch.req_pool_indices,
            seq_lens=batch.seq_lens,
            seq_lens_cpu=batch.seq_lens_cpu,
            forward_mode=decode,
        )
        first.init_forward_metadata_replay_cuda_graph_from_precomputed(
            bs=batch.batch_size, precomputed=precomputed, forward_mode=decode
        )

    def init_cuda_graph_state(self: Any, max_bs: int, max_num_tokens: int) -> None:
        first, *others = self.attn_backends
        first.init_cuda_graph_state(max_bs, max_num_tokens)
        for backend in others:
            backend._init_cuda_graph_state_shared(max_bs, max_num_tokens)

    def init_forward_metadata_out_graph(self: Any, forward_batch: Any, in_capture: bool = False) -> None:
        first, *others = self.attn_backends
        bs = forward_batch.batch_size
        if in_capture or not (options.staged or options.in_graph):
            first.init_forward_metadata_out_graph(view(forward_batch), in_capture=in_capture)
        elif options.staged:
            staged_refresh(first, forward_batch)
        else:  # the graph refreshes; an eager call in between may have changed what is active
            first.set_dsa_prefill_impl(forward_batch=None)
            first.forward_metadata = first.decode_cuda_graph_metadata[bs]
        for backend in others:
            backend._share_cuda_graph_metadata(first, bs)

    def init_forward_metadata_in_graph(self: Any, forward_batch: Any) -> None:
        if options.in_graph:
            self.attn_backends[0].init_forward_metadata_out_graph(view(forward_batch))

    return {
        "init_cuda_graph_state": init_cuda_graph_state,
        "init_forward_metadata_out_graph": init_forward_metadata_out_graph,
        "init_forward_metadata_in_graph": init_forward_metadata_in_graph,
    }
