"""One soak: load without end, full windows now and then, lean judging in between, memory watched."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

from harness.driver import SystemFailure
from harness.findings import Finding
from harness.fuzz.sequence import Capture, Operation, Replay
from harness.life import Life, living
from harness.load.profile import profile_of
from harness.load.server import Server
from harness.soak import memory
from harness.soak.counting import Counting
from harness.soak.lean import Lean
from harness.soak.state import Part, State, save_state
from harness.trace.setup import Stage
from harness.trace.stat import Distribution
from harness.trace.verify import windows

FULL_EVERY = 64
"""Windows between two that are judged with all checks."""
SAMPLE_EVERY = 128
"""Replays between two samples of memory, at first."""
SAVE_S = 10.0
"""Seconds between two savings of the state."""
Follow = Callable[[State], None]


class Soak:
    """A soak in progress in this process."""

    def __init__(self, stage: Stage, state: State, file: Path | None, follow: Follow) -> None:
        """Go on from `state`; `file` keeps it. `follow` is called after each window."""
        self._stage, self.state, self._file, self._follow = stage, state, file, follow
        self.part = Part()
        self.distribution = Distribution()
        self.samples = memory.Samples(SAMPLE_EVERY)
        self.findings: list[Finding] = []
        self.grown: list[str] = []
        self._counting = Counting()
        self._saved = time.monotonic()

    def run(self, replays: int, seconds: float = float("inf"), full_every: int = FULL_EVERY) -> None:
        """Run until there were so many replays in all, the time is up or something is found.

        An interruption leaves the state saved. Raises NotDrivable where the system says so.
        """
        self.state.parts.append(self.part)
        start = time.monotonic()
        factory = self._counting.factory(self._stage.factory)
        with living(
            self._stage.case, self._stage.setting, factory, self._stage.engine, self._stage.known
        ) as life:
            lean = Lean(life, self._counting)
            try:
                for number, window in enumerate(windows(self._operations())):
                    left = replays - self.state.replays
                    if left <= 0 or time.monotonic() - start >= seconds:
                        break
                    self._window(life, lean, _at_most(window, left), full=number % full_every == 0)
                    self.part.seconds = time.monotonic() - start
                    self._after(life, lean)
                    if self.findings or life.over:
                        break
            finally:
                self.part.seconds = time.monotonic() - start
                self.grown = list(memory.growth(self.samples.kept))
                self.state.findings += [f"{one.check}: {one.message}" for one in self.findings]
                self.save()

    def save(self) -> None:
        """Keep the state."""
        self.part.samples = list(self.samples.kept)
        if self._file is not None:
            save_state(self._file, self.state, self.distribution)
        self._saved = time.monotonic()

    def _operations(self) -> Iterator[Operation]:
        """Yield captures, then what is left of the load: after an interruption the system is a new one."""
        plan, case = self.state.plan, self._stage.case
        server = Server(case, case.model.buckets, profile_of(plan.load), plan.seed)
        done = self.state.operations
        for number, operation in enumerate(server.operations()):
            if number < done and not isinstance(operation, Capture):
                if isinstance(operation, Replay):
                    self.distribution.add(operation.bucket, operation.lengths)
                continue
            yield operation

    def _window(self, life: Life, lean: Lean, window: list[Operation], *, full: bool) -> None:
        new = life.operations == 0
        try:
            if full:
                self._full(life, window)
                if any(isinstance(one, Capture) for one in window):
                    lean.captured()
            else:
                for operation in window:
                    self._one(life, lean, operation)
                    if self.findings:
                        break
        except SystemFailure as failure:
            life.over = True
            self.findings.append(_failed(life, str(failure)))
        begun = self.state.operations == 0
        captures = sum(isinstance(one, Capture) for one in window) if new and not begun else 0
        self.state.operations += len(window) - captures

    def _full(self, life: Life, window: list[Operation]) -> None:
        result = life.window(window)
        self.findings += [finding for finding in result.findings if not finding.known]
        for finding in result.findings:
            if finding.known:
                self.state.known[finding.known] = self.state.known.get(finding.known, 0) + 1
        self.state.facts = dict(result.facts)
        self.state.full_windows += 1
        self.state.elements += result.elements
        for operation in window:
            if isinstance(operation, Replay):
                self._count(operation)

    def _one(self, life: Life, lean: Lean, operation: Operation) -> None:
        if not isinstance(operation, Replay):
            result = life.window([operation])
            self.findings += [finding for finding in result.findings if not finding.known]
            if isinstance(operation, Capture):
                lean.captured()
            return
        seen = lean.replay(operation)
        self.findings += seen.findings
        self.state.elements += seen.elements
        self.state.lean_replays += 1
        self._count(operation)

    def _count(self, operation: Replay) -> None:
        self.state.replays += 1
        self.state.refreshes += 1
        self.part.replays += 1
        self.distribution.add(operation.bucket, operation.lengths)

    def _after(self, life: Life, lean: Lean) -> None:
        if not life.over:
            self.findings += lean.all_in_place()
        if self.samples.due(self.part.replays):
            self.samples.add(memory.take(self.part.replays, self._stage.engine))
        if time.monotonic() - self._saved >= SAVE_S:
            self.save()
        self._follow(self.state)


def _at_most(window: list[Operation], replays: int) -> list[Operation]:
    """Cut a window after so many replays."""
    wanted = list(islice((index for index, one in enumerate(window) if isinstance(one, Replay)), replays))
    return window[: wanted[-1] + 1] if len(wanted) == replays else window


def _failed(life: Life, text: str) -> Finding:
    return Finding(
        check="routing", kind="failed", case=life.case.id, field="", bucket=0, steps=(), rounds=(),
        message=text,
    )  # fmt: skip
