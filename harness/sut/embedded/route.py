"""Routing evidence: what a refresh did, and the path that this amounts to."""

from __future__ import annotations

from collections import Counter
from enum import StrEnum

from harness.types import Path


class Action(StrEnum):
    """One thing that a refresh does with one step."""

    PRECOMPUTE = "precompute"
    COPY = "copy"
    """Base fields copied from the temporaries into one step."""
    MULTI_COPY = "multi_copy"
    """The same for several steps in one launch."""
    SIBLING_COPY = "sibling_copy"
    """Derived fields copied from step 0."""
    DIRECT = "direct"
    """Base fields built straight into the captured buffers."""
    DERIVE = "derive"
    DERIVE_KPOOL = "derive_kpool"
    REPOINT = "repoint"
    """The active metadata set to step 0's object, nothing written."""


class RouteLog:
    """Actions of the last refresh, in order; a refresh inside a graph is logged when it is captured."""

    def __init__(self) -> None:
        self._actions: Counter[Action] = Counter()
        self._in_graph = False

    def begin(self, *, in_graph: bool) -> None:
        """Forget the refresh before."""
        self._actions.clear()
        self._in_graph = in_graph

    def note(self, action: Action) -> None:
        """Add an action."""
        self._actions[action] += 1

    def path(self) -> str:
        """Name the path that the logged actions make up; empty if nothing was refreshed yet."""
        done = self._actions
        if not done:
            return ""
        if done[Action.DIRECT] or done[Action.REPOINT]:
            if done[Action.COPY] or done[Action.MULTI_COPY] or done[Action.DIRECT] != 1:
                return "mixed: " + ", ".join(f"{count} {name}" for name, count in sorted(done.items()))
            return (Path.SHARED_IN_GRAPH if self._in_graph else Path.SHARED).value
        if done[Action.MULTI_COPY]:
            return Path.MULTI_DESTINATION_COPY.value
        if done[Action.SIBLING_COPY]:
            return Path.SIBLING_COPY.value
        return Path.INDEPENDENT.value
