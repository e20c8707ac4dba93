"""Triton kernels on a CPU: each launch is one opaque node that tells exactly which elements it wrote.

Triton's interpreter runs a package's own kernels program by program and accesses memory by raw addresses.
`Interpreter` stands in for its grid executor: it traces every load, store and atomic while the executor
runs, maps them to the tensors that the kernel was given, and reports the stores through
`probe.launches.perform`, so that a tape can run the launch again and a ledger can count its writes.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from harness.probe.launches import Launch, Written, perform
from harness.sut.memo import Effect, Memory, Trace, effect_of, launch_key
from harness.sut.patches import Patches

Reach = Mapping[str, Callable[[], Sequence[torch.Tensor]]]


def opaque(kernel: str, tensors: Iterable[torch.Tensor], body: Callable[[], tuple[Written, ...]]) -> None:
    """Run a kernel that torch's dispatcher does not see, and tell the modes in force what it wrote.

    Function modes (a capture's guard against host reads) are off while it runs, as they are for a
    kernel on a GPU.
    """

    def run() -> tuple[Written, ...]:
        with torch._C.DisableTorchFunction():
            return body()

    perform(Launch(kernel, run, tuple(tensors)))


class Interpreter:
    """Runs Triton launches; one a process, so that what it remembers serves every case."""

    def __init__(self) -> None:
        self.memory = Memory()

    def intercept(self, patches: Patches, beyond: Reach | None = None) -> None:
        """Route every interpreted launch through `perform` until the patches are undone.

        beyond: for kernels that are given addresses in a table, by kernel name: the tensors that lie there.
        """
        from triton.runtime.interpreter import GridExecutor

        execute = GridExecutor.__call__
        interpreter = self

        def launch(self: Any, *args: Any, **kwargs: Any) -> None:
            arguments = (*args, *kwargs.values())
            name = self.fn.__name__
            tensors = [value for value in arguments if isinstance(value, torch.Tensor)]
            if beyond is not None and name in beyond:
                tensors += beyond[name]()

            def body() -> tuple[Written, ...]:
                key = launch_key(self.fn, self.grid, (*arguments, *kwargs))
                effect = interpreter.memory.find(key, tensors)
                if effect is not None:
                    effect.apply(tensors)
                else:
                    effect = _traced(name, lambda: execute(self, *args, **kwargs), tensors)
                    interpreter.memory.keep(key, effect)
                return tuple(part.written(tensors) for part in effect.writes)

            opaque(f"triton:{name}", tensors, body)

        patches.attribute(GridExecutor, "__call__", launch)


def _traced(kernel: str, execute: Callable[[], None], tensors: Sequence[torch.Tensor]) -> Effect:
    trace = Trace()
    with Patches() as patches, warnings.catch_warnings():
        # Triton turns arrays of one element into scalars, which NumPy deprecates.
        warnings.simplefilter("ignore", DeprecationWarning)
        _record(patches, trace)
        _lighten(patches)
        execute()
    return effect_of(kernel, trace, tensors)


def _lighten(patches: Patches) -> None:
    """Leave out work of the interpreter that changes no result; it is more than half of its time."""
    from triton.runtime import interpreter

    # Overflow checks end in device assertions, which a kernel compiled without debugging drops as well.
    builder = interpreter.interpreter_builder
    patches.attribute(builder, "options", replace(builder.options, sanitize_overflow=False))
    # Each call of a device function patches the language again, though the launch has done so.
    patch_language = interpreter._patch_lang
    patched: set[int] = set()

    def patch_once(function: Any) -> Any:
        if id(function.__globals__) in patched:
            return interpreter._LangPatchScope()
        patched.add(id(function.__globals__))
        return patch_language(function)

    patches.attribute(interpreter, "_patch_lang", patch_once)


def _record(patches: Patches, trace: Trace) -> None:
    """Have the interpreter's builder note every access until the patches are undone."""
    from triton.runtime.interpreter import InterpreterBuilder as Builder

    load, store = Builder.create_masked_load, Builder.create_masked_store
    exchange, update = Builder.create_atomic_cas, Builder.create_atomic_rmw

    def masked_load(self: Any, ptrs: Any, mask: Any, *rest: Any) -> Any:
        result = load(self, ptrs, mask, *rest)
        chosen = mask.data.astype(np.bool_)
        trace.loads.append((ptrs.data[chosen], result.data[chosen]))
        return result

    def masked_store(self: Any, ptrs: Any, value: Any, mask: Any, *rest: Any) -> Any:
        trace.stores.append((ptrs.data[mask.data.astype(np.bool_)], value.data.dtype))
        return store(self, ptrs, value, mask, *rest)

    def atomic_cas(self: Any, ptr: Any, cmp: Any, val: Any, *rest: Any) -> Any:
        trace.atomic = True
        trace.stores.append((ptr.data.reshape(-1), val.data.dtype))
        return exchange(self, ptr, cmp, val, *rest)

    def atomic_rmw(self: Any, op: Any, ptr: Any, val: Any, mask: Any, *rest: Any) -> Any:
        trace.atomic = True
        trace.stores.append((ptr.data[mask.data.astype(np.bool_)], val.data.dtype))
        return update(self, op, ptr, val, mask, *rest)

    patches.attribute(Builder, "create_masked_load", masked_load)
    patches.attribute(Builder, "create_masked_store", masked_store)
    patches.attribute(Builder, "create_atomic_cas", atomic_cas)
    patches.attribute(Builder, "create_atomic_rmw", atomic_rmw)
