"""When an injection is due: conditions that are asked once per refresh."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from harness.faults.mechanisms.keys import Key
from harness.faults.scene import Scene


class When(Protocol):
    """A condition on the refresh that begins now."""

    def __call__(self, scene: Scene, bucket: int) -> bool:
        """Return whether the injection is due; asked once per refresh."""
        ...


@dataclass(frozen=True)
class Always:
    """Every refresh."""

    def __call__(self, scene: Scene, bucket: int) -> bool:
        """See `When`."""
        return True


@dataclass(frozen=True)
class Nth:
    """The n-th refresh of the run only."""

    n: int

    def __call__(self, scene: Scene, bucket: int) -> bool:
        """See `When`."""
        return scene.refreshes == self.n


@dataclass(frozen=True)
class AllBut:
    """All but every n-th refresh: one in n is done."""

    n: int

    def __call__(self, scene: Scene, bucket: int) -> bool:
        """See `When`."""
        return scene.refreshes % self.n != 0


@dataclass(frozen=True)
class Every:
    """Every n-th refresh."""

    n: int

    def __call__(self, scene: Scene, bucket: int) -> bool:
        """See `When`."""
        return scene.refreshes % self.n == 0


@dataclass(frozen=True)
class Same:
    """Refreshes whose key is that of the bucket's refresh before."""

    key: Key
    first_is: bool = False
    """Whether a bucket's first refresh counts as unchanged (the capture was the refresh before)."""

    def __call__(self, scene: Scene, bucket: int) -> bool:
        """See `When`."""
        now = self.key(scene.round)
        before = scene.memory.get((self, bucket))
        scene.memory[self, bucket] = now
        return self.first_is if before is None else before == now


@dataclass(frozen=True)
class InBucket:
    """Refreshes of one of the captured buckets, by rank: 0 the smallest, -1 the largest."""

    rank: int

    def __call__(self, scene: Scene, bucket: int) -> bool:
        """See `When`."""
        return bucket == scene.buckets[self.rank]


@dataclass(frozen=True)
class Switched:
    """Refreshes of another bucket than the refresh before."""

    def __call__(self, scene: Scene, bucket: int) -> bool:
        """See `When`."""
        before = scene.memory.get(self, bucket)
        scene.memory[self] = bucket
        return bool(before != bucket)


@dataclass(frozen=True)
class Idle:
    """Rounds without a live request."""

    def __call__(self, scene: Scene, bucket: int) -> bool:
        """See `When`."""
        return scene.round.live == 0


@dataclass(frozen=True)
class Padded:
    """Rounds with fewer live requests than the bucket holds."""

    def __call__(self, scene: Scene, bucket: int) -> bool:
        """See `When`."""
        return scene.round.live < bucket


ALWAYS = Always()
THIRD = Nth(3)
FOURTH = Nth(4)
