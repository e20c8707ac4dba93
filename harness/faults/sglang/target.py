"""SGLang, opened: its metadata objects, state, inputs and seams behind the `Target` protocol."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from harness.case import Case
from harness.engine.protocol import Engine
from harness.faults.scene import Given, Hooks
from harness.fields import COUNTER
from harness.sut.patches import Patches
from harness.sut.protocol import SpanRecorder
from harness.sut.sglang.loader import load
from harness.sut.sglang.seams import Seams
from harness.sut.sglang.shared import Options
from harness.sut.sglang.sut import SglangSut
from harness.traffic import build_program

Around = Callable[..., Any]
"""(the plain function, its arguments ...) -> what is returned instead."""


@dataclass(frozen=True)
class _Opened:
    """A function of SGLang that is wrapped during its calls."""

    owners: Callable[[SglangTarget], Iterable[Any]]
    name: str
    around: Around


class SglangTarget(SglangSut):
    """See `harness.faults.scene.Target`; besides, any function of SGLang can be wrapped.

    Wrappers stand inside the watch, which so sees what a changed release would show it, and outside the
    drop-in that shares.
    """

    def __init__(self, case: Case, engine: Engine, span: SpanRecorder) -> None:
        self.hooks = Hooks()
        self._opened: list[_Opened] = []
        buckets = build_program(case).buckets
        super().__init__(case, engine, span, buckets, load(None, engine.device))

    @property
    def seams(self) -> Seams:
        """SGLang's own objects."""
        return self._loaded.seams

    @property
    def backends(self) -> tuple[Any, ...]:
        """The backend of every step."""
        return tuple(self._backends)

    def wrap(self, owners: Callable[[SglangTarget], Iterable[Any]], name: str, around: Around) -> None:
        """Have `around` stand around a function of these owners from now on."""
        self._opened.append(_Opened(owners, name, around))

    def refresh_staged(self) -> None:
        """Have the drop-in refresh step 0 through the precomputed input."""
        assert self._dropin is not None
        self._dropin = Options(staged=True)

    def point(self, step: int, bucket: int, metadata: Any, *, entry: bool = True) -> None:
        """See `Target`."""
        backend = self._backends[step]
        if entry:
            backend.decode_cuda_graph_metadata[bucket] = metadata
        backend.forward_metadata = metadata

    def rebind_state(self, step: int, name: str, tensor: torch.Tensor) -> None:
        """See `Target`."""
        backend = self._backends[step]
        if name == COUNTER:
            backend._multi_ctas_kv_counter_buffer = tensor
            return
        first, *rest = name.split(".")
        if not rest:
            backend.decode_cuda_graph_metadata[first] = tensor
            return
        owner = backend.decode_cuda_graph_metadata[first]
        object.__setattr__(owner, rest[0], tensor)

    def given(self, bucket: int) -> Given:
        """See `Target`."""
        batch = self._batches[bucket]
        accepted = self._batches.inputs()["num_accept_tokens"][:bucket]
        return Given(batch.seq_lens, batch.req_pool_indices, accepted, self._batches.table)

    @contextmanager
    def reading(self, given: Given) -> Iterator[None]:
        """See `Target`; the bucket is the one with as many rows."""
        batch = self._batches[given.lengths.shape[0]]
        with Patches() as patches:
            patches.attribute(batch, "seq_lens", given.lengths)
            patches.attribute(batch, "req_pool_indices", given.requests)
            if batch.spec_info is not None:
                patches.attribute(batch.spec_info, "num_accept_tokens", given.accepted)
            for backend in self._backends:
                patches.attribute(backend, "req_to_token", given.table)
            yield

    def _wrap(self, patches: Patches) -> None:
        for one in self._opened:
            for owner in one.owners(self):
                patches.attribute(owner, one.name, _around(one.around, getattr(owner, one.name)))
        super()._wrap(patches)

    def _refresh_captured(self, bucket: int) -> None:
        plain = partial(super()._refresh_captured, bucket)
        around = self.hooks.in_graph
        if around is None:
            plain()
        else:
            around(bucket, plain)

    def _read_by(self, step: int, bucket: int) -> Any:
        found = super()._read_by(step, bucket)
        reads = self.hooks.reads
        return found if reads is None else reads(step, bucket, found)


def _around(around: Around, plain: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function proper, so that it becomes a method where it is put into a class."""

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        return around(plain, *args, **kwargs)

    return wrapped
