"""What ranks have to agree on after a round, as numbers that a collective can carry; judged without any.

Tensor parallel ranks are given the same batch: everything agrees, down to each leaf's digest. Data parallel
ranks have batches of their own in the same bucket: bucket, path and number of refreshes agree, idle ranks
included.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from harness.fields import Dims, fields_for
from harness.findings import Finding
from harness.soak.lean import Seen

HEAD = ("round", "bucket", "path", "refreshes", "live", "findings")
"""What a vector begins with; the digest of each step's leaves follows."""
COMMON = HEAD[:4]
"""What data parallel ranks have in common."""
FINDINGS = HEAD.index("findings")
"""Place of the number of findings that a rank has by itself: told, not compared."""
_BITS = 63


class Parallel(StrEnum):
    """How ranks divide the work."""

    TP = "tp"
    """All have the same batch."""
    DP = "dp"
    """Each has its own, perhaps none."""


@dataclass(frozen=True)
class Layout:
    """What stands where in the vector of one round."""

    names: tuple[str, ...]

    @classmethod
    def of(cls, dims: Dims, steps: int) -> Layout:
        """Return the layout for a bucket's metadata: the same on every rank, whatever it really has."""
        fields = fields_for(dims)
        return cls((*HEAD, *(f"{name} of step {step}" for step in range(steps) for name in fields)))

    def vector(self, seen: Seen) -> list[int]:
        """Return what a rank saw, as int64 values; 0 for a leaf that it does not have."""
        unexpected = sum(not finding.known for finding in seen.findings)
        head = [seen.number, seen.bucket, number_of(seen.route), seen.refreshes, seen.live, unexpected]
        by_name = {f"{name} of step {step}": digest for (step, name), digest in seen.digests.items()}
        return head + [number_of(by_name.get(name, "")) for name in self.names[len(HEAD) :]]


def number_of(text: str) -> int:
    """Return 63 bits that stand for a text, 0 for an empty one."""
    if not text:
        return 0
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> (64 - _BITS)


def disagreements(
    vectors: Sequence[Sequence[int]], layout: Layout, parallel: Parallel, case: str
) -> Iterator[Finding]:
    """Yield a finding for each rank and subject in which it differs from most ranks.

    vectors: by rank. The message names rank, round and field.
    """
    found: dict[tuple[str, tuple[int, ...]], _Skew] = {}
    for index, name in enumerate(layout.names):
        if index == FINDINGS or (parallel is Parallel.DP and name not in COMMON):
            continue
        column = [vector[index] for vector in vectors]
        usual, votes = Counter(column).most_common(1)[0]
        if votes == len(column):
            continue
        even = 2 * votes <= len(column)
        skewed = tuple(rank for rank, value in enumerate(column) if even or value != usual)
        subject, _, step = name.partition(" of step ")
        skew = found.setdefault((subject, skewed), _Skew(subject, skewed, column, even))
        skew.steps.extend([int(step)] if step else [])
    for skew in found.values():
        yield skew.finding(vectors[skew.ranks[0]][0], vectors[skew.ranks[0]][1], case)


@dataclass
class _Skew:
    """One subject in which some ranks differ, over all steps."""

    field: str
    ranks: tuple[int, ...]
    values: list[int]
    even: bool
    """Whether no value has a majority."""
    steps: list[int] = dataclasses.field(default_factory=list)

    def finding(self, number: int, bucket: int, case: str) -> Finding:
        """Return it as a finding that names rank, round and field."""
        several = len(self.ranks) > 1
        ranks = f"rank{'s' if several else ''} {', '.join(map(str, self.ranks))}"
        verb = "disagree about" if self.even else f"differ{'' if several else 's'} from the others in"
        where = f" of step {', '.join(map(str, self.steps))}" if self.steps else ""
        plain = not self.steps and self.field != "path"
        shown = ": " + ", ".join(f"rank {r}: {v}" for r, v in enumerate(self.values)) if plain else ""
        return Finding(
            check="ranks",
            kind="skewed",
            case=case,
            field=self.field,
            bucket=bucket,
            steps=tuple(self.steps),
            rounds=(f"b{bucket}.{number:02d}",),
            message=f"{ranks} {verb} {self.field}{where} in round b{bucket}.{number:02d}{shown}",
            hint="the ranks were given other inputs, or one of them refreshed otherwise",
        )
