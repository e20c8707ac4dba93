"""What an injection may touch: one system opened up, the same on every system, and one run's bookkeeping."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import torch
from torch.utils._python_dispatch import _disable_current_modes

from harness.case import Case
from harness.engine.protocol import Engine
from harness.fields import Dims
from harness.probe.leaves import leaf_tensors
from harness.rounds import Inputs
from harness.sut.protocol import SpanRecorder, StepOutputs, Sut
from harness.traffic import other_bucket

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Given:
    """The device tensors of one bucket that a refresh reads."""

    lengths: torch.Tensor
    """int64 `[bs]`, `seq_lens`."""
    requests: torch.Tensor
    """int64 `[bs]`, `req_pool_indices`."""
    accepted: torch.Tensor
    """int32 `[bs]`, accepted tokens (draft-extend)."""
    table: torch.Tensor
    """int32 `[requests, W]`, `req_to_token`."""


@dataclass
class Hooks:
    """Where a target calls back from within its own calls; None leaves a place as it is."""

    in_graph: Callable[[int, Callable[[], None]], None] | None = None
    """Around a refresh that runs inside the captured forward: (bucket, the plain refresh)."""
    reads: Callable[[int, int, Any], Any] | None = None
    """(step, bucket, metadata) -> the object that this step's forward reads instead."""


class Target(Sut, Protocol):
    """A system under test that can be opened: what a mechanism needs besides the `Sut` protocol."""

    hooks: Hooks

    def point(self, step: int, bucket: int, metadata: Any, *, entry: bool = True) -> None:
        """Make `metadata` the active object of a step, and its entry for the bucket unless `entry` is off."""
        ...

    def rebind_state(self, step: int, name: str, tensor: torch.Tensor) -> None:
        """Assign another tensor to backend state, by its name in `StepRoots.state` (dotted where nested)."""
        ...

    def given(self, bucket: int) -> Given:
        """Return the persistent tensors that a refresh of the bucket reads."""
        ...

    def reading(self, given: Given) -> AbstractContextManager[None]:
        """Within it, a refresh reads these tensors instead."""
        ...


Opener = Callable[[Case, Engine, SpanRecorder], Target]
"""How a system is made so that it can be opened."""


@dataclass
class Trace:
    """What an injection did in one run."""

    reached: int = 0
    """How often it was due."""
    changed: int = 0
    """How often it then changed something that is defined."""


@dataclass
class Scene:
    """One run of a system with an injection; whatever a mechanism remembers is in `memory`."""

    case: Case
    engine: Engine
    target: Target
    trace: Trace
    inputs: Inputs | None = None
    """The round that was staged last, padded."""
    refreshes: int = 0
    """Refreshes begun so far, this one included."""
    memory: dict[Hashable, Any] = field(default_factory=dict)

    @property
    def in_graph(self) -> bool:
        """Whether refreshes run inside the captured forward, where nothing may depend on a round."""
        return self.case.path.in_graph

    @property
    def steps(self) -> range:
        """All draft steps."""
        return range(self.target.steps)

    @property
    def buckets(self) -> tuple[int, ...]:
        """Buckets that have metadata, ascending."""
        return tuple(sorted(self.target.roots()[0].metadata))

    @property
    def round(self) -> Inputs:
        """The staged round; there is one whenever a system is captured or refreshed."""
        assert self.inputs is not None
        return self.inputs

    @property
    def planned(self) -> tuple[int, ...]:
        """Buckets that the case's program captures, ascending."""
        return tuple(sorted({self.case.bucket, other_bucket(self.case)} - {0}))

    def dims(self, bucket: int) -> Dims:
        """Return the dimensions of a bucket's metadata."""
        return Dims.of(self.case, bucket)

    def metadata(self, step: int, bucket: int) -> Any:
        """Return a step's metadata object for a bucket."""
        return self.target.roots()[step].metadata[bucket]

    def leaves(self, step: int, bucket: int) -> dict[str, torch.Tensor]:
        """Return all leaves of a step's metadata by dotted name."""
        return dict(leaf_tensors(self.metadata(step, bucket)))

    def leaf(self, step: int, bucket: int, name: str) -> torch.Tensor:
        """Return one leaf. KeyError where this case has none of that name."""
        return self.leaves(step, bucket)[name]

    def bind(self, step: int, bucket: int, name: str, value: Any) -> None:
        """Assign an attribute below a step's metadata object, as `object.__setattr__` does."""
        *path, last = name.split(".")
        owner = self.metadata(step, bucket)
        for part in path:
            owner = getattr(owner, part)
        object.__setattr__(owner, last, value)

    def recall(self, key: Hashable, make: Callable[[], T]) -> T:
        """Return what is remembered under `key`, made now if there is nothing."""
        if key not in self.memory:
            self.memory[key] = make()
        found: T = self.memory[key]
        return found

    def hit(self, changed: bool = True) -> None:
        """Note that the injection was due, and whether that changed something."""
        self.trace.reached += 1
        self.trace.changed += changed

    def quiet(self) -> AbstractContextManager[Any]:
        """Within it, writes are not seen by the ledger: the values of a write that the ledger has seen.

        Inside a graph nothing can be hidden from the recording, so there it does nothing.
        """
        return nullcontext() if self.in_graph else _disable_current_modes()


class Injection:
    """A change to a system. Every method stands around one of its calls; as written, nothing is changed.

    Subclasses are frozen dataclasses without state: what a run has to remember is in the scene.
    """

    kind: str
    """The mechanism, a few words."""

    def start(self, scene: Scene) -> None:
        """Before anything is built."""

    def init(self, scene: Scene, call: Callable[[], None]) -> None:
        """Around the making of the graph state."""
        call()

    def capture(self, scene: Scene, bucket: int, call: Callable[[], None]) -> None:
        """Around the making of a bucket's metadata (not around the captured forward)."""
        call()

    def stage(self, scene: Scene, inputs: Inputs, call: Callable[[Inputs], None]) -> None:
        """Around the staging of a round."""
        call(inputs)

    def refresh(self, scene: Scene, bucket: int, call: Callable[[], None]) -> None:
        """Around a refresh, before the replay or inside the graph."""
        call()

    def decode(self, scene: Scene, bucket: int, call: Callable[[], None]) -> None:
        """Around a round whose refreshes and replays take turns."""
        call()

    def reads(self, scene: Scene, step: int, bucket: int, metadata: Any) -> Any:
        """Return the object that a step's forward reads."""
        return metadata

    def forward(
        self, scene: Scene, bucket: int, call: Callable[[], tuple[StepOutputs, ...]]
    ) -> tuple[StepOutputs, ...]:
        """Around the forward of all steps, warm-up and capture."""
        return call()

    def eager(self, scene: Scene, rows: int, call: Callable[[], None]) -> None:
        """Around an eager call between replays."""
        call()

    def pause(self, scene: Scene, call: Callable[[], None]) -> None:
        """Around a pause and resume between replays."""
        call()

    def route(self, scene: Scene, call: Callable[[], str]) -> str:
        """Around the system's own evidence of its path."""
        return call()
