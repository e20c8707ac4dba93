"""Figures of an observation that reports show: bytes owned, copies per refresh."""

from __future__ import annotations

from harness.fields import COUNTER
from harness.observation import Observation, Walk


def owned_bytes(observation: Observation) -> int:
    """Return the bytes that all steps' metadata and state occupy after the captures, KV counters left out.

    Bytes that several leaves share count once; padding that no leaf covers does not count.
    """
    walks = [capture.walk for capture in observation.captures if capture.before_round == 0]
    if not walks or walks[-1] >= len(observation.walks):
        return 0
    return covered_bytes(observation.walks[walks[-1]])


def covered_bytes(walk: Walk) -> int:
    """Return the size of the union of all leaves' byte intervals, KV counters left out."""
    intervals = sorted(
        (leaf.region, leaf.start, leaf.stop)
        for leaf in walk.leaves
        if leaf.name != COUNTER and leaf.stop > leaf.start
    )
    total, region, reach = 0, -1, 0
    for where, start, stop in intervals:
        if where != region:
            region, reach = where, 0
        total += max(0, stop - max(start, reach))
        reach = max(reach, stop)
    return total


def fused_copies(observation: Observation) -> float:
    """Return the `fused_copy` spans per refresh (per capture where the refresh is in the graph)."""
    spans = [refresh.spans for record in observation.rounds for refresh in record.refreshes]
    in_graph = [capture.refresh_spans for capture in observation.captures if capture.refresh_spans]
    counted = in_graph or spans
    if not counted:
        return 0.0
    return sum(span.name == "fused_copy" for one in counted for span in one) / len(counted)
