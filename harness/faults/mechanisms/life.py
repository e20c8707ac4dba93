"""What surrounds refreshes and replays: streams, counters, eager calls, warnings, routes, attributes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from harness.faults.mechanisms.when import ALWAYS, THIRD, When
from harness.faults.scene import Injection, Scene
from harness.rounds import Inputs

Act = Callable[[Scene, int], bool | None]
"""Given the scene and a bucket; may return whether anything was changed."""


@dataclass(frozen=True)
class OtherStream(Injection):
    """Staging, the refresh or both run on another stream."""

    wait: bool
    """Whether it waits for the replays in flight."""
    stages: bool = True
    refreshes: bool = True
    kind: str = "unordered stream"

    def stage(self, scene: Scene, inputs: Inputs, call: Callable[[Inputs], None]) -> None:
        """See `Injection`."""
        if not self.stages:
            call(inputs)
            return
        scene.hit()
        with scene.engine.side_stream(wait=self.wait):
            call(inputs)

    def refresh(self, scene: Scene, bucket: int, call: Callable[[], None]) -> None:
        """See `Injection`."""
        if not self.refreshes:
            call()
            return
        scene.hit()
        with scene.engine.side_stream(wait=self.wait):
            call()


@dataclass(frozen=True)
class SecondGraph(Injection):
    """Besides the refresh, a small graph writes step 0's lengths once more, the same values.

    It is launched on a stream of its own, while the graph of the replay before may be in flight; staging runs
    there, too, since the small graph reads what is staged. On the paths that refresh outside the graph.
    """

    wait: bool
    """Whether that stream waits for what is in flight."""
    kind: str = "two graphs in flight"

    def capture(self, scene: Scene, bucket: int, call: Callable[[], None]) -> None:
        """See `Injection`."""
        call()
        lengths, leaf = scene.target.given(bucket).lengths, scene.leaf(0, bucket, "cache_seqlens_int32")
        with scene.quiet():
            scene.memory["graph", bucket], _ = scene.engine.capture(lambda: leaf.copy_(lengths))

    def stage(self, scene: Scene, inputs: Inputs, call: Callable[[Inputs], None]) -> None:
        """See `Injection`."""
        with scene.engine.side_stream(wait=self.wait):
            call(inputs)

    def refresh(self, scene: Scene, bucket: int, call: Callable[[], None]) -> None:
        """See `Injection`."""
        call()
        scene.hit()
        with scene.quiet(), scene.engine.side_stream(wait=self.wait):
            scene.engine.launch(scene.memory["graph", bucket])


@dataclass(frozen=True)
class Staged(Injection):
    """Other values are staged than the round has."""

    change: Callable[[Scene, Inputs], Inputs]
    kind: str

    def stage(self, scene: Scene, inputs: Inputs, call: Callable[[Inputs], None]) -> None:
        """See `Injection`."""
        changed = self.change(scene, inputs)
        scene.hit(changed is not inputs)
        call(changed)


@dataclass(frozen=True)
class AfterStaging(Injection):
    """Something happens once a round is staged for a bucket that has metadata, before the refresh is due."""

    act: Act
    kind: str

    def stage(self, scene: Scene, inputs: Inputs, call: Callable[[Inputs], None]) -> None:
        """See `Injection`."""
        call(inputs)
        if inputs.bucket in scene.buckets:
            scene.hit(self.act(scene, inputs.bucket) is not False)


@dataclass(frozen=True)
class Around(Injection):
    """Something happens before or after a refresh, of no effect on which leaves it writes."""

    act: Act
    kind: str
    when: When = ALWAYS
    before: bool = False
    hidden: bool = False
    """Whether the ledger does not see what it writes."""

    def refresh(self, scene: Scene, bucket: int, call: Callable[[], None]) -> None:
        """See `Injection`."""
        due = self.when(scene, bucket)
        if not self.before:
            call()
        if due:
            if self.hidden:
                with scene.quiet():
                    changed = self.act(scene, bucket)
            else:
                changed = self.act(scene, bucket)
            scene.hit(changed is not False)
        if self.before:
            call()


@dataclass(frozen=True)
class AtCapture(Injection):
    """Something happens after a bucket's metadata was made."""

    act: Act
    kind: str

    def capture(self, scene: Scene, bucket: int, call: Callable[[], None]) -> None:
        """See `Injection`."""
        call()
        scene.hit(self.act(scene, bucket) is not False)


@dataclass(frozen=True)
class Eager(Injection):
    """Something happens after an eager call between replays."""

    act: Callable[[Scene, int], None]
    """(scene, rows of the call)."""
    kind: str

    def eager(self, scene: Scene, rows: int, call: Callable[[], None]) -> None:
        """See `Injection`."""
        call()
        scene.hit()
        self.act(scene, rows)


@dataclass(frozen=True)
class OnPause(Injection):
    """Memory that is released and taken again comes back otherwise."""

    act: Callable[[Scene], None] | None
    """After it; None: instead of it, nothing happens at all."""
    kind: str

    def pause(self, scene: Scene, call: Callable[[], None]) -> None:
        """See `Injection`."""
        scene.hit()
        if self.act is not None:
            call()
            self.act(scene)


@dataclass(frozen=True)
class Raises(Injection):
    """A refresh raises."""

    error: Exception
    when: When = THIRD
    kind: str = "exception"

    def refresh(self, scene: Scene, bucket: int, call: Callable[[], None]) -> None:
        """See `Injection`."""
        if self.when(scene, bucket):
            scene.hit()
            raise self.error
        call()


@dataclass(frozen=True)
class Says(Injection):
    """A refresh says something, in whichever way."""

    say: Callable[[str], object]
    text: str
    when: When = THIRD
    kind: str = "fallback with a warning"

    def refresh(self, scene: Scene, bucket: int, call: Callable[[], None]) -> None:
        """See `Injection`."""
        if self.when(scene, bucket):
            scene.hit()
            self.say(self.text)
        call()


@dataclass(frozen=True)
class OtherRoute(Injection):
    """The system's evidence names another path."""

    name: str
    when: When = ALWAYS
    kind: str = "other path"

    def route(self, scene: Scene, call: Callable[[], str]) -> str:
        """See `Injection`."""
        plain = call()
        if plain and self.when(scene, scene.round.bucket):
            scene.hit()
            return self.name
        return plain
