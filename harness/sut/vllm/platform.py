"""vLLM's platform object, in a form that needs neither NVML nor vLLM's compiled code.

vLLM's own detection wants both. Everything that metadata builders ask of a platform is answered from a few
facts about the device, an H200's on a CPU.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class Device:
    """What a platform says of its device."""

    name: str
    major: int
    minor: int
    workers: int
    """Streaming multiprocessors."""


SIMULATED = Device("NVIDIA H200", 9, 0, 132)


def real_device() -> Device:
    """Return the facts of the current CUDA device."""
    found = torch.cuda.get_device_properties(torch.cuda.current_device())
    return Device(found.name, found.major, found.minor, found.multi_processor_count)


def make_platform(interface: Any, device: Device) -> Any:
    """Return a CUDA platform of vLLM's own base class (`interface`: `vllm.platforms.interface`)."""

    class SlimCudaPlatform(interface.Platform):  # type: ignore[misc]
        """The part of vLLM's CUDA platform that metadata builders ask."""

        _enum = interface.PlatformEnum.CUDA
        device_name = device_type = "cuda"
        dispatch_key = "CUDA"

        @classmethod
        def get_device_capability(cls, device_id: int = 0) -> Any:
            return interface.DeviceCapability(device.major, device.minor)

        @classmethod
        def get_device_name(cls, device_id: int = 0) -> str:
            return device.name

        @classmethod
        def num_compute_units(cls, device_id: int = 0) -> int:
            return device.workers

        @classmethod
        def is_pin_memory_available(cls) -> bool:
            return False

        @classmethod
        def support_deep_gemm(cls) -> bool:
            return True

    return SlimCudaPlatform()
