"""The recorder: takes note of captures and refreshes on the server's thread, in a few microseconds each."""

from __future__ import annotations

import atexit
import datetime
import os
import socket
import subprocess
import sys
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path

import msgspec
import torch

from harness.errors import UsageError
from harness.record import ring
from harness.record.format import FORMAT, IDS, NONE, PAGES, SUFFIX, VERSION, Header, zstandard
from harness.record.output import Limits, before_of
from harness.record.slots import Feed, shape_for
from harness.record.writer import Begin, Command, Grow, Name, Said, Stop

TIMED = 1024
"""Calls whose time is remembered."""
WRITER = (sys.executable, "-m", "harness.record.writer")


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
    """CPU time of the writer's process, microseconds a record; 0 until it has ended."""


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
        """Begin a trace: `path` with the rank in its name (`trace_path`), written by a process of its own.

        table: `req_to_token`, int32 `[requests, W]`. pages: one of `format.PAGES`. Raises UsageError where
        the file cannot be made or `pages` is unknown.
        """
        if pages not in PAGES:
            raise UsageError(f"pages={pages!r}: allowed are {', '.join(PAGES)}")
        zstandard()  # missing, it is told here and not by the writer
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
            self.path.touch(exist_ok=False)
            self.path.unlink()  # the writer makes it; that it can be made is known here
        except OSError as error:
            raise UsageError(f"{self.path}: cannot be written ({error.strerror})") from error
        self.closed = False
        self.said = Said()
        """What the writer said when it ended."""
        self._view = table[:, :: about.page_tokens] if pages != NONE else table[:, :0]
        self._start = time.monotonic_ns()
        self._calls = self._lost = 0
        self._host_ns: deque[int] = deque(maxlen=TIMED)
        self._modes: dict[str, int] = {}
        self._feed: Feed | None = None
        # Its own session: a signal that ends the server's group leaves it to write what is in the ring.
        self._control, other = socket.socketpair()
        self._writer = subprocess.Popen(
            WRITER, stdin=other.fileno(), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            start_new_session=True, env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )  # fmt: skip
        other.close()
        self._tell(Begin(str(self.path), self.header, limits or Limits()))
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
        mirror: bool = False,
    ) -> None:
        """Record one call: queue copies of its inputs and return. Waits for neither device nor writer.

        lengths, requests: int64 `[bucket]`, padded. live: live rows, -1 where only request 0 marks padded
        ones. Captures may allocate; other calls do not.
        """
        begin = time.monotonic_ns()
        bucket = lengths.shape[0]
        number = self._modes.get(mode)
        if number is None:
            number = self._modes[mode] = len(self._modes)
            self._tell(Name(number, mode))
        if capture and (self._feed is None or bucket > self._feed.rows):
            self._grow(bucket)
        feed = self._feed
        done = False
        if feed is not None and bucket <= feed.rows and not self.closed:
            microseconds = (begin - self._start) // 1000
            head = (
                self._calls, microseconds, int(capture), number, bucket, steps, live, int(mirror),
                int(accepted is not None),
            )  # fmt: skip
            done = feed.put(head, lengths, requests, accepted)
        self._lost += not done
        self._calls += 1
        if not capture:
            self._host_ns.append(time.monotonic_ns() - begin)

    def cost(self) -> Cost:
        """Return what recording has cost so far."""
        return Cost(
            calls=self._calls,
            lost=self._lost,
            host_us=self._quantile(0.5),
            host_p90_us=self._quantile(0.9),
            writer_us=self.said.cpu_s * 1e6 / max(self.said.written, 1),
        )

    def close(self, timeout_s: float = 20.0) -> None:
        """Let the writer write what is in the ring and end the trace. Again: nothing."""
        if self.closed:
            return
        self.closed = True
        atexit.unregister(self.close)
        try:
            self._tell(Stop(self._lost))
            self._control.close()
            answer, _ = self._writer.communicate(timeout=timeout_s)
            self.said = msgspec.json.decode(answer, type=Said)
        except (OSError, subprocess.TimeoutExpired, msgspec.MsgspecError) as error:
            self._writer.kill()
            self._writer.wait()
            self.said = Said(problem=f"the writer did not end well: {type(error).__name__}")

    def _grow(self, rows: int) -> None:
        """Make a ring for larger batches; what is in the older one is written before."""
        shape = shape_for(rows, self._view.shape[1])
        descriptor, made = ring.create(shape)
        self._feed = Feed(made, self._view)
        self._tell(Grow(shape), descriptor)
        os.close(descriptor)

    def _tell(self, command: Command, *descriptors: int) -> None:
        """Send a command; a few hundred bytes, so that all of it fits into the socket's buffer."""
        message = msgspec.json.encode(command) + b"\n"
        socket.send_fds(self._control, [message], descriptors)

    def _quantile(self, share: float) -> float:
        """Return the time that so many of the last refreshes stay below, microseconds."""
        times = sorted(self._host_ns)
        return times[min(int(share * len(times)), len(times) - 1)] / 1000 if times else 0.0


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
