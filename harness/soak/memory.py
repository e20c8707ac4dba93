"""Memory of a long run: sampled sparsely, judged by whether it grows."""

from __future__ import annotations

import gc
import os
import statistics
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec

from harness.engine.protocol import Engine

MOST_SAMPLES = 256
"""Samples that are kept; beyond that every other one is dropped and they are taken half as often."""
LEAST_SAMPLES = 16
"""Fewer say nothing about growth."""
ALLOWED_BYTES = 8 << 20
"""Growth that is none: allocators and caches settle."""
ALLOWED_SHARE = 0.01
ALLOWED_OBJECTS = 2000


class Sample(msgspec.Struct, frozen=True):
    """Memory at one moment."""

    replays: int
    host: int
    """Resident bytes of the process."""
    device: int
    """Bytes that torch has allocated on the device; 0 on a CPU."""
    reserved: int
    """Bytes that torch has reserved there."""
    objects: int
    """Python objects that the collector tracks."""


def take(replays: int, engine: Engine) -> Sample:
    """Measure now. Collects cyclic garbage first, so that only what is kept counts."""
    gc.collect()
    device = reserved = 0
    if engine.device.type == "cuda":
        import torch

        device = torch.cuda.memory_allocated(engine.device)
        reserved = torch.cuda.memory_reserved(engine.device)
    return Sample(replays, resident(), device, reserved, len(gc.get_objects()))


def resident() -> int:
    """Return the resident bytes of this process; 0 where the system does not tell."""
    statm = Path("/proc/self/statm")
    if not statm.exists():
        return 0
    return int(statm.read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")


class Samples:
    """A bounded, even choice of all samples of one process."""

    def __init__(self, every: int) -> None:
        """Take one every so many replays at first."""
        self.kept: list[Sample] = []
        self._every = every

    def due(self, replays: int) -> bool:
        """Whether the next sample is due."""
        return not self.kept or replays - self.kept[-1].replays >= self._every

    def add(self, sample: Sample) -> None:
        """Keep a sample."""
        self.kept.append(sample)
        if len(self.kept) > MOST_SAMPLES:
            self.kept = self.kept[::2]
            self._every *= 2


PARTS: dict[str, Callable[[Sample], int]] = {
    "host": lambda sample: sample.host,
    "device": lambda sample: sample.device,
    "device reserved": lambda sample: sample.reserved,
}


def growth(samples: Sequence[Sample]) -> Iterator[str]:
    """Yield a line for whatever is larger in the last quarter of the samples than in the second one."""
    if len(samples) < LEAST_SAMPLES:
        return
    quarter = len(samples) // 4
    early, late = samples[quarter : 2 * quarter], samples[-quarter:]
    span = late[quarter // 2].replays - early[quarter // 2].replays
    for name, part in PARTS.items():
        before, after = (statistics.median(part(one) for one in some) for some in (early, late))
        if after - before > max(ALLOWED_BYTES, ALLOWED_SHARE * before):
            yield f"{name} memory grew by {(after - before) / (1 << 20):.1f} MiB in {span:,} replays"
    before, after = (statistics.median(one.objects for one in some) for some in (early, late))
    if after - before > ALLOWED_OBJECTS:
        yield f"Python objects grew by {after - before:,.0f} in {span:,} replays"


def describe(samples: Sequence[Sample]) -> Iterator[str]:
    """Yield a line for each kind of memory: at the start, in the middle, at the end, the most."""
    if not samples:
        return
    middle = samples[len(samples) // 2]
    for name, part in PARTS.items():
        most = max(part(one) for one in samples)
        if most:
            values = (part(samples[0]), part(middle), part(samples[-1]), most)
            first, half, last, top = (f"{value / (1 << 20):,.1f}" for value in values)
            yield f"memory    {name}: {first} MiB first, {half} half way, {last} last, {top} at most"
    objects = (samples[0].objects, middle.objects, samples[-1].objects)
    yield "memory    Python objects: {:,} first, {:,} half way, {:,} last".format(*objects)
