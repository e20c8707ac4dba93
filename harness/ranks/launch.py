"""Starting ranks and waiting for them: who ends, who hangs, who disagrees, within a time limit."""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import msgspec

from harness.child import End, Ended, run_child
from harness.ranks.member import GATHER
from harness.ranks.order import Order

START_S = 180.0
"""Seconds until a rank's first report, which comes once torch is imported."""
Run = Callable[[Sequence[str]], Ended]


@dataclass(frozen=True)
class Fate:
    """What became of one rank."""

    rank: int
    ended: Ended

    @property
    def waiting(self) -> bool:
        """Whether it was waiting for the others when it ended."""
        return self.ended.stage.startswith(GATHER)

    @property
    def summary(self) -> Mapping[str, Any]:
        """Its figures; empty where it did not come to its end."""
        return next((one for one in self.ended.results if "replays" in one), {})

    @property
    def findings(self) -> tuple[Mapping[str, Any], ...]:
        """What it reported."""
        return tuple(one for one in self.ended.results if "message" in one)


@dataclass(frozen=True)
class Together:
    """A run of several ranks that has ended."""

    order: Order
    fates: tuple[Fate, ...]

    @property
    def findings(self) -> tuple[str, ...]:
        """One line for everything that is wrong, each once."""
        said = [f"{one['check']}: {_by(one)}{one['message']}" for fate in self.fates for one in fate.findings]
        return tuple(dict.fromkeys((*said, *self._lost())))

    def _lost(self) -> list[str]:
        """Name the ranks that ended before their time; those that only waited for them come after it."""
        lost = [fate for fate in self.fates if fate.ended.end is not End.DONE]
        guilty = [fate for fate in lost if not fate.waiting] or lost
        lines = [f"ranks: {_obituary(fate)}" for fate in guilty]
        victims = [str(fate.rank) for fate in lost if fate not in guilty]
        if victims:
            lines.append(f"ranks: rank {', '.join(victims)} waited for it and ended with it")
        return lines


def run_together(order: Order, run: Run | None = None) -> Together:
    """Run all ranks to their end: within the order's limits, whatever happens to one of them."""
    order = msgspec.structs.replace(order, port=order.port or free_port())
    text = msgspec.json.encode(order).decode()
    start = run or (lambda command: run_child(command, start_s=START_S))
    commands = [
        [sys.executable, "-m", "harness.ranks.member", str(rank), text] for rank in range(order.world)
    ]
    with ThreadPoolExecutor(order.world) as pool:
        ended = list(pool.map(start, commands))
    return Together(order, tuple(Fate(rank, one) for rank, one in enumerate(ended)))


def free_port() -> int:
    """Return a port of this machine that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _by(finding: Mapping[str, Any]) -> str:
    return "" if finding["check"] == "ranks" else f"rank {finding['rank']}: "


def _obituary(fate: Fate) -> str:
    ended = fate.ended
    verb = {End.HUNG: "hung", End.CRASHED: "died", End.GARBAGE: "sent garbage"}.get(ended.end, "ended")
    detail = f" ({ended.detail})" if ended.detail else ""
    return f"rank {fate.rank} {verb}; its last record: {ended.stage}{detail}"
