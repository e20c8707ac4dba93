"""What each rank replays: the same batches (TP), or its own in a common bucket (DP)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

from harness.case import Case
from harness.fuzz.sequence import Capture, Operation, Replay
from harness.load.profile import profile_of
from harness.load.server import Server
from harness.ranks.agree import Parallel
from harness.ranks.order import Order
from harness.trace.mapping import Mapping, operations
from harness.trace.reader import Trace


def batches(order: Order, case: Case, rank: int) -> Iterator[Operation]:
    """Yield one rank's captures and replays, nothing else. Raises UsageError or TraceError as traces do."""
    if order.traces:
        trace = Trace(Path(order.traces[rank]))
        yield from operations(trace.moments(), Mapping(case, fit=order.fit), case.mode.value)
        return
    if order.parallel is Parallel.TP:
        yield from (one for one in _served(order, case, order.seed))
        return
    everyone = [_served(order, case, order.seed + other) for other in range(order.world)]
    for together in zip(*everyone, strict=True):
        own = together[rank]
        # Every rank pads to the largest batch of all, an idle one to nothing else.
        bucket = max(one.bucket for one in together)
        yield own if isinstance(own, Capture) else msgspec.structs.replace(own, bucket=bucket)


def _served(order: Order, case: Case, seed: int) -> Iterator[Capture | Replay]:
    server = Server(case, case.model.buckets, profile_of(order.load), seed)
    return (one for one in server.operations() if isinstance(one, Capture | Replay))
