"""What a report shows of one case: storage by step, writes by refresh, differences with their neighbours.

Plain data, made beside the observation (in a worker) and carried by the case's result, since the
observation itself stays where it was made.
"""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Strip:
    """Bytes of one allocation that leaves of one step occupy, without a gap."""

    step: int
    region: int
    """Index into `StorageMap.sizes`."""
    start: int
    """First byte, from the region's start."""
    stop: int
    leaves: tuple[str, ...]
    """Names of the leaves in it, in walk order; state of the backend ends with ` (state)`."""


@dataclass(frozen=True)
class StorageMap:
    """Which step's leaves occupy which bytes, for one captured bucket and the backend's own state."""

    bucket: int
    sizes: tuple[int, ...]
    """Bytes of each allocation that some leaf occupies, up to the last such byte, in order of appearance."""
    strips: tuple[Strip, ...]
    """By step, then region."""

    def first_steps(self, steps: int) -> StorageMap:
        """Return the map of the first steps only."""
        strips = [strip for strip in self.strips if strip.step < steps]
        kept = sorted({strip.region for strip in strips})
        place = {region: index for index, region in enumerate(kept)}
        return StorageMap(
            self.bucket,
            tuple(self.sizes[region] for region in kept),
            tuple(replace(strip, region=place[strip.region]) for strip in strips),
        )

    @property
    def steps(self) -> int:
        """Number of steps."""
        return max((strip.step for strip in self.strips), default=-1) + 1

    def bytes_of(self, step: int) -> int:
        """Bytes that a step's leaves occupy."""
        return sum(strip.stop - strip.start for strip in self.strips if strip.step == step)

    def shared_with_first(self, step: int) -> int:
        """Bytes of a step's leaves that step 0's leaves occupy, too."""
        first = [strip for strip in self.strips if strip.step == 0]
        return sum(
            max(0, min(one.stop, other.stop) - max(one.start, other.start))
            for one in self.strips
            if one.step == step
            for other in first
            if one.region == other.region
        )


@dataclass(frozen=True)
class Moment:
    """One column of a timeline: a capture, or a refresh with the replay after it."""

    kind: str
    """`capture` or `refresh`."""
    name: str
    """Round name, or `bucket n` of a capture."""
    bucket: int
    replayed: bool
    note: str = ""
    """What the round is for, why it was not replayed, that the reader was delayed."""


@dataclass(frozen=True)
class Track:
    """One line of a timeline: a leaf, or a span of the refresh, of steps that were treated alike."""

    name: str
    steps: tuple[int, ...]
    """Empty where it serves all steps."""
    counts: tuple[int, ...]
    """Writes (a span: how often it ran), one per moment."""
    declared: tuple[int, ...] = ()
    """What the path declares, one per moment, -1 where it declares nothing; empty for spans."""


@dataclass(frozen=True)
class Timeline:
    """The ledger of a run: who wrote what, in which refresh."""

    moments: tuple[Moment, ...]
    leaves: tuple[Track, ...]
    spans: tuple[Track, ...]


@dataclass(frozen=True)
class Neighbour:
    """One defined element near a difference."""

    row: int
    column: int
    expected: str
    got: str


@dataclass(frozen=True)
class Around:
    """The first difference of a finding, in place."""

    finding: int
    """Index into `CaseResult.findings`."""
    step: int
    request: int
    """Request of the row, -1 where rows do not belong to requests."""
    round_name: str
    why: str
    """What the round is for."""
    lengths: tuple[int, ...]
    """Tokens of each live request of that round."""
    elements: tuple[Neighbour, ...]
    """Defined elements of the lines around it, by row and column, the different one included."""


@dataclass(frozen=True)
class CasePicture:
    """Everything a report draws of one case."""

    maps: tuple[StorageMap, ...]
    """One per captured bucket, the largest first."""
    timeline: Timeline
