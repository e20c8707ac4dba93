"""A child process that may hang: it says what it begins and how long that may take, and is killed past that.

A kernel that never ends cannot be interrupted from its own process. Whoever measures such a thing does it
in a child that reports through a pipe, one JSON object a line: `begin`, `result` or `end`.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

KILLED_S = 20.0
"""Seconds that a killed child may take to go."""
FIRST_STAGE = "start"
"""What a child is at until it says what it begins."""


class End(StrEnum):
    """How a child ended."""

    DONE = "done"
    """It said so, and its exit status was 0."""
    HUNG = "hung"
    """It was killed: what it had begun took longer than it may."""
    CRASHED = "crashed"
    """It ended otherwise: a signal, an exit status, or the end of its reports without saying so."""
    GARBAGE = "garbage"
    """It was killed: what it reported is not of this protocol."""


@dataclass(frozen=True)
class Ended:
    """What is known of a child that has ended."""

    end: End
    stage: str
    """What it had begun last; where it hung, the thing that hangs."""
    results: tuple[Mapping[str, Any], ...]
    """What it reported before it ended, in order."""
    detail: str
    """One line: exit status or signal and the last line that it printed; empty where it is done."""
    seconds: float


class Reporter:
    """The child's side: writes to the pipe that the parent reads."""

    def __init__(self, descriptor: int) -> None:
        """Report through a file descriptor that is open for writing."""
        self._file = os.fdopen(descriptor, "w", encoding="utf-8")

    def begin(self, stage: str, limit_s: float) -> None:
        """Say what comes next and how many seconds it may take until the next report."""
        self._write({"begin": stage, "limit_s": limit_s})

    def result(self, values: Mapping[str, Any]) -> None:
        """Report a result, JSON-ready; the limit of the stage starts anew."""
        self._write({"result": dict(values)})

    def end(self) -> None:
        """Say that everything is reported, and close the pipe."""
        self._write({"end": True})
        self._file.close()

    def _write(self, message: Mapping[str, Any]) -> None:
        self._file.write(json.dumps(message) + "\n")
        self._file.flush()


@dataclass
class _State:
    """What a child has said so far."""

    limit_s: float
    stage: str = FIRST_STAGE
    results: list[Mapping[str, Any]] = field(default_factory=list)
    ended: bool = False

    def take(self, line: bytes) -> bool:
        """Take one line in; False where it is not of the protocol."""
        try:
            message = json.loads(line)
        except ValueError:
            return False
        match message:
            case {"begin": str(stage), "limit_s": int() | float() as limit_s}:
                self.stage, self.limit_s = stage, float(limit_s)
            case {"result": dict() as values}:
                self.results.append(values)
            case {"end": True}:
                self.ended = True
            case _:
                return False
        return True


def run_child(
    command: Sequence[str], *, start_s: float, environment: Mapping[str, str] | None = None
) -> Ended:
    """Run `command` with the number of the report pipe appended, and wait until it ends or is killed.

    start_s: seconds until its first report. environment: instead of this process's. What it prints is kept
    for `detail` only. A child that is killed takes its own children along. Raises OSError where it does
    not start.
    """
    start = time.monotonic()
    state = _State(start_s)
    reading, writing = os.pipe()
    with tempfile.TemporaryFile() as printed, os.fdopen(reading, "rb", buffering=0) as reports:
        try:
            process = subprocess.Popen(
                [*command, str(writing)], stdout=printed, stderr=subprocess.STDOUT, pass_fds=(writing,),
                stdin=subprocess.DEVNULL, start_new_session=True, env=environment,
            )  # fmt: skip
        finally:
            os.close(writing)
        try:
            end = _follow(process, reports.fileno(), state)
        finally:
            _kill(process)
        detail = "" if end is End.DONE else f"{_exit(process.returncode)}; {_last_line(printed)}"
    return Ended(end, state.stage, tuple(state.results), detail, time.monotonic() - start)


def _follow(process: subprocess.Popen[bytes], descriptor: int, state: _State) -> End:
    """Read reports until the pipe ends, a limit passes or a line is not of the protocol."""
    pending = b""
    with selectors.DefaultSelector() as selector:
        selector.register(descriptor, selectors.EVENT_READ)
        deadline = time.monotonic() + state.limit_s
        while True:
            if not selector.select(max(deadline - time.monotonic(), 0)):
                return End.HUNG
            chunk = os.read(descriptor, 1 << 16)
            if not chunk:
                break
            *lines, pending = (pending + chunk).split(b"\n")
            for line in lines:
                if not state.take(line):
                    return End.GARBAGE
            if lines:
                deadline = time.monotonic() + state.limit_s
    if pending:
        return End.GARBAGE
    try:
        status = process.wait(max(deadline - time.monotonic(), 1))
    except subprocess.TimeoutExpired:
        return End.HUNG
    return End.DONE if state.ended and status == 0 else End.CRASHED


def _kill(process: subprocess.Popen[bytes]) -> None:
    """End the child's whole session, which it leads, and wait a while: a driver may hold it back."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(KILLED_S)


def _exit(status: int | None) -> str:
    if status is None:
        return f"not gone {KILLED_S:.0f} s after it was killed"
    return f"signal {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"


def _last_line(printed: Any) -> str:
    printed.seek(0)
    lines = [line.strip() for line in printed.read().decode(errors="replace").splitlines() if line.strip()]
    return lines[-1] if lines else "nothing printed"
