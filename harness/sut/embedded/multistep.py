"""The multi-step backend: S - 1 single backends (one in the verify and extend modes) under one strategy."""

from __future__ import annotations

from collections.abc import Callable

from harness.errors import HarnessError
from harness.sut.embedded.metadata import DSAMetadata
from harness.sut.embedded.precompute import DeviceInputs
from harness.sut.embedded.route import RouteLog
from harness.sut.embedded.single import BucketTools, SingleBackend
from harness.sut.embedded.strategies import strategy_for
from harness.sut.protocol import SpanRecorder, StepRoots
from harness.types import Path


class MultiStepBackend:
    """Owns the draft steps' backends and refreshes them by the path that was chosen."""

    def __init__(
        self, path: Path, steps: int, tools: Callable[[int], BucketTools], span: SpanRecorder
    ) -> None:
        self._log = RouteLog()
        self._span = span
        self.backends = tuple(SingleBackend(step, tools, span, self._log) for step in range(steps))
        self.strategy = strategy_for(path, span, self._log)

    def init_cuda_graph_state(self, max_bs: int) -> None:
        """Make every step's persistent buffers, for the largest bucket."""
        self.strategy.init_state(self.backends, max_bs)

    def build(self, bucket: int, inputs: DeviceInputs) -> None:
        """Make every step's metadata of a bucket from the staged inputs."""
        self.strategy.build(self.backends, bucket, inputs)
        self._log.begin(in_graph=False)  # what a build does says nothing about the refresh path

    def refresh(self, bucket: int, inputs: DeviceInputs) -> None:
        """Refresh before a replay; with an in-graph refresh only the active metadata is re-pointed."""
        if self.strategy.in_graph:
            self.activate(bucket)
            return
        self._log.begin(in_graph=False)
        self.strategy.refresh(self.backends, bucket, inputs)

    def refresh_in_graph(self, bucket: int, inputs: DeviceInputs) -> None:
        """The refresh that a captured forward starts with; nothing on the other paths."""
        if self.strategy.in_graph:
            self._log.begin(in_graph=True)
            with self._span("refresh"):
                self.strategy.refresh(self.backends, bucket, inputs)

    def activate(self, bucket: int) -> None:
        """Point every step's active metadata at a bucket that was built."""
        for backend in self.backends:
            if bucket in backend.metadata:
                backend.active = backend.metadata[bucket]

    def metadata(self, step: int, bucket: int) -> DSAMetadata:
        """Return what a step reads in a bucket."""
        found = self.backends[step].metadata.get(bucket)
        if found is None:
            raise HarnessError(f"bucket {bucket} has no metadata: prepare_capture comes before forward")
        return found

    def route(self) -> str:
        """Name the path that the last refresh took, from what it did; empty before the first refresh."""
        return self._log.path()

    def roots(self) -> tuple[StepRoots, ...]:
        """Return where every step's tensors hang now."""
        return tuple(backend.roots() for backend in self.backends)
