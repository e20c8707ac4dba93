"""Refreshes that do not run, run more than once, or run on what was."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass

import torch

from harness.faults.mechanisms.when import ALWAYS, When
from harness.faults.scene import Given, Injection, Scene


@dataclass(frozen=True)
class Skipped(Injection):
    """The whole refresh is left out where it is due to be."""

    when: When
    kind: str = "skipped refresh"

    def refresh(self, scene: Scene, bucket: int, call: Callable[[], None]) -> None:
        """See `Injection`."""
        if self.when(scene, bucket):
            scene.hit()
        else:
            call()


@dataclass(frozen=True)
class Repeated(Injection):
    """The refresh runs more than once; the values are right."""

    times: int = 2
    when: When = ALWAYS
    kind: str = "duplicated refresh"

    def refresh(self, scene: Scene, bucket: int, call: Callable[[], None]) -> None:
        """See `Injection`."""
        call()
        if self.when(scene, bucket):
            scene.hit()
            for _ in range(self.times - 1):
                call()


@dataclass(frozen=True)
class LeftOut(Injection):
    """These leaves are not written: what is derived goes into buffers that no graph reads.

    Steps that share an object are told apart by the object only, so name steps on paths that copy.
    """

    leaves: tuple[str, ...]
    steps: tuple[int, ...] | None = None
    """None: all."""
    when: When = ALWAYS
    kind: str = "stale field"

    def refresh(self, scene: Scene, bucket: int, call: Callable[[], None]) -> None:
        """Refresh with scratch tensors bound in place of the leaves, then bind the leaves again."""
        if not self.when(scene, bucket):
            call()
            return
        with ExitStack() as undo:
            done: set[tuple[int, str]] = set()
            for step in scene.steps if self.steps is None else self.steps:
                for name in self.leaves:
                    place = id(scene.metadata(step, bucket)), name
                    if place in done:
                        continue
                    done.add(place)
                    leaf = scene.leaf(step, bucket, name)
                    scene.bind(step, bucket, name, leaf.clone())
                    undo.callback(scene.bind, step, bucket, name, leaf)
                    scene.hit()
            call()


@dataclass(frozen=True)
class Reading(Injection):
    """The refresh reads other inputs than those staged."""

    change: Callable[[Scene, Given], Given | None]
    """None: nothing to change in this round."""
    kind: str
    when: When = ALWAYS
    alike: bool = False
    """Whether equal values in other tensors count as a change."""

    def refresh(self, scene: Scene, bucket: int, call: Callable[[], None]) -> None:
        """See `Injection`."""
        given = scene.target.given(bucket)
        with scene.quiet():
            changed = self.change(scene, given)
        if changed is None or not self.when(scene, bucket):
            call()
            return
        scene.hit(scene.in_graph or self.alike or not _same(given, changed))
        with scene.target.reading(changed):
            call()


def _same(one: Given, other: Given) -> bool:
    return all(torch.equal(a, b) for a, b in zip(vars(one).values(), vars(other).values(), strict=True))
