"""Triton as the fused refresh uses it: compiled on a GPU, interpreted on a CPU, launches prepared once.

Triton decides while it is imported whether kernels are interpreted, its own library included, so one process
can do one of the two.
"""

from __future__ import annotations

import importlib
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import torch

from harness.errors import UsageError

KERNEL = "harness.sut.embedded.fused_kernel"
SWITCH = "TRITON_INTERPRET"
Run = Callable[[], None]


def load_kernel(device: torch.device) -> Any:
    """Return the kernel `fused_kernel.refresh` for a device; raises as `load` does."""
    return load(KERNEL, "refresh", device)


def load(module: str, name: str, device: torch.device) -> Any:
    """Return a kernel of a module that holds Triton functions, compiled for a GPU or interpreted on a CPU.

    Raises UsageError where Triton is not installed, or was imported for the other kind of device.
    """
    interpreted = device.type != "cuda"
    kernel = vars(sys.modules.get(module) or _import(module, interpreted))[name]
    if is_interpreted(kernel) != interpreted or is_interpreted(_language().cdiv) != interpreted:
        raise UsageError(
            f"triton was imported {'without' if interpreted else 'with'} its interpreter in this process "
            f"already: {'set TRITON_INTERPRET=1, or ' if interpreted else ''}start a new process"
        )
    return kernel


def is_interpreted(function: object) -> bool:
    """Return whether a Triton function runs in the interpreter."""
    return type(function).__name__ == "InterpretedFunction"


def version() -> str:
    """Return Triton's version."""
    return str(importlib.import_module("triton").__version__)


def _language() -> Any:
    return importlib.import_module("triton.language.standard")


def _import(module: str, interpreted: bool) -> ModuleType:
    try:
        with _switched(interpreted):
            return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "triton":
            raise
        raise UsageError(
            "the fused refresh needs triton, which is not installed: pip install triton"
        ) from error


@contextmanager
def _switched(interpreted: bool) -> Iterator[None]:
    """Have Triton find its switch set for the block: it asks at imports, some of them at the first launch."""
    before = os.environ.get(SWITCH)
    os.environ[SWITCH] = "1" if interpreted else "0"
    try:
        yield
    finally:
        if before is None:
            del os.environ[SWITCH]
        else:
            os.environ[SWITCH] = before


def prepare(
    kernel: Any, grid: int, warps: int, arguments: tuple[Any, ...], constants: Mapping[str, Any]
) -> Run:
    """Return a function that launches the kernel on these arguments, on the stream that is current then.

    arguments: tensors, numbers and None, in the kernel's order. The caller keeps the tensors alive. All that
    does not change from launch to launch is done here: compiling, specialising, looking up addresses.
    """
    if is_interpreted(kernel):
        return _interpreted(kernel, grid, arguments, constants)
    return _compiled(kernel, grid, warps, arguments, constants)


def _interpreted(kernel: Any, grid: int, arguments: tuple[Any, ...], constants: Mapping[str, Any]) -> Run:
    def run() -> None:
        with torch._C.DisableTorchFunction(), warnings.catch_warnings(), _switched(True):
            # Triton turns arrays of one element into scalars, which NumPy deprecates.
            warnings.simplefilter("ignore", DeprecationWarning)
            kernel[(grid,)](*arguments, **constants)

    return run


def _compiled(
    kernel: Any, grid: int, warps: int, arguments: tuple[Any, ...], constants: Mapping[str, Any]
) -> Run:
    compiled = kernel.warmup(*arguments, grid=(grid,), num_warps=warps, **constants)
    launch = compiled[(grid, 1, 1)]
    # Addresses instead of tensors: the launcher then asks neither torch nor the driver about them.
    given = tuple(
        value.data_ptr() if isinstance(value, torch.Tensor) else value
        for value in (*arguments, *constants.values())
    )

    def run() -> None:
        launch(*given)

    return run
