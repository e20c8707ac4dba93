"""The memory that a recording touches: its own, held strongly, and that of others, held weakly."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from harness.errors import CaptureError, FreedStorageError

UNINITIALISED_INT = 0x5A5A5A5A
"""What integers of memory that nobody wrote hold (cut to the width of narrower types): recognisable,
far beyond any length, page or row, and small enough that int64 sums of it do not wrap."""


def unseen() -> AbstractContextManager[None]:
    """Hide the tape's own operations from the dispatch modes of others."""
    return torch._C._DisableTorchDispatch()


def fill_uninitialised(storage: torch.UntypedStorage, dtype: torch.dtype) -> None:
    """Fill a storage with what its type makes recognisable: NaN, `UNINITIALISED_INT`, True."""
    count = storage.nbytes() // dtype.itemsize
    whole = torch.empty(0, dtype=dtype, device=storage.device).set_(storage, 0, (count,), (1,))
    if dtype.is_floating_point and dtype.itemsize == 1:
        whole.view(torch.uint8).fill_(0x7F)  # NaN in the 8-bit formats that have one
    elif dtype.is_floating_point or dtype.is_complex:
        whole.fill_(float("nan"))
    elif dtype is torch.bool:
        whole.fill_(True)
    else:
        whole.fill_(UNINITIALISED_INT & ((1 << min(31, 8 * dtype.itemsize - 1)) - 1))


@dataclass
class _Owned:
    storage: torch.UntypedStorage
    dtype: torch.dtype
    constant: bool


@dataclass
class _View:
    """A private tensor that nodes are bound to; it has storage only while a replay runs."""

    tensor: torch.Tensor
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]


@dataclass
class External:
    """A storage that was there before the capture."""

    weak: StorageWeakRef
    address: int
    nbytes: int
    described: str
    """dtype and shape of the tensor through which it was first seen."""
    node: int = -1
    """Index of the first node that uses it."""
    operation: str = ""
    views: list[_View] = field(default_factory=list)

    def attach(self, name_of: Callable[[int], str], nodes: int) -> None:
        """Point the views at the storage. Raises FreedStorageError if it was freed or moved."""
        storage = _live(self.weak)
        if storage is None:
            fate = "was freed after the capture"
        elif storage.data_ptr() != self.address or storage.nbytes() < self.nbytes:
            fate = "was given other memory after the capture"
        else:
            for view in self.views:
                view.tensor.set_(storage, view.offset, view.shape, view.stride)
            return
        name = name_of(self.weak.cdata) or f"a tensor ({self.described})"
        raise FreedStorageError(
            f"replay: node {self.node + 1} of {nodes}, {self.operation}, uses {name}, whose storage {fate}"
        )

    def detach(self) -> None:
        """Let go of the storage."""
        for view in self.views:
            view.tensor.set_()  # type: ignore[call-overload]


class Memory:
    """Tells a recording's own storages from others', and binds nodes to either."""

    def __init__(self) -> None:
        """Start with nothing seen."""
        self._owned: dict[int, _Owned] = {}
        self._external: dict[int, External] = {}
        self._bound: dict[tuple[object, ...], torch.Tensor] = {}
        self._saved: dict[int, tuple[External, torch.Tensor]] = {}

    def knows(self, tensor: torch.Tensor) -> bool:
        """Whether the tensor's storage was seen before."""
        identity = tensor.untyped_storage()._cdata
        return identity in self._owned or identity in self._external

    def see(self, tensor: torch.Tensor) -> None:
        """Take note of an operation's argument: a storage not seen before belongs to someone else."""
        storage = tensor.untyped_storage()
        identity = storage._cdata
        if identity not in self._owned and identity not in self._external:
            self._external[identity] = External(
                weak=StorageWeakRef(storage),  # type: ignore[no-untyped-call]
                address=storage.data_ptr(),
                nbytes=storage.nbytes(),
                described=f"{str(tensor.dtype).removeprefix('torch.')}, shape {tuple(tensor.shape)}",
            )

    def adopt(self, tensor: torch.Tensor, *, constant: bool = False) -> None:
        """Own the storage of a tensor that was born in the capture, unless it was seen before.

        constant: a Python value lifted into a tensor; no node writes it again, so it keeps its value.
        """
        storage = tensor.untyped_storage()
        if storage._cdata not in self._external:
            self._owned.setdefault(storage._cdata, _Owned(storage, tensor.dtype, constant))

    def adopt_all(self, results: list[torch.Tensor]) -> list[bool]:
        """Own the storages that an operation returned; return for each result whether it was new."""
        storages = [tensor.untyped_storage() for tensor in results]
        identities = [storage._cdata for storage in storages]
        fresh = [key not in self._owned and key not in self._external for key in identities]
        for tensor, storage, key, born in zip(results, storages, identities, fresh, strict=True):
            if born:
                self._owned.setdefault(key, _Owned(storage, tensor.dtype, constant=False))
        return fresh

    def constant(self, tensor: torch.Tensor) -> bool:
        """Whether the tensor is a Python value lifted into the capture."""
        owned = self._owned.get(tensor.untyped_storage()._cdata)
        return owned is not None and owned.constant

    def uninitialise(self, tensor: torch.Tensor) -> None:
        """Make reads of memory that nobody wrote visible."""
        fill_uninitialised(tensor.untyped_storage(), tensor.dtype)

    def bind(self, tensor: torch.Tensor, node: int, operation: str) -> torch.Tensor:
        """Return the private tensor through which nodes reach these elements of this storage."""
        if tensor.is_conj() or tensor.is_neg():
            raise CaptureError(f"capture: {operation} takes a lazily conjugated view; resolve it first")
        storage = tensor.untyped_storage()
        identity = storage._cdata
        external = self._external.get(identity)
        if external is not None and external.node < 0:
            external.node, external.operation = node, operation
        shape, stride = tuple(tensor.shape), tensor.stride()
        offset = int(tensor.storage_offset())
        key = (identity, tensor.dtype, shape, stride, offset)
        bound = self._bound.get(key)
        if bound is None:
            bound = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
            if external is None:
                bound.set_(storage, offset, shape, stride)
            else:
                external.views.append(_View(bound, offset, shape, stride))
            self._bound[key] = bound
        return bound

    def save(self, tensor: torch.Tensor) -> None:
        """Keep what an external storage holds before its first write in the capture."""
        storage = tensor.untyped_storage()
        external = self._external.get(storage._cdata)
        if external is not None and storage._cdata not in self._saved:
            self._saved[storage._cdata] = (external, _bytes_of(storage).clone())

    def restore(self) -> None:
        """Leave memory as a CUDA capture, which executes nothing, leaves it.

        External storages get back what they held before the recorded call; the recording's own hold
        the uninitialised value until the first replay, constants excepted.
        """
        for external, saved in self._saved.values():
            storage = _live(external.weak)
            if storage is not None and storage.nbytes() == saved.numel():
                _bytes_of(storage).copy_(saved)
        self._saved.clear()
        for owned in self._owned.values():
            if not owned.constant:
                fill_uninitialised(owned.storage, owned.dtype)

    def externals(self) -> tuple[External, ...]:
        """Return the external storages that nodes use."""
        return tuple(external for external in self._external.values() if external.node >= 0)

    def owned(self) -> tuple[torch.UntypedStorage, ...]:
        """Return the storages born in the capture, for the graph to hold: its private pool."""
        return tuple(owned.storage for owned in self._owned.values())


def _live(weak: StorageWeakRef) -> torch.UntypedStorage | None:
    """Return the storage, None if it was freed (torch declares the result as never None)."""
    return torch.UntypedStorage._new_with_weak_ptr(weak.cdata)


def _bytes_of(storage: torch.UntypedStorage) -> torch.Tensor:
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(
        storage, 0, (storage.nbytes(),), (1,)
    )
