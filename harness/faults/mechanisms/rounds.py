"""Rounds that prove too little: a fault of the harness's own input, not of a system."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from harness.faults.scene import Injection, Scene
from harness.rounds import Program


@dataclass(frozen=True)
class WeakRounds(Injection):
    """The program is another one."""

    change: Callable[[Program], Program]
    kind: str = "weak rounds"

    def start(self, scene: Scene) -> None:
        """See `Injection`."""
        scene.hit()
