"""What a trace holds: modes, buckets, lengths, gaps."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from harness.trace.reader import Moment, Trace

BAR = 40
"""Characters of the longest bar."""


@dataclass
class Distribution:
    """Buckets and lengths of many batches, in constant memory."""

    batches: int = 0
    idle: int = 0
    """Batches without a live request."""
    padded: int = 0
    """Batches with fewer live requests than the bucket holds, idle ones included."""
    switches: int = 0
    """Batches of another bucket than the one before."""
    buckets: Counter[int] = field(default_factory=Counter)
    lengths: Counter[int] = field(default_factory=Counter)
    """By power of two: lengths from 2^k to 2^(k + 1) - 1."""
    shortest: int = 0
    longest: int = 0
    _last: int = 0

    def add(self, bucket: int, lengths: Iterable[int]) -> None:
        """Count one batch."""
        live = list(lengths)
        self.batches += 1
        self.idle += not live
        self.padded += len(live) < bucket
        self.switches += self._last not in (0, bucket)
        self._last = bucket
        self.buckets[bucket] += 1
        for length in live:
            self.lengths[max(length, 1).bit_length() - 1] += 1
        if live:
            self.shortest = min(live) if not self.longest else min(self.shortest, *live)
            self.longest = max(self.longest, *live)

    def lines(self) -> Iterator[str]:
        """Yield the distribution, one line a bucket and a range of lengths."""
        yield (
            f"batches   {self.batches:,}: {self.switches:,} bucket switches, {self.padded:,} padded, "
            f"{self.idle:,} idle"
        )
        yield from _bars("bucket", {str(key): count for key, count in sorted(self.buckets.items())})
        ranges = {f"{1 << k:,}..{(2 << k) - 1:,}": count for k, count in sorted(self.lengths.items())}
        yield from _bars("tokens", ranges)
        if self.longest:
            yield f"lengths   {self.shortest:,} to {self.longest:,} tokens"

    def document(self) -> dict[str, object]:
        """Return it as JSON-ready data."""
        return {
            "batches": self.batches,
            "idle": self.idle,
            "padded": self.padded,
            "bucket_switches": self.switches,
            "buckets": {str(key): count for key, count in sorted(self.buckets.items())},
            "lengths_from_power_of_two": {str(1 << k): count for k, count in sorted(self.lengths.items())},
            "shortest": self.shortest,
            "longest": self.longest,
        }


def _bars(title: str, counts: dict[str, int]) -> Iterator[str]:
    most = max(counts.values(), default=1)
    for name, count in counts.items():
        yield f"{title:<8}  {name:>16} {count:>9,}  {'#' * math.ceil(BAR * count / most)}"


def describe(trace: Trace) -> Iterator[str]:
    """Yield what a trace holds, line by line; reads it once."""
    header = trace.header
    yield f"trace     {', '.join(str(file) for file in trace.files)}"
    software = ", ".join(f"{name} {version}" for name, version in header.software.items())
    yield f"recorded  {header.started}, {header.system}, rank {header.rank} of {header.world}; {software}"
    yield (
        f"system    P {header.pool}, page {header.page_tokens} tokens, W {header.width:,}, "
        f"{header.requests:,} request rows, S {header.steps}, N {header.draft_tokens}, pages: {header.pages}"
    )
    if header.flags:
        yield "settings  " + ", ".join(f"{name} {value}" for name, value in header.flags.items())
    modes: Counter[tuple[str, str, int]] = Counter()
    seen: dict[str, Distribution] = {}
    last: Moment | None = None
    missing = 0
    for moment in trace.moments():
        kind = "captures" if moment.capture else "refreshes"
        modes[moment.mode, kind, moment.steps] += 1
        missing += max(0, moment.n - last.n - 1) if last is not None else moment.n
        if not moment.capture:
            seen.setdefault(moment.mode, Distribution()).add(moment.bucket, moment.lengths)
        last = moment
    for (mode, kind, steps), count in sorted(modes.items()):
        yield f"{mode}: {count:,} {kind} of {steps} draft step{'s' if steps != 1 else ''}"
    for mode, distribution in seen.items():
        yield f"-- {mode}"
        yield from distribution.lines()
    if last is not None:
        yield f"span      {last.t / 1e6:.3f} s; {missing:,} calls missing"
    if trace.note:
        yield f"note      {trace.note}"
