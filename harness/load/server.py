"""A simulated server: requests arrive, grow by accepted tokens, finish, are preempted; slots and pages are
reused.

It makes the operations of a sequence, one round after the other, without end and in constant memory.
Everything follows from the seed, so a run that was interrupted goes on by making and skipping what it had
done.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass, field

from harness.case import Case
from harness.fuzz.sequence import Capture, Churn, Eager, Operation, Replay
from harness.lengths import Scale
from harness.load.pool import SharedPages
from harness.load.profile import TURN, Profile
from harness.pages import guard_page, page_columns
from harness.types import Mode

EAGER_ROWS = (3, 300, 8_193)
IDLE_ROUNDS = 6
"""Idle rounds in a row, on average."""


@dataclass(eq=False)
class Request:
    """One live request."""

    slot: int
    """Its row of the request table."""
    length: int
    """As `rounds.Round.lengths`."""
    left: int
    """Tokens that it still generates."""
    pages: list[int] = field(default_factory=list)
    accepted: int = 1


@dataclass(frozen=True)
class Waiting:
    """A request that was preempted."""

    length: int
    left: int


class Server:
    """The state of the simulation between two rounds."""

    def __init__(
        self, case: Case, buckets: tuple[int, ...], profiles: tuple[Profile, ...], seed: int
    ) -> None:
        """Serve batches up to the largest bucket; several profiles take turns."""
        self.scale = Scale.of(case)
        self.buckets = tuple(sorted(buckets))
        self._profiles = profiles
        self._rng = random.Random(f"{seed}/{case.model.name}/{case.mode}/{self.buckets}")
        geometry = case.geometry
        last = guard_page(case.model, geometry) - 1
        self._pages = SharedPages(geometry.first_page, last, self._rng)
        self._columns = page_columns(case.model, geometry)
        self._slots = list(range(1, geometry.requests))
        self._rng.shuffle(self._slots)
        self._most = min(self.buckets[-1], len(self._slots))
        self._live: list[Request] = []
        self._waiting: list[Waiting] = []
        self._draining = False
        self._idle = self._others = 0
        self._rounds = 0

    def captures(self) -> Iterator[Capture]:
        """Yield a capture of each bucket, largest first, with the batch that servers capture with."""
        length = self.scale.clip(1)
        for bucket in reversed(self.buckets):
            live = min(bucket, self._most)
            slots = tuple(range(1, live + 1))
            yield Capture(bucket=bucket, lengths=(length,) * live, requests=slots)

    def operations(self) -> Iterator[Operation]:
        """Yield captures, then rounds without end, disturbances between them."""
        yield from self.captures()
        while True:
            profile = self._profiles[self._rounds // TURN % len(self._profiles)]
            self._rounds += 1
            self._pages.limit = max(self._columns, round(profile.pool * self._most * self._columns))
            if self._rng.random() < profile.disturb:
                yield self._disturbance()
            yield self._round(profile)

    def _disturbance(self) -> Operation:
        if self._rng.random() < 0.5:
            return Churn()
        return Eager(rows=self._rng.choice(EAGER_ROWS))

    def _round(self, profile: Profile) -> Replay:
        self._grow()
        self._admit(profile)
        live = len(self._live)
        if not live:
            return Replay(bucket=self._bucket_of_others())
        bucket = next(size for size in self.buckets if size >= live)
        extend = self.scale.mode is Mode.DRAFT_EXTEND
        return Replay(
            bucket=bucket,
            lengths=tuple(one.length for one in self._live),
            requests=tuple(one.slot for one in self._live),
            pages=tuple(tuple(one.pages) for one in self._live),
            accepted=tuple(one.accepted for one in self._live) if extend else (),
        )

    def _bucket_of_others(self) -> int:
        """Return the bucket of an idle round: other ranks have work and this one keeps step."""
        if not self._others or self._rng.random() < 0.2:
            self._others = self._rng.choice(self.buckets)
        return self._others

    def _grow(self) -> None:
        """Every request grows by its accepted tokens; those that are done or too long finish."""
        for request in list(self._live):
            request.accepted = self._accepted()
            request.length += request.accepted
            request.left -= request.accepted
            if request.left <= 0 or not self.scale.legal(request.length):
                self._finish(request)
        for request in list(self._live):
            if request in self._live:  # it may have been preempted for one before it
                self._cover(request)

    def _cover(self, request: Request) -> None:
        """Give a request the pages that it needs; others are preempted for them, the youngest first."""
        needed = self.scale.columns(request.length) - len(request.pages)
        while needed > self._pages.free:
            youngest = self._live[-1]
            self._finish(youngest)
            self._waiting.append(Waiting(youngest.length, youngest.left))
            if youngest is request:
                return
        if needed > 0:
            request.pages += self._pages.take(needed)

    def _finish(self, request: Request) -> None:
        self._live.remove(request)
        self._pages.release(request.pages)
        self._slots.append(request.slot)

    def _admit(self, profile: Profile) -> None:
        """Preempted requests come back first, then new ones arrive, while there is room for them."""
        if not self._live:
            self._draining = False
            if self._idle:
                self._idle -= 1
                return
        elif self._rng.random() < profile.drain:
            self._draining = True
        if self._draining:
            return
        if self._rng.random() < profile.idle:  # from now on nothing arrives, until a while after the last
            self._draining = bool(self._live)
            self._idle = 1 + int(self._rng.expovariate(1 / IDLE_ROUNDS))
            return
        count = self._poisson(profile.arrivals)
        if self._rng.random() < profile.burst:
            count = self._most
        new = [*self._waiting, *(self._arrival(profile) for _ in range(count))]
        self._waiting = []
        preempted = len(new) - count
        for index, one in enumerate(new):
            full = len(self._live) >= self._most
            if full or not self._start(one, profile, preempted=index < preempted):
                self._waiting = list(new[index:preempted])  # new ones that find no room go elsewhere
                if not self._live:  # not even alone: it has outgrown the pool
                    self._waiting = self._waiting[1:]
                return

    def _start(self, one: Waiting, profile: Profile, *, preempted: bool) -> bool:
        """Begin with a request, perhaps on some pages of another; False where pages are missing."""
        needed = self.scale.columns(one.length)
        shared: list[int] = []
        if self._live and not preempted and self._rng.random() < profile.prefix:
            source = self._rng.choice(self._live)
            whole = min(source.length // self.scale.page_tokens, needed - 1, len(source.pages))
            shared = source.pages[: max(0, whole)]
        if needed - len(shared) > self._pages.free:
            return False
        request = Request(self._slots.pop(0), one.length, one.left, self._pages.share(shared))
        request.pages += self._pages.take(needed - len(shared))
        request.accepted = self._accepted()
        self._live.append(request)
        return True

    def _arrival(self, profile: Profile) -> Waiting:
        scale, width = self.scale, self.scale.width
        low, high = max(1.0, profile.shortest * width), max(2.0, profile.longest * width)
        length = int(math.exp(self._rng.uniform(math.log(low), math.log(high))))
        if self._rng.random() < profile.tail:
            length = scale.high - int(self._rng.expovariate(8 / width))
        left = 1 + int(self._rng.expovariate(1 / profile.output))
        return Waiting(scale.clip(length), left)

    def _accepted(self) -> int:
        """Draw accepted tokens, 1..N, larger ones less likely, as speculation has it."""
        accepted = 1
        while accepted < self.scale.draft_tokens and self._rng.random() < 0.7:
            accepted += 1
        return accepted

    def _poisson(self, mean: float) -> int:
        limit, count, product = math.exp(-mean), 0, self._rng.random()
        while product > limit:
            count += 1
            product *= self._rng.random()
        return count
