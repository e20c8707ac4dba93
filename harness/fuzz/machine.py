"""The life of a backend as a Hypothesis state machine: it draws operations; the sequence is run at its end.

Rules only choose; nothing is driven while they do. So what a rule may choose is a matter of plain state
(which buckets are captured, which batch came last), and one example costs one run.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from harness.fuzz.draw import EAGER_ROWS, Rows, any_rows, capture_rows, next_rows
from harness.fuzz.sequence import (
    Capture,
    Churn,
    Eager,
    Operation,
    Pause,
    Replay,
    Sequence,
    Setting,
    case_of,
)
from harness.fuzz.space import Room, Space
from harness.load.profile import profile_of
from harness.load.server import Server

MOST_CAPTURES = 4
"""Captures of one sequence; each costs as much as several replays."""

MOST_SERVED = 6
"""Rounds of one stretch of served traffic."""

DATA: st.SearchStrategy[Any] = st.data()


class LifeOfABackend(RuleBasedStateMachine):
    """Draws one sequence and hands it to `play` in the end. See `machine_of`."""

    def __init__(self, space: Space, play: Callable[[Sequence], None]) -> None:
        super().__init__()
        self._space = space
        self._play = play
        self._setting: Setting | None = None
        self._room: Room | None = None
        self._ordinary = False
        self._operations: list[Operation] = []
        self._last: dict[int, Rows] = {}
        self._bucket = 0
        """The bucket of the last replay, 0 before the first."""

    @property
    def room(self) -> Room:
        """What batches may be, once the setting is drawn."""
        assert self._room is not None
        return self._room

    @initialize(data=DATA)
    def build(self, data: Any) -> None:
        """A system is built in some setting and a bucket or two captured."""
        mode = data.draw(st.sampled_from(list(self._space.settings)), label="mode")
        settings = self._space.settings[mode]
        number = st.integers(0, len(settings) - 1)
        self._setting = settings[min(data.draw(number), data.draw(number))]  # the first ones are cheaper
        self._ordinary = data.draw(st.sampled_from((False, False, False, True)))
        self._room = self._space.room(self._setting)
        for _ in range(data.draw(st.integers(1, 2))):
            self._capture(data, self._any_bucket(data))

    @precondition(lambda self: self._count(Capture) < min(MOST_CAPTURES, 1 + self._count(Replay)))
    @rule(data=DATA)
    def capture(self, data: Any) -> None:
        """Any bucket is captured, a captured one again."""
        self._capture(data, self._any_bucket(data))

    @rule(data=DATA)
    def replay(self, data: Any) -> None:
        """A batch of its own, in any captured bucket."""
        bucket = data.draw(st.sampled_from(sorted(self._last)))
        self._replay(data, bucket, data.draw(any_rows(self.room, bucket)))

    @rule(data=DATA)
    def proceed(self, data: Any) -> None:
        """A batch that differs by one move from the last one of its bucket."""
        bucket = self._bucket or data.draw(st.sampled_from(sorted(self._last)))
        self._replay(data, bucket, data.draw(next_rows(self.room, bucket, self._last[bucket])))

    @precondition(lambda self: len(self._last) > 1)
    @rule(data=DATA)
    def switch(self, data: Any) -> None:
        """Another bucket than the last, with a batch like its own last or like the last of all."""
        others = [bucket for bucket in sorted(self._last) if bucket != self._bucket]
        bucket = data.draw(st.sampled_from(others))
        source = data.draw(st.sampled_from((bucket, self._bucket or bucket)))
        self._replay(data, bucket, data.draw(next_rows(self.room, bucket, self._last[source])))

    @precondition(lambda self: self._count(Eager, Churn, Pause) < 1 + self._count(Replay))
    @rule(data=DATA)
    def disturb(self, data: Any) -> None:
        """An unrelated eager call, allocations made and freed, or memory released and taken again."""
        kinds = (Eager, Churn, Pause) if self._space.pauses else (Eager, Churn)
        kind = data.draw(st.sampled_from(kinds))
        if kind is Eager:
            self._operations.append(Eager(rows=data.draw(st.sampled_from(EAGER_ROWS))))
        else:
            self._operations.append(kind())

    def teardown(self) -> None:
        """Run what was drawn."""
        if self._setting is not None and self._operations:
            operations = tuple(self._operations)
            self._play(Sequence(setting=self._setting, operations=operations, ordinary=self._ordinary))

    def _any_bucket(self, data: Any) -> int:
        """Draw a batch size; the smallest, in which no rows can be mixed up, less often."""
        first, *others = self.room.buckets
        bucket: int = data.draw(st.sampled_from((first, *others, *others)))
        return bucket

    def _count(self, *kinds: type[Operation]) -> int:
        return sum(isinstance(one, kinds) for one in self._operations)

    def _capture(self, data: Any, bucket: int) -> None:
        rows = data.draw(capture_rows(self.room, bucket))
        self._last.setdefault(bucket, rows)
        self._operations.append(
            Capture(
                bucket=bucket,
                lengths=rows.lengths,
                requests=rows.requests,
                pages=rows.pages,
                accepted=rows.accepted,
            )
        )

    def _replay(self, data: Any, bucket: int, rows: Rows) -> None:
        self._last[bucket], self._bucket = rows, bucket
        self._operations.append(
            Replay(
                bucket=bucket,
                lengths=rows.lengths,
                requests=rows.requests,
                pages=rows.pages,
                accepted=rows.accepted,
                exchange=rows.exchange,
                junk=rows.junk,
                delayed=data.draw(st.sampled_from((False, False, False, True))),
            )
        )


class ServedLife(LifeOfABackend):
    """The same with stretches of a server's traffic among its operations."""

    @rule(data=DATA)
    def serve(self, data: Any) -> None:
        """Some rounds in a row of a simulated server, on the buckets that are captured."""
        assert self._setting is not None
        buckets = tuple(sorted(self._last))
        case = case_of(self._setting, self._space.models[self._setting.model], buckets)
        profile = data.draw(st.sampled_from(profile_of(self._space.load)))
        server = Server(case, buckets, (profile,), data.draw(st.integers(0, 1 << 16)))
        skipped = data.draw(st.integers(0, 60))
        rounds = [one for one in islice(server.operations(), 80) if isinstance(one, Replay)]
        stretch = rounds[skipped:][: data.draw(st.integers(1, MOST_SERVED))]
        self._operations += stretch
        if stretch:
            self._bucket = stretch[-1].bucket


def machine_of(space: Space, play: Callable[[Sequence], None]) -> type[RuleBasedStateMachine]:
    """Return a state machine over `space` whose examples `play` runs; `play` raises on a finding."""

    base = ServedLife if space.load else LifeOfABackend

    class Life(base):  # type: ignore[valid-type,misc]
        """One example."""

        def __init__(self) -> None:
            super().__init__(space, play)

    return Life
