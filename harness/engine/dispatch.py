"""What an ATen operation does to memory, read from its schema and tags; shared by the tape and the ledger."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode

_ALLOCATES = frozenset(
    {
        "aten::empty",
        "aten::empty_like",
        "aten::empty_strided",
        "aten::empty_permuted",
        "aten::new_empty",
        "aten::new_empty_strided",
    }
)
_REBINDS = frozenset({"aten::resize_", "aten::resize_as_", "aten::_resize_output_", "aten::set_"})
_SILENT_VIEWS = frozenset({"aten::_unsafe_view", "aten::unsafe_split", "aten::unsafe_split_with_sizes"})


@dataclass(frozen=True)
class Traits:
    """One operation's effect on memory."""

    name: str
    """As a person writes it, e.g. `aten.copy_`."""
    written: tuple[tuple[int, str], ...]
    """(position, name) of the arguments whose elements it writes, `out` included."""
    fresh: bool
    """Whether it returns tensors in memory of their own."""
    allocates: bool
    """Whether it only allocates (`empty` and its relatives)."""
    rebinds: bool
    """Whether it gives a tensor another storage or size (`set_`, `resize_`)."""
    reads_host: bool
    """Whether it hands device data to the host (`item`, `equal`)."""
    dynamic: bool
    """Whether the shape of its result depends on data."""
    random: bool
    """Whether it draws from a generator."""
    composite: bool
    """Whether it is a composition of others; under inference mode such operations arrive whole."""

    @functools.cached_property
    def works(self) -> bool:
        """Whether a device would run anything: false of views and allocations."""
        return bool(self.written) or (self.fresh and not self.allocates)


@functools.cache
def traits_of(func: OpOverload) -> Traits:
    """Return what an operation does to memory."""
    schema = func._schema
    packet = func.overloadpacket
    tags = set(func.tags)
    # Generated out= overloads do not inherit the tag of the operation that they are made of.
    family = {tag for name in packet.overloads() for tag in getattr(packet, name).tags}
    changes_geometry = torch.Tag.inplace_view in tags
    written = tuple(
        (position, argument.name)
        for position, argument in enumerate(schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    )
    fresh = schema.name not in _SILENT_VIEWS and any(
        returned.alias_info is None and "Tensor" in str(returned.type) for returned in schema.returns
    )
    return Traits(
        name=str(packet),
        written=() if changes_geometry else written,
        fresh=fresh,
        allocates=schema.name in _ALLOCATES and not written,
        rebinds=schema.name in _REBINDS,
        reads_host=torch.Tag.data_dependent_output in family,
        dynamic=torch.Tag.dynamic_output_shape in family,
        random=torch.Tag.nondeterministic_seeded in tags,
        composite=func._can_decompose(),
    )


@functools.cache
def into(func: OpOverload) -> OpOverload | None:
    """Return the overload that writes a functional operation's one result into `out`; None if there is none.

    Only such a one that has a kernel of its own on a CPU: the generated others compute a result and copy it.
    """
    taken = [(argument.name, str(argument.type)) for argument in func._schema.arguments]
    for name in func.overloadpacket.overloads():
        other: OpOverload = getattr(func.overloadpacket, name)
        has = [(argument.name, str(argument.type)) for argument in other._schema.arguments]
        if has == [*taken, ("out", "Tensor")] and len(other._schema.returns) == 1:
            full = f"{other._schema.name}.{other._schema.overload_name}"
            if torch._C._dispatch_has_kernel_for_dispatch_key(full, "CPU"):
                return other
    return None


def argument(
    func: OpOverload, name: str, args: Sequence[Any], kwargs: Mapping[str, Any], default: Any = None
) -> Any:
    """Return a call's argument by name, or `default` where the call leaves it out."""
    if name in kwargs:
        return kwargs[name]
    for position, declared in enumerate(func._schema.arguments):
        if declared.name == name:
            return args[position] if position < len(args) else default
    return default


def written_tensors(traits: Traits, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[torch.Tensor]:
    """Return the tensors of a call whose elements it writes, lists of them flattened."""
    found: list[torch.Tensor] = []
    for position, name in traits.written:
        _gather(args[position] if position < len(args) else kwargs.get(name), found)
    return found


def tensors_in(value: Any) -> list[torch.Tensor]:
    """Return the tensors of an argument or a result, in order: tensors, lists, tuples, dicts of them."""
    found: list[torch.Tensor] = []
    _gather(value, found)
    return found


def _gather(value: Any, found: list[torch.Tensor]) -> None:
    if isinstance(value, torch.Tensor):
        found.append(value)
    elif isinstance(value, list | tuple):
        for item in value:
            if isinstance(item, torch.Tensor):
                found.append(item)
            elif isinstance(item, list | tuple | dict):
                _gather(item, found)
    elif isinstance(value, dict):
        for item in value.values():
            _gather(item, found)


class OperationMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A dispatch mode that sees plain operations only: compositions are taken apart first.

    Outside inference mode the dispatcher does so itself; inside, `reshape` or `matmul` arrives whole
    and would hide whether it copies.
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # Nothing here is compiled, and the wrapper that torch would add loads its compiler: 2.4 s.
        return False

    def __torch_dispatch__(
        self, func: OpOverload, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        traits = traits_of(func)
        given = kwargs or {}
        if traits.composite:
            with self:
                result = func.decompose(*args, **given)
            if result is not NotImplemented:
                return result
        return self.operation(func, traits, args, given)

    def operation(
        self, func: OpOverload, traits: Traits, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Handle one plain operation; has to call `func._op(*args, **kwargs)` and return its result."""
        raise NotImplementedError
