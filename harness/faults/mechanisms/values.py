"""Leaves that a refresh leaves with other values: stale, partial, misplaced, of another formula."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from harness.faults.mechanisms.when import ALWAYS, When
from harness.faults.scene import Given, Injection, Scene
from harness.fields import Dims, canonical, fields_for
from harness.probe.snapshot import to_numpy
from harness.rounds import Inputs


@dataclass(frozen=True, eq=False)
class Spot:
    """One leaf of one step after its refresh, before a rule changes it."""

    scene: Scene
    step: int
    bucket: int
    name: str
    fresh: torch.Tensor
    """A copy of the right value."""
    before: torch.Tensor
    """A copy of what the leaf held before the refresh: what stays where nothing is written."""

    @property
    def dims(self) -> Dims:
        """Dimensions of the bucket's metadata."""
        return self.scene.dims(self.bucket)

    @property
    def round(self) -> Inputs:
        """The staged round."""
        return self.scene.round

    @property
    def given(self) -> Given:
        """The tensors that the refresh read."""
        return self.scene.target.given(self.bucket)

    def sibling(self, name: str) -> torch.Tensor:
        """Return another leaf of the same object."""
        return self.scene.leaf(self.step, self.bucket, name)

    def differs(self, value: torch.Tensor) -> bool:
        """Whether defined elements of a value differ from the right one's."""
        field = fields_for(self.dims).get(self.name)
        old, new = to_numpy(self.fresh), to_numpy(value)
        if field is not None and old.shape == new.shape == field.shape(self.dims):
            old, new = (_defined(self, field, array) for array in (old, new))
        return not np.array_equal(old, new)


def _defined(spot: Spot, field: Any, array: NDArray[np.generic]) -> NDArray[np.generic]:
    return canonical(field, spot.dims, spot.round, array)


Rule = Callable[[Spot], torch.Tensor | None]
"""Returns what the leaf holds instead (its shape and dtype), or None to leave it right."""


@dataclass(frozen=True)
class Rewritten(Injection):
    """The refresh writes these leaves as often as it should, but other values.

    A leaf that lies at the same bytes in several steps is changed once. With `everything` also changes
    of undefined elements count as changes: what a harmless change does.
    """

    leaves: tuple[str, ...]
    rule: Rule
    kind: str
    steps: tuple[int, ...] | None = None
    """None: all."""
    when: When = ALWAYS
    everything: bool = False

    def capture(self, scene: Scene, bucket: int, call: Callable[[], None]) -> None:
        """Remember what the leaves hold after they were made."""
        call()
        for step, name, leaf in self._found(scene, bucket):
            scene.memory["captured", step, bucket, name] = leaf.clone()

    def refresh(self, scene: Scene, bucket: int, call: Callable[[], None]) -> None:
        """Refresh, then put the rule's values in place."""
        due = self.when(scene, bucket)
        before = [leaf.clone() for _, _, leaf in self._found(scene, bucket)]
        call()
        for (step, name, leaf), held in zip(self._found(scene, bucket), before, strict=True):
            with scene.quiet():
                spot = Spot(scene, step, bucket, name, leaf.clone(), held)
                value = self.rule(spot)
                if value is None or not due:
                    continue
                leaf.copy_(value)
                changed = scene.in_graph or self.everything or spot.differs(leaf)
            scene.hit(changed)

    def _found(self, scene: Scene, bucket: int) -> Iterator[tuple[int, str, torch.Tensor]]:
        seen = set()
        for step in scene.steps if self.steps is None else self.steps:
            for name in self.leaves:
                leaf = scene.leaf(step, bucket, name)
                place = leaf.data_ptr(), leaf.shape, leaf.stride()
                if place not in seen:
                    seen.add(place)
                    yield step, name, leaf
