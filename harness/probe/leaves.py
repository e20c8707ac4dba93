"""The recursive walk over metadata: every tensor leaf with its bytes, every host value beside it."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Mapping
from enum import Enum
from functools import lru_cache
from itertools import chain
from types import FunctionType, MethodType, ModuleType
from typing import Any

import torch

from harness.fields import COUNTER
from harness.observation import HostFact, LeafFact, Walk
from harness.probe.regions import Regions
from harness.sut.protocol import StepRoots

_SCALARS = (int, float, bool, str, type(None))
_ENDS = (torch.Tensor, *_SCALARS)
_HIDDEN = frozenset({"__dict__", "__weakref__"})
_CLOSED = (type, Enum, ModuleType, FunctionType, MethodType, torch.dtype, torch.device)
_NOTHING: frozenset[int] = frozenset()


class Look:
    """What hangs below a system's roots at one moment; each root is descended once, when first asked for.

    It keeps what it found alive: let go of it before the system runs again, and look anew after that,
    since a refresh or a forward may hang up other tensors.
    """

    def __init__(self, roots: tuple[StepRoots, ...]) -> None:
        """Look at these roots."""
        self.roots = roots
        self._registered = frozenset(
            id(item) for root in roots for item in (*root.metadata.values(), root.active) if item is not None
        )
        self._found: dict[tuple[int, bool], list[tuple[str, Any]]] = {}
        self._leaves: dict[int, dict[str, torch.Tensor]] = {}

    def leaves(self, bucket: int) -> Leaves:
        """Return each step's leaves of one bucket; steps that share a metadata object share the dict."""
        found = []
        for root in self.roots:
            top = root.metadata.get(bucket)
            if id(top) not in self._leaves:
                pairs = self.below(top, state=False)
                tensors = {name: value for name, value in pairs if isinstance(value, torch.Tensor)}
                self._leaves[id(top)] = tensors
            found.append(self._leaves[id(top)])
        return tuple(found)

    def counters(self) -> dict[int, torch.Tensor]:
        """Return each step's KV counter, for steps that have one."""
        found = ((step, root.state.get(COUNTER)) for step, root in enumerate(self.roots))
        return {step: counter for step, counter in found if isinstance(counter, torch.Tensor)}

    def below(self, top: Any, *, state: bool) -> list[tuple[str, Any]]:
        """Return (dotted name, tensor or host value) below one of the roots: a metadata object, or state."""
        key = id(top), state
        if key not in self._found:
            self._found[key] = []
            _descend("", top, self._registered if state else _NOTHING, (), self._found[key])
        return self._found[key]


class Walker:
    """Takes walks over the same regions; what lies as it lay at the last walk is told with the same facts."""

    def __init__(self, regions: Regions) -> None:
        """Number allocations in `regions`."""
        self._regions = regions
        self._last: dict[tuple[int, int], _Part] = {}

    def walk(self, look: Look, captured: Iterable[LeafFact] = ()) -> Walk:
        """Return all leaves and host values of all steps, in a fixed order.

        Order: step, then bucket state (bucket 0), then buckets ascending, then attributes as declared.
        From `state`, metadata objects of any bucket and the integer keys of dicts that hold them are not
        followed, so that a backend may hand over its dict of buckets as it is.

        captured: leaves that graphs in force have baked in; those whose storage no longer lives become
        `Walk.freed`.
        """
        places: dict[tuple[int, bool], list[tuple[str, str | _Place]]] = {}
        parts: dict[tuple[int, int], _Part] = {}
        for step, root in enumerate(look.roots):
            tops = [(0, root.state), *((bucket, root.metadata[bucket]) for bucket in sorted(root.metadata))]
            for bucket, top in tops:
                key = id(top), bucket == 0
                if key not in places:
                    places[key] = [
                        (name, self._place(value) if isinstance(value, torch.Tensor) else _text(value))
                        for name, value in look.below(top, state=bucket == 0)
                    ]
                last = self._last.get((step, bucket))
                same = last is not None and last.places == places[key]
                parts[step, bucket] = last if last and same else _Part.of(step, bucket, places[key])
        self._last = parts
        captured = tuple(captured)
        dead = {region for region in {leaf.region for leaf in captured} if not self._regions.alive(region)}
        return Walk(
            leaves=tuple(chain.from_iterable(part.leaves for part in parts.values())),
            hosts=tuple(chain.from_iterable(part.hosts for part in parts.values())),
            active=tuple(_active_bucket(root) for root in look.roots),
            freed=tuple((leaf.step, leaf.bucket, leaf.name) for leaf in captured if leaf.region in dead)
            if dead
            else (),
        )

    def _place(self, tensor: torch.Tensor) -> _Place:
        region, base = self._regions.locate(tensor)
        return _placed(
            tensor.dtype, tuple(tensor.shape), tensor.stride(), region, base, int(tensor.storage_offset())
        )


def walk_roots(roots: tuple[StepRoots, ...], regions: Regions, captured: Iterable[LeafFact] = ()) -> Walk:
    """Return one walk, see `Walker.walk`."""
    return Walker(regions).walk(Look(roots), captured)


@dataclasses.dataclass(frozen=True)
class _Part:
    """One root of one step in a walk."""

    places: list[tuple[str, str | _Place]]
    leaves: tuple[LeafFact, ...]
    hosts: tuple[HostFact, ...]

    @classmethod
    def of(cls, step: int, bucket: int, places: list[tuple[str, str | _Place]]) -> _Part:
        return cls(
            places,
            tuple(LeafFact(step, bucket, name, *at) for name, at in places if not isinstance(at, str)),
            tuple(HostFact(step, bucket, name, text) for name, text in places if isinstance(text, str)),
        )


Leaves = tuple[Mapping[str, torch.Tensor], ...]
"""By step: the leaves of one bucket by name."""
_Place = tuple[str, tuple[int, ...], tuple[int, ...], int, int, int]
"""A leaf fact without step, bucket and name."""


def _text(value: Any) -> str:
    return repr(value) if isinstance(value, _SCALARS) else type(value).__name__


def leaf_tensors(obj: Any) -> dict[str, torch.Tensor]:
    """Return the tensor leaves below one root by dotted name, in the order of the walk."""
    found: list[tuple[str, Any]] = []
    _descend("", obj, _NOTHING, (), found)
    return {name: value for name, value in found if isinstance(value, torch.Tensor)}


def leaf_fact(step: int, bucket: int, name: str, tensor: torch.Tensor, regions: Regions) -> LeafFact:
    """Return where one tensor lies. An empty tensor has `start == stop`."""
    region, base = regions.locate(tensor)
    offset = int(tensor.storage_offset())
    at = _placed(tensor.dtype, tuple(tensor.shape), tensor.stride(), region, base, offset)
    return LeafFact(step, bucket, name, *at)


@lru_cache(maxsize=8192)
def _placed(
    dtype: torch.dtype, shape: tuple[int, ...], stride: tuple[int, ...], region: int, base: int, offset: int
) -> _Place:
    itemsize = dtype.itemsize
    start = base + offset * itemsize
    text = str(dtype).removeprefix("torch.")
    return text, shape, tuple(stride), region, start, start + span_bytes(shape, stride, itemsize)


def span_bytes(shape: tuple[int, ...], stride: tuple[int, ...], itemsize: int) -> int:
    """Return the bytes from a strided view's first element to the end of its last, 0 if it is empty."""
    if 0 in shape:
        return 0
    last = sum((size - 1) * step for size, step in zip(shape, stride, strict=True))
    return (last + 1) * itemsize


def _active_bucket(root: StepRoots) -> int:
    for bucket in sorted(root.metadata):
        if root.active is not None and root.metadata[bucket] is root.active:
            return bucket
    return -1


def _descend(
    name: str, value: Any, skipped: Collection[int], path: tuple[int, ...], found: list[tuple[str, Any]]
) -> None:
    """Add (dotted name, tensor or host value) below `value` to `found`.

    skipped: identities that are not followed. path: identities of the objects on the way here, so
    that a cycle ends while an object reached twice is reported twice, as it is read twice.
    """
    if isinstance(value, _ENDS):
        found.append((name, value))
        return
    if id(value) in skipped or id(value) in path:
        return
    children = _children(value, skipped)
    if children is None:
        found.append((name, value))
        return
    below = (*path, id(value))
    for label, child in children:
        joined = label if not name or label.startswith("[") else f".{label}"
        if isinstance(child, _ENDS):
            found.append((name + joined, child))
        else:
            _descend(name + joined, child, skipped, below, found)


def _children(value: Any, skipped: Collection[int]) -> Iterable[tuple[str, Any]] | None:
    """Return what hangs directly below an object, or None where it is not followed."""
    if isinstance(value, Mapping):
        buckets = any(id(item) in skipped for item in value.values())
        return [
            (key if isinstance(key, str) else f"[{key!r}]", item)
            for key, item in value.items()
            if not (buckets and isinstance(key, int))
        ]
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return list(zip(value._fields, value, strict=True))
    if isinstance(value, list | tuple):
        return [(f"[{index}]", item) for index, item in enumerate(value)]
    if isinstance(value, _CLOSED):
        return None
    return _attributes(value)


def _attributes(value: Any) -> list[tuple[str, Any]] | None:
    """Return an object's attributes: declared fields first, then slots, then what was set later."""
    names = _declared(type(value))  # type: ignore[arg-type]  # every class is hashable
    own = getattr(value, "__dict__", None)
    if own is not None:
        names = tuple(dict.fromkeys((*names, *own)))
    elif not names:
        return None
    missing = object()
    found = [(name, getattr(value, name, missing)) for name in names if name not in _HIDDEN]
    return [(name, item) for name, item in found if item is not missing]


@lru_cache(maxsize=256)
def _declared(kind: type) -> tuple[str, ...]:
    """Return what a class declares: its dataclass fields, then the slots of it and its bases."""
    names: dict[str, None] = {}
    if dataclasses.is_dataclass(kind):
        names.update(dict.fromkeys(field.name for field in dataclasses.fields(kind)))
    for base in kind.__mro__:
        slots = base.__dict__.get("__slots__", ())
        names.update(dict.fromkeys((slots,) if isinstance(slots, str) else slots))
    return tuple(names)
