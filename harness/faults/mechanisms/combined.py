"""Several mechanisms at once, and the one that does nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from harness.faults.scene import Injection, Scene
from harness.rounds import Inputs
from harness.sut.protocol import StepOutputs


@dataclass(frozen=True)
class Unchanged(Injection):
    """Nothing is changed."""

    kind: str = "nothing"

    def start(self, scene: Scene) -> None:
        """See `Injection`."""
        scene.hit()


@dataclass(frozen=True)
class Combined(Injection):
    """Mechanisms within each other, the first one outermost."""

    parts: tuple[Injection, ...]
    kind: str

    def start(self, scene: Scene) -> None:
        """See `Injection`."""
        for part in self.parts:
            part.start(scene)

    def init(self, scene: Scene, call: Callable[[], None]) -> None:
        """See `Injection`."""
        for part in reversed(self.parts):
            call = partial(part.init, scene, call)
        call()

    def capture(self, scene: Scene, bucket: int, call: Callable[[], None]) -> None:
        """See `Injection`."""
        for part in reversed(self.parts):
            call = partial(part.capture, scene, bucket, call)
        call()

    def stage(self, scene: Scene, inputs: Inputs, call: Callable[[Inputs], None]) -> None:
        """See `Injection`."""
        for part in reversed(self.parts):
            call = _staged(part, scene, call)
        call(inputs)

    def refresh(self, scene: Scene, bucket: int, call: Callable[[], None]) -> None:
        """See `Injection`."""
        for part in reversed(self.parts):
            call = partial(part.refresh, scene, bucket, call)
        call()

    def reads(self, scene: Scene, step: int, bucket: int, metadata: Any) -> Any:
        """See `Injection`."""
        for part in self.parts:
            metadata = part.reads(scene, step, bucket, metadata)
        return metadata

    def forward(
        self, scene: Scene, bucket: int, call: Callable[[], tuple[StepOutputs, ...]]
    ) -> tuple[StepOutputs, ...]:
        """See `Injection`."""
        for part in reversed(self.parts):
            call = partial(part.forward, scene, bucket, call)
        return call()

    def eager(self, scene: Scene, rows: int, call: Callable[[], None]) -> None:
        """See `Injection`."""
        for part in reversed(self.parts):
            call = partial(part.eager, scene, rows, call)
        call()

    def pause(self, scene: Scene, call: Callable[[], None]) -> None:
        """See `Injection`."""
        for part in reversed(self.parts):
            call = partial(part.pause, scene, call)
        call()

    def route(self, scene: Scene, call: Callable[[], str]) -> str:
        """See `Injection`."""
        for part in reversed(self.parts):
            call = partial(part.route, scene, call)
        return call()


def _staged(part: Injection, scene: Scene, call: Callable[[Inputs], None]) -> Callable[[Inputs], None]:
    return lambda inputs: part.stage(scene, inputs, call)
