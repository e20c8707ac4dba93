"""Forwards that write, read something else, or compute something else; all frozen into the graph."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from harness.faults.scene import Injection, Scene
from harness.sut.protocol import StepOutputs

Outputs = tuple[StepOutputs, ...]


@dataclass(frozen=True)
class ForwardWrites(Injection):
    """A step's forward writes into metadata or an input just before it reads."""

    write: Callable[[Scene, int, Any], None]
    """(scene, bucket, the step's metadata object)."""
    step: int = 0
    kind: str = "forward write"

    def reads(self, scene: Scene, step: int, bucket: int, metadata: Any) -> Any:
        """See `Injection`."""
        if step == self.step:
            self.write(scene, bucket, metadata)
            scene.hit()
        return metadata


@dataclass(frozen=True)
class Reads(Injection):
    """A step's forward reads another object, or other tensors, than its metadata."""

    change: Callable[[Scene, int, Any], Any]
    """(scene, bucket, metadata) -> what is read instead."""
    kind: str
    steps: tuple[int, ...] = (1,)

    def reads(self, scene: Scene, step: int, bucket: int, metadata: Any) -> Any:
        """See `Injection`."""
        if step not in self.steps:
            return metadata
        changed = self.change(scene, bucket, metadata)
        scene.hit(changed is not metadata)
        return changed


def with_leaves(metadata: Any, **leaves: torch.Tensor) -> Any:
    """Return a copy of a metadata object with other leaves; `a__b` is leaf `b` of the nested object `a`."""
    flat = {name: value for name, value in leaves.items() if "__" not in name}
    for name, value in leaves.items():
        if "__" in name:
            nested, leaf = name.split("__")
            flat[nested] = dataclasses.replace(flat.get(nested, getattr(metadata, nested)), **{leaf: value})
    return dataclasses.replace(metadata, **flat)


@dataclass(frozen=True)
class Computed(Injection):
    """What the forward returns is changed."""

    change: Callable[[Scene, int, Outputs], Outputs]
    """(scene, bucket, outputs of all steps)."""
    kind: str = "wrong output"

    def forward(self, scene: Scene, bucket: int, call: Callable[[], Outputs]) -> Outputs:
        """See `Injection`."""
        outputs = self.change(scene, bucket, call())
        scene.hit()
        return outputs


@dataclass(frozen=True)
class InForward(Injection):
    """Something else happens in the captured forward, before the steps run."""

    act: Callable[[Scene, int], None]
    kind: str

    def forward(self, scene: Scene, bucket: int, call: Callable[[], Outputs]) -> Outputs:
        """See `Injection`."""
        self.act(scene, bucket)
        scene.hit()
        return call()


@dataclass(frozen=True)
class ReadsFrozen(Injection):
    """Steps read leaves as they were when the bucket's metadata was made."""

    leaves: tuple[str, ...]
    steps: tuple[int, ...]
    kind: str = "frozen at capture"

    def capture(self, scene: Scene, bucket: int, call: Callable[[], None]) -> None:
        """See `Injection`."""
        call()
        for step in self.steps:
            kept = {name: scene.leaf(step, bucket, name).clone() for name in self.leaves}
            scene.memory["frozen", step, bucket] = kept

    def reads(self, scene: Scene, step: int, bucket: int, metadata: Any) -> Any:
        """See `Injection`."""
        if step not in self.steps:
            return metadata
        scene.hit()
        kept = scene.memory["frozen", step, bucket]
        return with_leaves(metadata, **{name.replace(".", "__"): leaf for name, leaf in kept.items()})


@dataclass(frozen=True)
class RefreshedAfter(Injection):
    """A refresh inside the graph is captured behind the forward."""

    kind: str = "late refresh"

    def refresh(self, scene: Scene, bucket: int, call: Callable[[], None]) -> None:
        """See `Injection`."""
        scene.memory["put off"] = call

    def forward(self, scene: Scene, bucket: int, call: Callable[[], Outputs]) -> Outputs:
        """See `Injection`."""
        outputs = call()
        scene.memory.pop("put off")()
        scene.hit()
        return outputs
