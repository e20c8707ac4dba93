"""What a run of several ranks printed and kept as data."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from harness.ranks.agree import COMMON, HEAD, Parallel
from harness.ranks.launch import Together
from harness.soak.lean import CHECKS, LEFT_OUT
from harness.trace.setup import describe_setting

SCHEMA = 1


def lines(together: Together) -> Iterator[str]:
    """Yield the report, the verdict last."""
    order = together.order
    yield f"system    {describe_setting(order.setting)}"
    what = "the same batch" if order.parallel is Parallel.TP else "batches of their own in one bucket"
    yield f"ranks     {order.world}, {order.parallel.value}: {what}"
    agreed = ", ".join(HEAD[:-1]) + ", digest of each step's leaves"
    yield f"agreed    {agreed if order.parallel is Parallel.TP else ', '.join(COMMON)}, in every round"
    yield f"judged    by each rank for itself: {', '.join(CHECKS)}"
    yield f"left out  {LEFT_OUT}"
    for fate in together.fates:
        done = fate.summary
        if done:
            each = 1000 * done["seconds"] / max(done["replays"], 1)
            yield (
                f"rank {fate.rank:<4} {done['replays']:,} replays, {done['idle']:,} idle, "
                f"{done['refreshes']:,} parts of refreshes, {done['elements']:,} elements, "
                f"{each:.1f} ms a replay"
            )
        else:
            yield f"rank {fate.rank:<4} {fate.ended.end} at: {fate.ended.stage}"
    yield from together.findings
    yield verdict(together)


def verdict(together: Together) -> str:
    """Return the last line."""
    replays = min((fate.summary.get("replays", 0) for fate in together.fates), default=0)
    count = len(together.findings)
    if not count:
        return f"OK: {together.order.world} ranks agree; {replays:,} replays each"
    return f"FAILED: {count} finding{'s' if count > 1 else ''} over {together.order.world} ranks"


def document(together: Together) -> dict[str, Any]:
    """Return the run as JSON-ready data."""
    order = together.order
    return {
        "schema": SCHEMA,
        "setting": describe_setting(order.setting),
        "ranks": order.world,
        "parallel": order.parallel.value,
        "checks": dict(CHECKS),
        "left_out": LEFT_OUT,
        "members": [
            {
                "rank": fate.rank,
                "end": fate.ended.end,
                "last": fate.ended.stage,
                "seconds": round(fate.ended.seconds, 1),
                **fate.summary,
            }
            for fate in together.fates
        ],
        "findings": list(together.findings),
    }
