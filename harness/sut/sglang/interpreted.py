"""Triton kernels on a CPU: each launch is one opaque node that tells exactly which elements it wrote.

Triton's interpreter runs SGLang's own kernels program by program and writes through raw addresses.
`launch` stands in for its grid executor: it records the addresses of every store and atomic while the
executor runs, maps them to the tensors that the kernel was given, and reports them through
`probe.launches.perform`, so that a tape can run the launch again and a ledger can count its writes.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from harness.errors import HarnessError
from harness.probe.launches import Launch, Written, perform
from harness.sut.sglang.patches import Patches

Addresses = list[NDArray[np.uint64]]


def opaque(kernel: str, tensors: Iterable[torch.Tensor], body: Callable[[], tuple[Written, ...]]) -> None:
    """Run a kernel that torch's dispatcher does not see, and tell the modes in force what it wrote.

    Function modes (a capture's guard against host reads) are off while it runs, as they are for a
    kernel on a GPU.
    """

    def run() -> tuple[Written, ...]:
        with torch._C.DisableTorchFunction():
            return body()

    perform(Launch(kernel, run, tuple(tensors)))


def intercept(patches: Patches) -> None:
    """Route every interpreted Triton launch through `perform` until the patches are undone."""
    from triton.runtime.interpreter import GridExecutor

    execute = GridExecutor.__call__

    def launch(self: Any, *args: Any, **kwargs: Any) -> None:
        tensors = [value for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor)]

        def body() -> tuple[Written, ...]:
            addresses: Addresses = []
            with _recorded_stores(addresses), warnings.catch_warnings():
                # Triton turns arrays of one element into scalars, which NumPy deprecates.
                warnings.simplefilter("ignore", DeprecationWarning)
                execute(self, *args, **kwargs)
            return written_elements(self.fn.__name__, addresses, tensors)

        opaque(f"triton:{self.fn.__name__}", tensors, body)

    patches.attribute(GridExecutor, "__call__", launch)


def _recorded_stores(addresses: Addresses) -> AbstractContextManager[Any]:
    from triton.runtime.interpreter import InterpreterBuilder as Builder

    store = Builder.create_masked_store
    exchange, update = Builder.create_atomic_cas, Builder.create_atomic_rmw

    def masked_store(self: Any, ptrs: Any, value: Any, mask: Any, *rest: Any) -> Any:
        addresses.append(ptrs.data[mask.data.astype(np.bool_)])
        return store(self, ptrs, value, mask, *rest)

    def atomic_cas(self: Any, ptr: Any, *rest: Any) -> Any:
        addresses.append(ptr.data.reshape(-1))
        return exchange(self, ptr, *rest)

    def atomic_rmw(self: Any, op: Any, ptr: Any, val: Any, mask: Any, *rest: Any) -> Any:
        addresses.append(ptr.data[mask.data.astype(np.bool_)])
        return update(self, op, ptr, val, mask, *rest)

    patches = Patches()
    patches.attribute(Builder, "create_masked_store", masked_store)
    patches.attribute(Builder, "create_atomic_cas", atomic_cas)
    patches.attribute(Builder, "create_atomic_rmw", atomic_rmw)
    return patches


def written_elements(
    kernel: str, addresses: Addresses, tensors: Iterable[torch.Tensor]
) -> tuple[Written, ...]:
    """Map store addresses to the tensors that own them; HarnessError for one that none of them owns."""
    if not addresses:
        return ()
    left = np.unique(np.concatenate([block.reshape(-1) for block in addresses]))
    written = []
    for tensor in tensors:
        storage = tensor.untyped_storage()
        base = storage.data_ptr()
        inside = (left >= base) & (left < base + storage.nbytes())
        if inside.any():
            elements = ((left[inside] - np.uint64(base)) // np.uint64(tensor.element_size())).astype(np.int64)
            written.append(Written(tensor, torch.from_numpy(elements)))
            left = left[~inside]
    if left.size:
        raise HarnessError(f"kernel {kernel} stored {left.size} elements outside every tensor it was given")
    return tuple(written)
