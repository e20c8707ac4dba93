"""What vLLM needs on a real GPU so that a ledger sees its Triton launches."""

from __future__ import annotations

from typing import Any

import torch

from harness.probe.launches import Launch, Written, perform
from harness.sut.interpreted import Reach
from harness.sut.patches import Patches
from harness.sut.vllm.seams import Seams

OUTPUTS = {
    "_compute_slot_mappings_kernel": ("slot_mappings_ptr",),
    "_kpool_tail_slot_mapping_kernel": ("out_ptr",),
    "_token_request_mapping_kernel": ("output",),
    "_update_draft_inputs_kernel": (
        "output_draft_tokens_ptr", "next_input_hidden_states_ptr", "input_ids_ptr", "positions_ptr",
        "sample_src_positions_ptr", "seq_lens_ptr",
    ),
    "kernel": ("decode_seq_lens_ptr", "expanded_block_table_ptr", "decode_lens_ptr",
               "compressed_slot_mapping_ptr"),
}  # fmt: skip
"""Names of the arguments that vLLM's Triton kernels write, by kernel; `kernel` is what the classes that wrap
one call theirs. A kernel that is in no list declares nothing; what it writes then shows as an unattributed
write."""


def declare_launches(patches: Patches, seams: Seams, beyond: Reach) -> None:
    """Report Triton launches through `perform` until the patches are undone."""
    from triton.runtime.jit import JITFunction

    launch = JITFunction.run

    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        name = self.fn.__name__
        given = dict(zip(self.arg_names, args, strict=False)) | kwargs
        tensors = {key: value for key, value in given.items() if isinstance(value, torch.Tensor)}
        outputs = [tensors[key] for key in OUTPUTS.get(name, ()) if key in tensors]
        reached = list(beyond[name]()) if name in beyond else []
        results: list[Any] = []

        def body() -> tuple[Written, ...]:
            results.append(launch(self, *args, **kwargs))
            return tuple(Written(tensor) for tensor in outputs)

        perform(Launch(f"triton:{name}", body, (*tensors.values(), *reached)))
        return results[0]

    patches.attribute(JITFunction, "run", run)
