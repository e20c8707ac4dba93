"""Objects and leaves that lie elsewhere than they should: rebound, freed, reshaped, own where shared."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

import torch

from harness.faults.mechanisms.when import FOURTH, When
from harness.faults.scene import Injection, Scene


@dataclass(frozen=True)
class Rebound(Injection):
    """A leaf is assigned instead of copied into."""

    leaf: str
    when: When = FOURTH
    step: int = 0
    free: bool = False
    """Whether nobody keeps the old tensor; it counts as freed where no other leaf shares its storage."""
    before: bool = False
    """Rebind before the refresh, which then writes into the new tensor."""
    kind: str = "rebound leaf"

    def refresh(self, scene: Scene, bucket: int, call: Callable[[], None]) -> None:
        """See `Injection`."""
        due = self.when(scene, bucket)
        if not self.before:
            call()
        if due:
            old = scene.leaf(self.step, bucket, self.leaf)
            if not self.free:
                scene.memory.setdefault("old tensors", []).append(old)
            with scene.quiet():
                scene.bind(self.step, bucket, self.leaf, old.clone())
            scene.hit()
        if self.before:
            call()


@dataclass(frozen=True)
class MadeOtherwise(Injection):
    """A leaf is made otherwise when the bucket's metadata is built: another size, stride, dtype or place."""

    leaf: str
    make: Callable[[Scene, int, torch.Tensor], torch.Tensor]
    """(scene, bucket, the leaf as it is) -> the tensor that is bound instead."""
    kind: str
    steps: tuple[int, ...] = (0,)

    def capture(self, scene: Scene, bucket: int, call: Callable[[], None]) -> None:
        """See `Injection`."""
        call()
        for step in self.steps:
            value = self.make(scene, bucket, scene.leaf(step, bucket, self.leaf))
            scene.bind(step, bucket, self.leaf, value)
            scene.hit()


@dataclass(frozen=True)
class OwnObject(Injection):
    """A step has a metadata object of its own where it should share step 0's."""

    step: int = 1
    buckets: tuple[int, ...] = (0, -1)
    """Ranks among the buckets that the case captures: 0 the smallest, -1 the largest."""
    nested: str = ""
    """Only this nested object is its own; empty: every leaf."""
    cloned: bool = True
    """Whether the leaves are copies; if not, only the object is another one."""
    again: bool = False
    """Whether the step also keeps to it at every refresh."""
    kind: str = "own object"

    def capture(self, scene: Scene, bucket: int, call: Callable[[], None]) -> None:
        """See `Injection`."""
        call()
        if bucket in {scene.planned[rank] for rank in self.buckets}:
            shared = scene.metadata(0, bucket)
            if self.nested:
                own = dataclasses.replace(
                    shared, **{self.nested: _copied(getattr(shared, self.nested), self.cloned)}
                )
            else:
                own = _copied(shared, self.cloned)
            scene.memory["own", bucket] = own
            scene.target.point(self.step, bucket, own)
            scene.hit()

    def refresh(self, scene: Scene, bucket: int, call: Callable[[], None]) -> None:
        """See `Injection`."""
        call()
        own = scene.memory.get(("own", bucket))
        if self.again and own is not None:
            scene.target.point(self.step, bucket, own)


def _copied(source: Any, cloned: bool) -> Any:
    """Copy a dataclass, its tensors and nested dataclasses too if `cloned`."""
    if not cloned:
        return dataclasses.replace(source)
    changes: dict[str, Any] = {}
    for field in dataclasses.fields(source):
        value = getattr(source, field.name)
        if isinstance(value, torch.Tensor):
            changes[field.name] = value.clone()
        elif dataclasses.is_dataclass(value):
            changes[field.name] = _copied(value, cloned)
    return dataclasses.replace(source, **changes)


@dataclass(frozen=True)
class NotRepointed(Injection):
    """A step's active object stays what it was before the refresh."""

    step: int = 1
    kind: str = "wrong bucket's object"

    def refresh(self, scene: Scene, bucket: int, call: Callable[[], None]) -> None:
        """See `Injection`."""
        before = scene.target.roots()[self.step].active
        call()
        root = scene.target.roots()[self.step]
        scene.hit(before is not root.active)
        scene.target.point(self.step, bucket, before, entry=False)


@dataclass(frozen=True)
class StateRebound(Injection):
    """Backend state is assigned anew by an eager call, a capture or the making of the graph state."""

    name: str
    make: Callable[[Scene, int, torch.Tensor], torch.Tensor]
    """(scene, step, the tensor as it is) -> the tensor that is assigned."""
    at: str
    """`init`, `capture` or `eager`."""
    kind: str
    steps: tuple[int, ...] | None = None
    """None: all that have it."""

    def init(self, scene: Scene, call: Callable[[], None]) -> None:
        """See `Injection`."""
        call()
        if self.at == "init":
            self._rebind(scene)

    def capture(self, scene: Scene, bucket: int, call: Callable[[], None]) -> None:
        """See `Injection`; the first capture of a bucket changes nothing."""
        call()
        key: Hashable = "captured once", bucket
        if self.at == "capture" and key in scene.memory:
            self._rebind(scene)
        scene.memory[key] = True

    def eager(self, scene: Scene, rows: int, call: Callable[[], None]) -> None:
        """See `Injection`."""
        call()
        if self.at == "eager":
            self._rebind(scene)

    def _rebind(self, scene: Scene) -> None:
        for step in scene.steps if self.steps is None else self.steps:
            old = scene.target.roots()[step].state.get(self.name)
            if old is not None:
                scene.target.rebind_state(step, self.name, self.make(scene, step, old))
                scene.hit()


@dataclass(frozen=True)
class KeptOnRecapture(Injection):
    """A step keeps its object when a bucket is captured again."""

    step: int = 1
    kind: str = "wrong object"

    def capture(self, scene: Scene, bucket: int, call: Callable[[], None]) -> None:
        """See `Injection`."""
        old = scene.target.roots()[self.step].metadata.get(bucket)
        call()
        if old is not None:
            scene.target.point(self.step, bucket, old)
            scene.hit()
