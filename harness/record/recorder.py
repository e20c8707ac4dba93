"""The recorder: takes note of captures and refreshes on the server's thread, in a few microseconds each."""

from __future__ import annotations

import atexit
import datetime
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from harness.errors import UsageError
from harness.record.format import FORMAT, IDS, NONE, PAGES, SUFFIX, VERSION, Header
from harness.record.slots import Meta, Slots
from harness.record.writer import Limits, Output, Stop, Writer, before_of

if TYPE_CHECKING:
    import torch


TIMED = 1024
"""Calls whose time is remembered."""


@dataclass(frozen=True)
class About:
    """What is recorded of a system once: everything that records are read with."""

    system: str
    pool: int
    page_tokens: int
    steps: int
    draft_tokens: int
    software: dict[str, str]
    flags: dict[str, str]


@dataclass(frozen=True)
class Cost:
    """What recording has cost so far."""

    calls: int
    lost: int
    """Calls that were not recorded because the writer was behind."""
    host_us: float
    """Median time on the server's thread, microseconds a refresh, of the last `TIMED` ones."""
    host_p90_us: float
    """What nine in ten of them stay below."""
    writer_us: float
    """CPU time of the writer's thread, microseconds a record."""


class Recorder:
    """One trace of one process."""

    def __init__(
        self,
        path: Path,
        table: torch.Tensor,
        about: About,
        *,
        rank: int = 0,
        world: int = 1,
        pages: str = IDS,
        limits: Limits | None = None,
    ) -> None:
        """Create the file, `path` with the rank in its name (`trace_path`), and start the writer.

        table: `req_to_token`, int32 `[requests, W]`. pages: one of `format.PAGES`. Raises UsageError where
        the file cannot be made or `pages` is unknown.
        """
        if pages not in PAGES:
            raise UsageError(f"pages={pages!r}: allowed are {', '.join(PAGES)}")
        self.header = Header(
            format=FORMAT, version=VERSION, rank=rank, world=world,
            started=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            system=about.system, software=about.software, pool=about.pool, page_tokens=about.page_tokens,
            width=table.shape[1], requests=table.shape[0], steps=about.steps, draft_tokens=about.draft_tokens,
            pages=pages, flags=about.flags,
        )  # fmt: skip
        self.path = free_path(trace_path(path, rank))
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            output = Output(self.path, self.header, limits or Limits())
        except OSError as error:
            raise UsageError(f"{self.path}: cannot be written ({error.strerror})") from error
        self.closed = False
        self._slots = Slots(table, about.page_tokens, pages=pages != NONE)
        self._start = time.monotonic_ns()
        self._calls = self._lost = self._lost_in_all = 0
        self._host_ns: deque[int] = deque(maxlen=TIMED)
        self._capturing = False
        self._writer = Writer(
            output, self.header, self._take_lost, self._slots.give_back, lambda: not self._capturing
        )
        self._writer.start()
        atexit.register(self.close)

    def note(
        self,
        *,
        capture: bool,
        mode: str,
        lengths: torch.Tensor,
        requests: torch.Tensor,
        steps: int = 1,
        live: int = -1,
        accepted: torch.Tensor | None = None,
        flags: tuple[str, ...] = (),
    ) -> None:
        """Record one call: queue copies of its inputs and return. Waits for neither device nor writer.

        lengths, requests: `[bucket]`, padded. live: live rows, -1 where only request 0 marks padded ones.
        """
        begin = time.monotonic_ns()
        bucket = lengths.shape[0]
        self._capturing = capture
        if capture:
            self._slots.fit(bucket)
        slot = self._slots.take(bucket)
        if slot is None or self.closed:
            self._lost += 1
            self._lost_in_all += 1
        else:
            slot.meta = Meta(
                self._calls, (begin - self._start) // 1000, capture, mode, bucket, steps, live, flags
            )
            self._slots.fill(slot, lengths, requests, accepted)
            self._writer.queue.put(slot)
        self._calls += 1
        if not capture:
            self._host_ns.append(time.monotonic_ns() - begin)

    def cost(self) -> Cost:
        """Return what recording has cost so far."""
        written = max(self._writer.written, 1)
        return Cost(
            calls=self._calls,
            lost=self._lost_in_all,
            host_us=self._quantile(0.5),
            host_p90_us=self._quantile(0.9),
            writer_us=self._writer.cpu_s * 1e6 / written,
        )

    @property
    def problem(self) -> str:
        """Why nothing more is written; empty while all is well."""
        return self._writer.problem

    def close(self, timeout_s: float = 10.0) -> None:
        """Write what is queued and end the trace. Again: nothing."""
        if self.closed:
            return
        self.closed = True
        atexit.unregister(self.close)
        self._capturing = False
        self._writer.queue.put(Stop())
        self._writer.join(timeout_s)

    def _quantile(self, share: float) -> float:
        """Return the time that so many of the last refreshes stay below, microseconds."""
        times = sorted(self._host_ns)
        return times[min(int(share * len(times)), len(times) - 1)] / 1000 if times else 0.0

    def _take_lost(self) -> int:
        lost, self._lost = self._lost, 0
        return lost


def trace_path(path: Path, rank: int) -> Path:
    """Return the file of one rank: `run` or `run.jsonl.zst` -> `run.rank3.jsonl.zst`."""
    return path.with_name(f"{path.name.removesuffix(SUFFIX)}.rank{rank}{SUFFIX}")


def free_path(path: Path) -> Path:
    """Return `path`, or a numbered name like it: an older trace is never overwritten."""
    name, number, found = path.name.removesuffix(SUFFIX), 2, path
    while found.exists() or before_of(found).exists():
        found = path.with_name(f"{name}.{number}{SUFFIX}")
        number += 1
    return found
