"""Measuring one call: host time, device span, the gap it leaves between two graphs, activities, bytes."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch

Call = Callable[[], None]

CYCLES_PER_US = 2000
"""Clock cycles of a GPU in a microsecond, about, and rather too many than too few."""
FUSED_COPIES = ("fused_metadata_copy", "multi_tensor_apply")
"""In the names of kernels that copy several buffers at once: SGLang's, and torch's `_foreach_copy_`."""
LEAST_SPIN_US = 150.0
LONGEST_SPIN_US = 100_000.0


@dataclass(frozen=True)
class Activities:
    """What one call makes the device do."""

    kernels: int = 0
    memcpys: int = 0
    memsets: int = 0
    fused_copies: int = 0
    """Of the kernels, those that copy several buffers of metadata at once."""


class Meter(Protocol):
    """A device that calls are measured on; all times are microseconds."""

    def host(self, call: Call) -> float:
        """Return how long the call takes to return, on an idle device."""
        ...

    def span(self, call: Call, host_us: float = 0.0) -> float:
        """Return the device time from the call's first launch to its last, all of them queued beforehand.

        host_us: how long the call takes to return, about.
        """
        ...

    def gap(self, call: Call, following: Call | None = None) -> float:
        """Return the device time from the end of one graph to the end of the next, the call between them.

        The host waits for the first graph, as a server that needs its results does. Both graphs hold one
        small kernel; `following` replays another graph instead of the second one.
        """
        ...

    def activities(self, call: Call) -> Activities:
        """Return how many kernels, copies and fills one call makes."""
        ...

    def temporary(self, call: Call) -> int:
        """Return the most device bytes that one call allocates and gives back."""
        ...

    def synchronize(self) -> None:
        """Wait for the device."""
        ...


class CudaMeter:
    """The current CUDA device; see `Meter`."""

    def __init__(self) -> None:
        self._tiny = torch.zeros(1, device="cuda")
        event: Callable[..., Any] = torch.cuda.Event
        self._begin, self._end = event(enable_timing=True), event(enable_timing=True)
        self._before = self.capture(self.launch_one)
        self._after = self.capture(self.launch_one)
        self.activities(self.launch_one)  # the first profile of a process also shows its own set-up

    def launch_one(self) -> None:
        """Launch one small kernel."""
        self._tiny.add_(1)

    def capture(self, call: Call) -> Call:
        """Capture a call in a CUDA graph, after one warm-up; return what replays it."""
        stream: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        current = torch.cuda.current_stream()
        stream.wait_stream(current)
        with torch.cuda.stream(stream):
            call()
        current.wait_stream(stream)
        self.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            call()
        return graph.replay

    def host(self, call: Call) -> float:
        """See `Meter`."""
        self.synchronize()
        start = time.perf_counter_ns()
        call()
        taken = time.perf_counter_ns() - start
        self.synchronize()
        return taken / 1000

    def span(self, call: Call, host_us: float = 0.0) -> float:
        """See `Meter`; where not all was queued in time, the sample is taken again behind a longer spin."""
        spin = LEAST_SPIN_US + 2 * host_us
        while True:
            self.synchronize()
            torch.cuda._sleep(round(spin * CYCLES_PER_US))  # type: ignore[no-untyped-call]
            self._begin.record()
            call()
            self._end.record()
            queued = not self._begin.query()
            self.synchronize()
            if queued or spin >= LONGEST_SPIN_US:
                return float(self._begin.elapsed_time(self._end)) * 1000
            spin *= 2

    def gap(self, call: Call, following: Call | None = None) -> float:
        """See `Meter`."""
        self.synchronize()
        self._before()
        self._begin.record()
        self._begin.synchronize()
        call()
        (following or self._after)()
        self._end.record()
        self.synchronize()
        return float(self._begin.elapsed_time(self._end)) * 1000

    def activities(self, call: Call) -> Activities:
        """See `Meter`."""
        from torch.profiler import ProfilerActivity, profile

        self.synchronize()
        with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as profiler:
            call()
            self.synchronize()
        cuda = torch._C._autograd.DeviceType.CUDA
        events = [event for event in profiler.events() or () if event.device_type == cuda]
        return count_activities([str(event.name) for event in events])

    def temporary(self, call: Call) -> int:
        """See `Meter`."""
        self.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        call()
        self.synchronize()
        return torch.cuda.max_memory_allocated() - before

    def synchronize(self) -> None:
        """See `Meter`."""
        torch.cuda.synchronize()


def count_activities(names: list[str]) -> Activities:
    """Count device activities by the names that a profiler gives them."""
    kinds = Counter(
        "memcpys" if name.startswith("Memcpy") else "memsets" if name.startswith("Memset") else "kernels"
        for name in names
    )
    copies = sum(any(part in name for part in FUSED_COPIES) for name in names)
    return Activities(**kinds, fused_copies=copies)
