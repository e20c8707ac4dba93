"""The real thing: `torch.cuda.CUDAGraph`, all graphs of an engine in one memory pool, as servers do it."""

from __future__ import annotations

import gc
import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import TypeVar

import torch

from harness.engine.protocol import Graph
from harness.errors import CaptureError, HarnessError, UsageError

T = TypeVar("T")

SPIN_CYCLES = 100_000_000
"""Clock cycles of the spin kernel before a delayed replay: some 50 ms at 2 GHz, longer than a host needs
to stage and refresh a round."""


class CudaGraph:
    """A captured CUDA graph."""

    def __init__(self, graph: torch.cuda.CUDAGraph) -> None:
        """Hold a graph whose capture has ended."""
        self._graph = graph

    def nodes(self) -> int:
        """Return 0: CUDA does not tell without keeping the graph's source."""
        return 0

    def replay(self) -> None:
        """Queue the graph on the current stream."""
        self._graph.replay()


class CudaGraphEngine:
    """The CUDA engine; see `harness.engine.protocol.Engine`.

    What it cannot see, where the tape can: a replay that reads freed storage, or memory that nobody
    wrote. Both give whatever the memory holds.
    """

    name = "cuda_graph"

    def __init__(self, *, spin_cycles: int = SPIN_CYCLES) -> None:
        """Use the current CUDA device; `spin_cycles` is how long delayed replays are held back.

        Raises UsageError without a CUDA device.
        """
        if not torch.cuda.is_available():
            raise UsageError(
                f"engine cuda_graph needs a CUDA device; torch {torch.__version__} sees none: "
                "use --engine tape"
            )
        self.device = torch.device("cuda", torch.cuda.current_device())
        self._spin_cycles = spin_cycles
        self._capturing = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
        self._side = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
        self._pool = torch.cuda.graph_pool_handle()
        self._graphs: weakref.WeakSet[CudaGraph] = weakref.WeakSet()

    def capture(self, function: Callable[[], T]) -> tuple[Graph, T]:
        """Warm up and capture on a stream of its own; see the protocol.

        Raises CaptureError where CUDA refuses, and what `function` raises otherwise; in both cases
        the engine stays usable.
        """
        self.synchronize()
        with torch.no_grad(), torch.cuda.stream(self._capturing):
            function()
        self.synchronize()
        gc.collect()  # a tensor or graph collected while capturing would call what a capture forbids
        if not self._graphs:  # the allocator gives a pool up with its last graph
            self._renew_pool()
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.no_grad(), torch.cuda.stream(self._capturing):
                result = self._record(graph, function)
        except RuntimeError as error:
            if "captur" not in str(error).lower():
                raise
            raise CaptureError(
                f"capture: CUDA refuses: {_first_line(error)}; a graph cannot hold host reads of device "
                "data, synchronisation or shapes that depend on data"
            ) from error
        captured = CudaGraph(graph)
        self._graphs.add(captured)
        return captured, result

    def launch(self, graph: Graph, *, delayed: bool = False) -> None:
        """Queue a replay on the current stream, behind a spin kernel if `delayed`."""
        if not isinstance(graph, CudaGraph):
            raise UsageError(f"engine cuda_graph: a {type(graph).__name__} was captured by another engine")
        with _translated("launch"):
            if delayed:
                torch.cuda._sleep(self._spin_cycles)  # type: ignore[no-untyped-call]
            graph.replay()

    def synchronize(self) -> None:
        """Wait for the device. Raises HarnessError for an error that queued work ran into."""
        with _translated("synchronize"):
            torch.cuda.synchronize(self.device)

    def alive(self) -> bool:
        """Whether the context still takes work; one that met an illegal access refuses all that follows."""
        try:
            torch.cuda.synchronize(self.device)
            torch.zeros(1, device=self.device).add_(1)
            torch.cuda.synchronize(self.device)
        except RuntimeError:
            return False
        return True

    def races(self) -> tuple[str, ...]:
        """Return nothing: a device cannot tell."""
        return ()

    def ordering(self) -> AbstractContextManager[None]:
        """Do nothing: a stream keeps its order by itself."""
        return nullcontext()

    @contextmanager
    def side_stream(self, *, wait: bool) -> Iterator[None]:
        """Run the block on a second stream, after all queued work if `wait`."""
        current = torch.cuda.current_stream(self.device)
        if wait:
            self._side.wait_stream(current)
        try:
            with torch.cuda.stream(self._side):
                yield
        finally:
            current.wait_stream(self._side)

    def _record(self, graph: torch.cuda.CUDAGraph, function: Callable[[], T]) -> T:
        """Run `function` between begin and end of a capture on the current stream.

        `torch.cuda.graph` is not used: where ending fails it leaves its stream the current one.
        """
        graph.capture_begin(pool=self._pool)
        try:
            result = function()
        except BaseException:
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # "the graph is empty"
                    graph.capture_end()
            except RuntimeError:  # CUDA has invalidated the capture, and `function` said why
                self._recover()
            raise
        try:
            graph.capture_end()
        except RuntimeError:
            self._recover()
            raise
        return result

    def _renew_pool(self) -> None:
        """Take a new pool; graphs of the old one, which may live on, say nothing about whether it does."""
        self._pool = torch.cuda.graph_pool_handle()
        self._graphs = weakref.WeakSet()

    def _recover(self) -> None:
        """Put allocator and generators back in order after an invalidated capture.

        Up to torch 2.11 a `capture_end` that fails leaves the allocator routing to the pool and the
        default generator in capture state. The first is undone by hand, the second by a capture that
        succeeds, in a new pool, since the old one counts as in use.
        """
        with suppress(RuntimeError):  # newer versions have ended it already
            torch._C._cuda_endAllocateToPool(self.device.index, self._pool)
        self._renew_pool()
        token = torch.zeros(1, device=self.device)
        torch.cuda.synchronize(self.device)
        graph = torch.cuda.CUDAGraph()
        graph.capture_begin(pool=self._pool)
        token.zero_()
        graph.capture_end()


@contextmanager
def _translated(what: str) -> Iterator[None]:
    """Turn CUDA's errors into one line."""
    try:
        yield
    except RuntimeError as error:
        raise HarnessError(f"{what}: {_first_line(error)}") from error


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
