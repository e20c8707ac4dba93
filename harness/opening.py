"""The first batch of a program: which rows its moves will work on, and which borders they step over."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from harness.case import PHYSICAL_PAGE
from harness.lengths import POOLED_SEGMENTS, SEGMENT, SEGMENTS, Scale, Steps, border_steps
from harness.oracle import schedule
from harness.stream import Stream

MANY = 4
"""Live requests from which neither the first nor the last row takes part in swaps and jumps."""
MORE = 8
"""Live requests from which two rows step over the first border."""
_TRIES = 60
"""Pairs of steps that are tried on a batch before the best of them is taken."""


@dataclass(frozen=True)
class Roles:
    """Which rows the moves work on; in small batches one row has several roles."""

    live: int
    small: int
    """Starts next to the schedule's first border (256)."""
    tall: int
    """Starts next to a border above the plan's threshold."""
    topk: int
    """Comes to be `K`."""

    @classmethod
    def of(cls, live: int) -> Roles:
        """Choose the rows of a batch."""
        if live >= MANY:
            return cls(live, small=1, tall=2, topk=live - 1)
        return cls(live, small=0, tall=min(1, live - 1), topk=0)

    def swapped(self) -> Roles:
        """Return the roles after the small and the tall row have exchanged their lengths."""
        return replace(self, small=self.tall, tall=self.small)

    def others(self) -> list[int]:
        """Return the rows without a role."""
        taken = {self.small, self.tall, self.topk} | ({self.live - 2} if self.live >= MORE else set())
        return [row for row in range(self.live) if row not in taken]

    def place(self, lengths: Sequence[int], small: int, tall: int) -> list[int]:
        """Return a copy of `lengths` with these lengths in the rows of the small and the tall role."""
        placed = list(lengths)
        if self.live >= MORE:
            placed[-2] = small
        placed[self.small] = small
        placed[self.tall] = tall
        return placed


@dataclass(frozen=True)
class Opening:
    """The first batch's roles and the steps over schedule borders that fit this very batch."""

    roles: Roles
    small: Steps
    tall: Steps


def opening(stream: Stream, live: int) -> Opening:
    """Make the first batch: unequal awkward lengths, request rows in no order, all pages that moves need."""
    scale, roles = stream.scale, Roles.of(live)
    lengths = [scale.clip(scale.topk - 20)] * live
    awkward = len(scale.awkward())
    for number, row in enumerate(roles.others()):
        lengths[row] = stream.next_awkward(scale.width) if number < awkward else stream.draw(1, 1000)
    chosen = _chosen(stream, roles, lengths)
    stream.arrive(roles.place(lengths, chosen.small.before, chosen.tall.before), stream.draw_requests(live))
    farthest = max(
        chosen.tall.last + scale.unit + PHYSICAL_PAGE, chosen.small.last + scale.stride + 2 * scale.unit
    )
    for request, length in zip(stream.requests, stream.lengths, strict=True):
        stream.pages.cover(request, scale.columns(length))
    for row in {roles.small, roles.tall}:
        stream.pages.cover(stream.requests[row], scale.columns(scale.clip(farthest)))
    stream.pages.cover(stream.requests[roles.topk], scale.columns(scale.topk + 16))
    return chosen


def _chosen(stream: Stream, roles: Roles, lengths: Sequence[int]) -> Opening:
    """Choose steps that change this batch's schedules: one segment more can leave a schedule as it was."""
    scale = stream.scale
    small = border_steps(scale, SEGMENT, SEGMENTS, twice=False)
    tall = [
        steps
        for border in (scale.tall, scale.tall - scale.unit)
        for steps in border_steps(scale, border, POOLED_SEGMENTS, twice=True)
    ]
    pairs = sorted(product(range(len(small)), range(len(tall))), key=sum)
    best, chosen = -1, Opening(roles, small[0], tall[0])
    for i, j in pairs[:_TRIES]:
        opening = Opening(roles, small[i], tall[j])
        changes = _changes(stream, opening, lengths)
        if changes > best:
            best, chosen = changes, opening
        if changes == _possible_changes(scale, opening):
            break
    return chosen


def _possible_changes(scale: Scale, opening: Opening) -> int:
    small, tall = (
        [scale.marks(length) for length in (steps.before, steps.after, steps.last)]
        for steps in (opening.small, opening.tall)
    )
    plain = tall[0][SEGMENTS] != tall[1][SEGMENTS] or (
        opening.roles.live > 1 and small[0][SEGMENTS] != small[1][SEGMENTS]
    )
    pooled = [mark[POOLED_SEGMENTS] for mark in tall]
    return plain + (pooled[0] != pooled[1]) + (pooled[1] != pooled[2])


def _changes(stream: Stream, opening: Opening, lengths: Sequence[int]) -> int:
    """Return how often the two steps change a schedule."""
    roles, small, tall = opening.roles.swapped(), opening.small, opening.tall
    stages = ((small.before, tall.before), (small.after, tall.after), (small.after, tall.last))
    first, second, third = (schedules(stream, roles.place(lengths, *stage)) for stage in stages)
    return sum(
        (first[0] != second[0], first[-1] != second[-1] and stream.scale.pool > 1, second[-1] != third[-1])
    )


def schedules(stream: Stream, lengths: Sequence[int]) -> list[bytes]:
    """Return the plain and, with pools, the pooled schedule of a batch, padded rows included."""
    scale = stream.scale
    padded = [*lengths, *[stream.fill] * (stream.bucket - len(lengths))]
    visible = np.array([row for length in padded for row in scale.visible(length)], np.int64)
    contexts = [visible] if scale.pool == 1 else [visible, np.maximum(visible // scale.pool, 1)]
    return [schedule(context, scale.workers).tobytes() for context in contexts]
