"""The whole contract of an engine on one screen. Both engines pass `tests/engine/test_contract.py`."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol, TypeVar

import torch

T = TypeVar("T")


class Graph(Protocol):
    """A captured callable: frozen addresses, frozen scalars, shapes and branches."""

    def nodes(self) -> int:
        """Return how many operations a replay executes (0 where the engine cannot tell)."""
        ...


class Engine(Protocol):
    """Captures callables, replays them, and models the stream that orders a replay and what follows."""

    name: str
    device: torch.device

    def capture(self, function: Callable[[], T]) -> tuple[Graph, T]:
        """Run `function` once to warm up and once under capture; return the graph and its result.

        Tensors in the result keep their address and are rewritten by every replay. Raises
        CaptureError for what a graph cannot hold (host reads of device data, data-dependent shapes).
        """
        ...

    def launch(self, graph: Graph, *, delayed: bool = False) -> None:
        """Queue one replay on the current stream.

        delayed: hold the replay back so that whatever is not ordered after it overtakes it: a
        spin kernel before it on CUDA, lazy execution on the tape.
        """
        ...

    def synchronize(self) -> None:
        """Wait for all queued work. Raises FreedStorageError if a replay read freed storage (tape only)."""
        ...

    def alive(self) -> bool:
        """Whether more work can run: false once an error has left the device context dead."""
        ...

    def races(self) -> tuple[str, ...]:
        """Return, once, a line for each access seen since the last call that nothing orders (tape only).

        A device cannot tell: there a race shows by what it leaves, or not at all.
        """
        ...

    def ordering(self) -> AbstractContextManager[None]:
        """Within it, work on the current stream comes after launches that were queued before.

        The driver holds it around whatever the system under test does between two launches.
        """
        ...

    def side_stream(self, *, wait: bool) -> AbstractContextManager[None]:
        """Run the block on another stream, after all queued work if `wait`, else with no order to it.

        On leaving, the current stream waits for the block.
        """
        ...
