"""A system with an injection, driven by hand: stage, capture, refresh, look."""

from __future__ import annotations

from functools import partial

import numpy as np
import torch

from harness.case import Case
from harness.engine.protocol import Graph
from harness.engine.tape import TapeEngine
from harness.faults.embedded.target import EmbeddedTarget
from harness.faults.geometry import at
from harness.faults.mechanisms.combined import Unchanged
from harness.faults.scene import Injection, Trace
from harness.faults.wrapped import FaultySut, faulty
from harness.probe.instruments import Spans
from harness.rounds import Inputs, expand_table
from harness.sut.protocol import StepOutputs
from harness.types import Path

LENGTHS = (900, 300, 70, 5)


def inputs_of(case: Case, lengths: tuple[int, ...], seed: int = 0, bucket: int = 0) -> Inputs:
    """Return a padded round with shuffled pages and request ids 3, 4, ..."""
    geometry, tokens = case.geometry, case.model.page_tokens
    bucket, live = bucket or case.bucket, len(lengths)
    columns = geometry.width // tokens
    pages = np.random.default_rng(seed).permutation((geometry.requests - 1) * columns) + 1
    table = np.zeros((geometry.requests, columns), np.int32)
    table[1:] = pages.reshape(geometry.requests - 1, columns)
    padded = np.ones(bucket, np.int64)
    padded[:live] = lengths
    requests = np.zeros(bucket, np.int64)
    requests[:live] = np.arange(3, 3 + live)
    accepted = np.full(bucket, 1 + seed % 4, np.int32)
    return Inputs(bucket, live, padded, requests, accepted, expand_table(table, tokens))


class Hand:
    """Drives one system; metadata of buckets 4 and 2 is made unless `buckets` says otherwise."""

    def __init__(
        self, injection: Injection, case: Case | None = None, buckets: tuple[int, ...] = (4, 2)
    ) -> None:
        self.case = case or at()
        self.engine = TapeEngine()
        self.trace = Trace()
        sut = faulty(EmbeddedTarget, injection, self.trace)(self.case, self.engine, Spans())
        assert isinstance(sut, FaultySut)
        self.sut = sut
        self._graphs: dict[int, tuple[Graph, tuple[StepOutputs, ...]]] = {}
        self.sut.init_graph_state()
        for bucket in buckets:
            self.sut.stage(inputs_of(self.case, (20,) * bucket, 9, bucket))
            self.sut.prepare_capture(bucket)

    def capture(self, bucket: int = 4) -> tuple[Graph, tuple[StepOutputs, ...]]:
        """Return a bucket's graph and its outputs, captured when first asked for."""
        if bucket not in self._graphs:
            self._graphs[bucket] = self.engine.capture(partial(self.sut.forward, bucket))
        return self._graphs[bucket]

    def round(self, lengths: tuple[int, ...] = LENGTHS, seed: int = 0, bucket: int = 4) -> None:
        """Stage and refresh."""
        self.sut.stage(inputs_of(self.case, lengths, seed, bucket))
        self.sut.refresh(bucket)

    def replay(self, bucket: int = 4) -> None:
        """Launch the bucket's graph."""
        self.engine.launch(self.capture(bucket)[0])
        self.engine.synchronize()

    def outputs(self, bucket: int = 4) -> tuple[StepOutputs, ...]:
        """Return what the bucket's last replay left."""
        return self.capture(bucket)[1]

    def leaf(self, name: str, step: int = 0, bucket: int = 4) -> torch.Tensor:
        """Return a leaf as it hangs now."""
        found = self.sut.roots()[step].metadata[bucket]
        for part in name.split("."):
            found = getattr(found, part)
        assert isinstance(found, torch.Tensor)
        return found

    def value(self, name: str, step: int = 0, bucket: int = 4) -> list[object]:
        """Return a leaf's elements."""
        return list(self.leaf(name, step, bucket).tolist())


def right(
    name: str, lengths: tuple[int, ...] = LENGTHS, seed: int = 0, case: Case | None = None
) -> list[object]:
    """Return what a leaf of bucket 4 holds after an unchanged refresh."""
    hand = Hand(Unchanged(), case or at(Path.SHARED))
    hand.round(lengths, seed)
    return hand.value(name)
