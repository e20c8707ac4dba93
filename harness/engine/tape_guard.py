"""What a graph cannot hold: host reads of device data, shapes that depend on data, random draws.

A tape runs on a CPU, where all of these would work, so it has to refuse what CUDA refuses. Dispatch
sees `item`, `bool`, `int` and `torch.equal`; the other host reads never reach the dispatcher and
are caught as torch functions. Known to slip through: `data_ptr()` and `list(tensor)`, which CUDA
allows in a capture too, `torch.utils.dlpack.to_dlpack`, and readers that go through the storage
(`untyped_storage().tolist()`, pickle).
`.to("cpu")` is a host read when the device is named by that string; a `torch.device` object may be
the engine's own device, on which CUDA would copy nothing, and passes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch._ops import OpOverload
from torch.overrides import TorchFunctionMode

from harness.engine.dispatch import Traits, argument, tensors_in
from harness.errors import CaptureError

HOST_READS: Mapping[Callable[..., Any], str] = {
    torch.Tensor.tolist: "Tensor.tolist",
    torch.Tensor.cpu: "Tensor.cpu",
    torch.Tensor.numpy: "Tensor.numpy",
    torch.Tensor.__array__: "Tensor.__array__ (np.asarray)",
    torch.Tensor.__repr__: "Tensor.__repr__ (print)",
    torch.Tensor.__format__: "Tensor.__format__ (an f-string)",
    torch.Tensor.__dlpack__: "Tensor.__dlpack__",
}
"""Torch functions that hand tensor contents to the host without an operation."""


_WATCHED = frozenset({torch.Tensor.to, *HOST_READS})
_ASSIGNMENTS = frozenset({"aten.index_put", "aten.index_put_", "aten._index_put_impl_"})
_SHAPERS = _ASSIGNMENTS | {"aten.index", "aten.repeat_interleave"}
"""Operations whose shapes depend on data for some arguments only."""


def host_read(func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any] | None) -> str:
    """Return how a person writes the host read that this torch function is, empty if it is none."""
    if func is torch.Tensor.to:
        target = args[1] if len(args) > 1 else None
        named = (kwargs or {}).get("device", target)
        return 'Tensor.to("cpu")' if isinstance(named, str) and named.startswith("cpu") else ""
    return HOST_READS.get(func, "")


class HostReads(TorchFunctionMode):
    """Calls `on_read` with the name of every host read that dispatch does not see, before it happens."""

    def __init__(self, on_read: Callable[[str], None]) -> None:
        """Report to `on_read`, which may raise."""
        super().__init__()
        self._on_read = on_read

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func in _WATCHED:
            name = host_read(func, args, kwargs)
            if name:
                self._on_read(name)
        return func(*args, **kwargs) if kwargs else func(*args)


def refuse_host_read(name: str) -> CaptureError:
    """Return the error for a host read."""
    return CaptureError(
        f"capture: {name} reads device data on the host, which a graph cannot hold; read it before the "
        "capture or keep it on the device"
    )


def refusal(
    func: OpOverload,
    traits: Traits,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    constants: Callable[[Any], bool],
) -> CaptureError | None:
    """Return why a graph cannot hold an operation, None if it can.

    constants: tells whether a tensor is a Python value lifted into the capture; assigning one
    through a bool mask becomes a fill, which needs no shape from data.
    """
    if not (
        traits.reads_host or traits.rebinds or traits.dynamic or traits.random or traits.name in _SHAPERS
    ):
        return None
    if traits.reads_host:
        return refuse_host_read(traits.name)
    if traits.rebinds:
        return CaptureError(
            f"capture: {traits.name} gives a tensor another size or storage, which a graph cannot hold; "
            "make the tensor in its final size before the capture"
        )
    if _shape_from_data(func, traits, args, kwargs, constants):
        return CaptureError(
            f"capture: the result shape of {traits.name} depends on device data, which a graph cannot hold; "
            "use a fixed size (torch.where, index_select, an output_size)"
        )
    if traits.random and argument(
        func, "dropout_p", args, kwargs, default=None if _has(func, "dropout_p") else 1.0
    ):
        return CaptureError(
            f"capture: {traits.name} draws random numbers, which would differ at every replay; "
            "a forward under test has to be deterministic"
        )
    return None


def _has(func: OpOverload, name: str) -> bool:
    return any(declared.name == name for declared in func._schema.arguments)


def _shape_from_data(
    func: OpOverload,
    traits: Traits,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    constants: Callable[[Any], bool],
) -> bool:
    if traits.name == "aten.index":
        return _masked(argument(func, "indices", args, kwargs))
    if traits.name in _ASSIGNMENTS:
        values = argument(func, "values", args, kwargs)
        return _masked(argument(func, "indices", args, kwargs)) and not (
            values.numel() == 1 and constants(values)
        )
    if traits.name == "aten.repeat_interleave":
        return argument(func, "output_size", args, kwargs) is None
    return traits.dynamic


def _masked(indices: Any) -> bool:
    return any(index.dtype in (torch.bool, torch.uint8) for index in tensors_in(indices))
