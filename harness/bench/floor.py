"""Bare launches: what the host time and device span of one refresh are held against."""

from __future__ import annotations

from typing import Any

import torch

from harness.bench.meter import Call
from harness.sut.embedded.fused_runtime import load, prepare

KERNEL = "harness.bench.floor_kernel"
LONG, SHORT, NUMBERS = 4, 21, 5
"""Arguments of the fused refresh: int64 tensors, int32 tensors, and numbers."""


def triton_launches(device: torch.device) -> dict[str, Call]:
    """Return launches, by name, of a Triton kernel with as many arguments as the fused refresh, unused.

    One is launched as Triton does it by itself, one prepared as the fused refresh is.
    """
    kernel = load(KERNEL, "same_arguments", device)
    tensors = [torch.zeros(16, dtype=torch.int64, device=device) for _ in range(LONG)]
    tensors += [torch.zeros(16, dtype=torch.int32, device=device) for _ in range(SHORT)]
    arguments: tuple[Any, ...] = (*tensors, *[64] * NUMBERS)

    def launch() -> None:
        kernel[(1,)](*arguments)

    return {
        "Triton launch": launch,
        "prepared launch": prepare(kernel, 1, 4, arguments, {}),
    }
