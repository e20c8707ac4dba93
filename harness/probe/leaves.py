"""The recursive walk over metadata: every tensor leaf with its bytes, every host value beside it."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Iterator, Mapping
from enum import Enum
from types import FunctionType, MethodType, ModuleType
from typing import Any

import torch

from harness.observation import HostFact, LeafFact, Walk
from harness.probe.regions import Regions
from harness.sut.protocol import StepRoots

_SCALARS = (int, float, bool, str, type(None))
_CLOSED = (type, Enum, ModuleType, FunctionType, MethodType, torch.dtype, torch.device)
_NOTHING: frozenset[int] = frozenset()


def walk_roots(roots: tuple[StepRoots, ...], regions: Regions, captured: Iterable[LeafFact] = ()) -> Walk:
    """Return all leaves and host values of all steps, in a fixed order.

    Order: step, then bucket state (bucket 0), then buckets ascending, then attributes as declared.
    From `state`, metadata objects of any bucket and the integer keys of dicts that hold them are not
    followed, so that a backend may hand over its dict of buckets as it is.

    captured: leaves that graphs in force have baked in; those whose storage no longer lives become
    `Walk.freed`.
    """
    registered = frozenset(
        id(item) for root in roots for item in (*root.metadata.values(), root.active) if item is not None
    )
    found = _Found(regions)
    leaves: list[LeafFact] = []
    hosts: list[HostFact] = []
    for step, root in enumerate(roots):
        parts = [(0, root.state, registered)]
        parts += [(bucket, root.metadata[bucket], _NOTHING) for bucket in sorted(root.metadata)]
        for bucket, top, skipped in parts:
            for name, value in found.below(top, skipped):
                if isinstance(value, str):
                    hosts.append(HostFact(step, bucket, name, value))
                else:
                    leaves.append(LeafFact(step, bucket, name, *value))
    freed = tuple((leaf.step, leaf.bucket, leaf.name) for leaf in captured if not regions.alive(leaf.region))
    return Walk(tuple(leaves), tuple(hosts), tuple(_active_bucket(root) for root in roots), freed)


class _Found:
    """What one walk has seen: an object that several steps share is descended once."""

    def __init__(self, regions: Regions) -> None:
        self._regions = regions
        self._below: dict[tuple[int, int], list[tuple[str, str | _Place]]] = {}

    def below(self, top: Any, skipped: frozenset[int]) -> list[tuple[str, str | _Place]]:
        """Return (name, host value's text or tensor's place) below `top`; the caller keeps `top` alive."""
        key = id(top), id(skipped)
        if key not in self._below:
            self._below[key] = [
                (name, self._place(value) if isinstance(value, torch.Tensor) else _text(value))
                for name, value in _descend("", top, skipped, ())
            ]
        return self._below[key]

    def _place(self, tensor: torch.Tensor) -> _Place:
        fact = leaf_fact(0, 0, "", tensor, self._regions)
        return fact.dtype, fact.shape, fact.stride, fact.region, fact.start, fact.stop


_Place = tuple[str, tuple[int, ...], tuple[int, ...], int, int, int]
"""A leaf fact without step, bucket and name."""


def _text(value: Any) -> str:
    return repr(value) if isinstance(value, _SCALARS) else type(value).__name__


def leaf_tensors(obj: Any) -> dict[str, torch.Tensor]:
    """Return the tensor leaves below one root by dotted name, in the order of the walk."""
    return {name: value for name, value in _descend("", obj, _NOTHING, ()) if isinstance(value, torch.Tensor)}


def leaf_fact(step: int, bucket: int, name: str, tensor: torch.Tensor, regions: Regions) -> LeafFact:
    """Return where one tensor lies. An empty tensor has `start == stop`."""
    region, base = regions.locate(tensor)
    shape, stride, itemsize = tuple(tensor.shape), tuple(tensor.stride()), tensor.element_size()
    start = base + int(tensor.storage_offset()) * itemsize
    return LeafFact(
        step=step,
        bucket=bucket,
        name=name,
        dtype=str(tensor.dtype).removeprefix("torch."),
        shape=shape,
        stride=stride,
        region=region,
        start=start,
        stop=start + span_bytes(shape, stride, itemsize),
    )


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
    name: str, value: Any, skipped: Collection[int], path: tuple[int, ...]
) -> Iterator[tuple[str, Any]]:
    """Yield (dotted name, tensor or host value) below `value`.

    skipped: identities that are not followed. path: identities of the objects on the way here, so
    that a cycle ends while an object reached twice is reported twice, as it is read twice.
    """
    if isinstance(value, (torch.Tensor, *_SCALARS)):
        yield name, value
        return
    if id(value) in skipped or id(value) in path:
        return
    children = _children(value, skipped)
    if children is None:
        yield name, value
        return
    for label, child in children:
        joined = label if not name or label.startswith("[") else f".{label}"
        yield from _descend(name + joined, child, skipped, (*path, id(value)))


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
    names: dict[str, None] = {}
    if dataclasses.is_dataclass(value):
        names.update(dict.fromkeys(field.name for field in dataclasses.fields(value)))
    for kind in type(value).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        names.update(dict.fromkeys((slots,) if isinstance(slots, str) else slots))
    own = getattr(value, "__dict__", None)
    if own is not None:
        names.update(dict.fromkeys(own))
    elif not names:
        return None
    names.pop("__dict__", None)
    names.pop("__weakref__", None)
    missing = object()
    found = [(name, getattr(value, name, missing)) for name in names]
    return [(name, item) for name, item in found if item is not missing]
