"""What a system under test must offer. A driver calls it in the order of the methods here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import torch

from harness.case import Case
from harness.engine.protocol import Engine
from harness.observation import Expectation
from harness.rounds import Inputs


class SpanRecorder(Protocol):
    """Marks parts of a refresh, so that the ledger can say what each part wrote."""

    def __call__(self, name: str, step: int = -1) -> AbstractContextManager[None]:
        """Name the block: `precompute`, `fused_copy`, `derived_refresh`, `refresh`, `forward`."""
        ...


@dataclass(frozen=True)
class StepRoots:
    """Where one draft step's tensors hang."""

    metadata: Mapping[int, Any]
    """By captured bucket: the metadata object (dataclass, dict, any object) registered for it.

    Python values below it count as frozen into the graph: one that changes later is a finding.
    """
    active: Any
    """The metadata object in force (one of the above after a refresh)."""
    state: Mapping[str, Any] = field(default_factory=dict)
    """What this backend owns besides bucket metadata: wide tables, length buffers, the KV counter."""


@dataclass(frozen=True)
class StepOutputs:
    """What one captured draft step leaves behind; the same tensors at every replay."""

    read: Mapping[str, torch.Tensor]
    """Copies, made inside the graph, of every leaf as the step read it (leaf names as in the walk)."""
    computed: Mapping[str, torch.Tensor]
    """Results by name: `attention` float, `draft_token` int64, ...; leading dimension = bucket rows.

    Of a system that is not this package's own, every step computes the same of the same metadata: they are
    all held against the system's single step (S = 2).
    """


class Sut(Protocol):
    """One system, built for one case on one engine."""

    name: str
    steps: int
    """Draft-step backends."""
    tolerates_poison: bool
    """Whether the forward is safe on any in-range sentinel; if not, a poisoned leaf forbids a replay."""

    def facts(self) -> Mapping[str, str]:
        """Return versions, and which parts are real and which stand-ins."""
        ...

    def expectation(self, bucket: int) -> Expectation:
        """Return what the path in force declares of a refresh of one bucket."""
        ...

    def init_graph_state(self) -> None:
        """Make the persistent buffers of every step, for the largest bucket."""
        ...

    def stage(self, inputs: Inputs) -> None:
        """Write a round's inputs in place into the persistent input tensors."""
        ...

    def inputs(self) -> Mapping[str, torch.Tensor]:
        """Return the persistent input tensors by name; a refresh or a replay may only read them."""
        ...

    def prepare_capture(self, bucket: int) -> None:
        """Make (or make again) the metadata of a bucket, from the staged inputs, outside the graph."""
        ...

    def forward(self, bucket: int) -> tuple[StepOutputs, ...]:
        """Run all draft steps on the bucket's metadata; this is what a graph captures.

        With an in-graph refresh it refreshes first, inside a span `refresh`.
        """
        ...

    def refresh(self, bucket: int) -> None:
        """Refresh the bucket's metadata from the staged inputs before a replay (nothing if in-graph)."""
        ...

    def eager(self, rows: int) -> None:
        """Run an unrelated eager call with this many query rows, as a prefill between replays would."""
        ...

    def roots(self) -> tuple[StepRoots, ...]:
        """Return where every step's tensors hang now."""
        ...

    def route(self) -> str:
        """Return which path the last refresh took, from evidence, not from what was asked for."""
        ...

    def reference(self, leaf: str, inputs: Inputs) -> torch.Tensor | None:
        """Return the right value of a leaf that has no formula (`Live.ELSEWHERE`), else None."""
        ...

    def close(self) -> None:
        """Undo patches and let go of everything."""
        ...


@runtime_checkable
class Pausable(Protocol):
    """What a system may offer besides: a memory saver takes its buffers away for a while."""

    def pause_and_resume(self) -> None:
        """Release the buffers that the next refresh rewrites and take them again: zeroed, addresses kept."""
        ...


@runtime_checkable
class Interleaved(Sut, Protocol):
    """What a system offers for a path whose refreshes and replays take turns (`Path.interleaved`)."""

    def decode(self, bucket: int, replay: Callable[[int], None]) -> None:
        """Run the staged round's own loop: for every draft step refresh, then call `replay(step)`.

        The graph of `forward` is one step's, and `replay` launches it.
        """
        ...


SutFactory = Callable[[Case, Engine, SpanRecorder], Sut]
"""How a system is made: entry points of the group `replay_harness.suts` hold one each.

Further keyword arguments are what `--sut-option KEY=VALUE` gives, as text. `docs/tutorial.md` makes a system.
"""
