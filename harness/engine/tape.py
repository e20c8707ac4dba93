"""CUDA-graph semantics on a CPU: what a graph bakes in, what it cannot hold, and when it runs.

Frozen at capture: addresses, Python scalars, shapes, branches. Results keep their address and are
rewritten by every replay. A capture leaves no trace in memory but for its warm-up call, as on CUDA,
and its results hold a recognisable junk value until the first replay.

The stream is modelled by laziness: a delayed launch stays pending until something is ordered after
it. Not modelled: reuse of pool memory among a graph's temporaries or between graphs; work that
bypasses the dispatcher (NumPy, other threads); the order of views and allocations, which are no work.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch._ops import OpOverload
from torch.multiprocessing.reductions import StorageWeakRef

from harness.engine.dispatch import OperationMode, Traits, tensors_in, written_tensors
from harness.engine.protocol import Graph
from harness.engine.tape_guard import HostReads
from harness.engine.tape_record import Recorder, TapeGraph
from harness.errors import HarnessError, UsageError
from harness.probe.launches import Launch, Written

T = TypeVar("T")


class TapeEngine:
    """The CPU engine; see `harness.engine.protocol.Engine`."""

    name = "tape"

    def __init__(self) -> None:
        """Start with nothing queued."""
        self.device = torch.device("cpu")
        self._pending: list[TapeGraph] = []
        self._failure: HarnessError | None = None
        self._names: dict[int, tuple[StorageWeakRef, str]] = {}
        self._overtaking = 0
        self._races: dict[str, None] = {}

    def label(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Name tensors' storages for messages about freed memory; keeps none of them alive."""
        for name, tensor in tensors.items():
            weak = StorageWeakRef(tensor.untyped_storage())  # type: ignore[no-untyped-call]
            self._names[weak.cdata] = (weak, name)

    def capture(self, function: Callable[[], T]) -> tuple[Graph, T]:
        """Run `function` once outside and once inside a recording; see the protocol.

        Raises CaptureError for the first operation that a graph cannot hold, also where `function`
        swallowed it, as CUDA invalidates the whole capture.
        """
        self._drain()
        recorder = Recorder()
        with torch.no_grad():
            function()
            try:
                with recorder, HostReads(recorder.refuse_host_read):
                    result = function()
            finally:
                recorder.restore()
        if recorder.refused is not None:
            raise recorder.refused
        return recorder.graph(), result

    def launch(self, graph: Graph, *, delayed: bool = False) -> None:
        """Replay now, after what is pending, or when something is ordered after it if `delayed`.

        In a `side_stream(wait=False)` what is pending stays so. A failing replay is reported by
        `synchronize`; what was launched after it does not run, as after an error on a device.
        """
        if not isinstance(graph, TapeGraph):
            raise UsageError(f"engine tape: a {type(graph).__name__} was captured by another engine")
        if delayed:
            self._pending.append(graph)
            return
        self._before_work()
        self._replay(graph)

    def synchronize(self) -> None:
        """Run what is pending. Raises the first failure since the last call, once."""
        self._drain()
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    @contextmanager
    def ordering(self) -> Iterator[None]:
        """Within it, pending replays run before the first operation, launch or host read of the block."""
        order = _Ordering(self._before_work, lambda: bool(self._overtaking), self._pending)
        with order, HostReads(lambda _: self._before_work()):
            yield
        self._races.update(dict.fromkeys(order.races))

    def alive(self) -> bool:
        """Whether more work can run: always."""
        return True

    def races(self) -> tuple[str, ...]:
        """Return what work on a side stream that does not wait did to memory that others use, once."""
        races, self._races = tuple(self._races), {}
        return races

    @contextmanager
    def side_stream(self, *, wait: bool) -> Iterator[None]:
        """Run the block in order (`wait`), or ahead of what is pending."""
        if wait:
            self._before_work()
            yield
            return
        self._overtaking += 1
        try:
            yield
        finally:
            self._overtaking -= 1

    def _before_work(self) -> None:
        if not self._overtaking:
            self._drain()

    def _drain(self) -> None:
        pending, self._pending = self._pending, []
        for graph in pending:
            self._replay(graph)

    def _replay(self, graph: TapeGraph) -> None:
        if self._failure is None:
            try:
                graph.replay(self._name_of)
            except HarnessError as error:
                self._failure = error

    def _name_of(self, identity: int) -> str:
        return self._names[identity][1] if identity in self._names else ""


class _Ordering(OperationMode):  # type: ignore[no-untyped-call]
    """Calls `before` ahead of everything that a device would run, and sees accesses that nothing orders.

    On a device, work of the current stream queues behind a replay that is held back, and a side stream
    that does not wait overtakes both. The tape runs such work at once where something ordered came first,
    so a race need not show in values: it is told from the storages that both sides use.
    """

    def __init__(
        self, before: Callable[[], None], overtaking: Callable[[], bool], held: Sequence[TapeGraph]
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._before, self._overtaking = before, overtaking
        self._used = {identity for graph in held for identity in graph.uses()}
        self._queued: dict[int, StorageWeakRef] = {}
        """Storages that ordered work wrote; weak references keep their identities from reuse."""
        self.races: dict[str, None] = {}

    def operation(
        self, func: OpOverload, traits: Traits, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        if traits.works or traits.reads_host:
            self._before()
            reads = (*tensors_in(args), *tensors_in(kwargs))
            self._see(traits.name, reads, written_tensors(traits, args, kwargs))
        return func._op(*args, **kwargs)

    def before_launch(self, launch: Launch) -> None:
        self._before()
        self._see(launch.kernel, launch.tensors, ())

    def observe_launch(self, launch: Launch, written: tuple[Written, ...]) -> None:
        self._see(launch.kernel, (), [part.tensor for part in written])

    def _see(self, what: str, reads: Iterable[torch.Tensor], writes: Iterable[torch.Tensor]) -> None:
        if not self._overtaking():
            for tensor in writes:
                storage = tensor.untyped_storage()
                self._queued[storage._cdata] = StorageWeakRef(storage)  # type: ignore[no-untyped-call]
            return
        if any(tensor.untyped_storage()._cdata in self._used for tensor in writes):
            self.races[f"{what} overwrites, without waiting, memory that a replay in flight uses"] = None
        if any(tensor.untyped_storage()._cdata in self._queued for tensor in reads):
            self.races[f"{what} reads, without waiting, what the current stream has yet to write"] = None
