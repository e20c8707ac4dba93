"""What ranks have to agree on after a round, as numbers that a collective can carry; judged without any.

Tensor parallel ranks are given the same batch: everything agrees, down to each leaf's digest. Data parallel
ranks have batches of their own in the same bucket: bucket, path and number of refreshes agree, idle ranks
included.
"""

from __future__ import annotations

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
    for index, name in enumerate(layout.names):
        if index == FINDINGS or (parallel is Parallel.DP and name not in COMMON):
            continue
        column = [vector[index] for vector in vectors]
        usual, votes = Counter(column).most_common(1)[0]
        if votes == len(column):
            continue
        even = 2 * votes <= len(column)
        skewed = [rank for rank, value in enumerate(column) if even or value != usual]
        number, bucket = vectors[skewed[0]][0], vectors[skewed[0]][1]
        yield _finding(name, skewed, number, bucket, column, case, even=even)


def _finding(
    name: str,
    skewed: Sequence[int],
    number: int,
    bucket: int,
    column: Sequence[int],
    case: str,
    *,
    even: bool,
) -> Finding:
    field, _, step = name.partition(" of step ")
    ranks = f"rank{'s' if len(skewed) > 1 else ''} {', '.join(map(str, skewed))}"
    verb = "disagree about" if even else f"{'differ' if len(skewed) > 1 else 'differs'} from the others in"
    shown = "" if step or name == "path" else ": " + ", ".join(f"rank {r}: {v}" for r, v in enumerate(column))
    return Finding(
        check="ranks",
        kind="skewed",
        case=case,
        field=field,
        bucket=bucket,
        steps=(int(step),) if step else (),
        rounds=(f"b{bucket}.{number:02d}",),
        message=f"{ranks} {verb} {name} in round b{bucket}.{number:02d}{shown}",
        hint="the ranks were given other inputs, or one of them refreshed otherwise",
    )
