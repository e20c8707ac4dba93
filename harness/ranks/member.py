"""One rank, a process of its own: `python -m harness.ranks.member RANK ORDER PIPE`.

It drives the same rounds as the others, and after each round everybody gathers what everybody saw. It says
what it begins before it begins it, so that whoever waits for it knows where it stopped.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Mapping
from contextlib import redirect_stdout
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import torch
import torch.distributed as collective

from harness.casefile import load_models
from harness.child import Reporter
from harness.engine.protocol import Engine
from harness.errors import HarnessError
from harness.fields import Dims
from harness.findings import Finding
from harness.fuzz.sequence import Capture, Operation, Replay
from harness.life import Life, living
from harness.ranks.agree import FINDINGS, Layout, disagreements
from harness.ranks.order import Order
from harness.ranks.traffic import batches
from harness.soak.counting import Counting
from harness.soak.lean import Lean, Seen
from harness.trace.setup import Wanted, stage_for
from harness.types import EngineKind

GATHER = "gather"
"""Stages whose name begins so wait for the other ranks."""
PATIENCE_S = 30.0
"""Longer than a round may take: who waits outlives whoever is waited for."""
MOST_FINDINGS = 20


class Member:
    """One rank at work."""

    def __init__(self, rank: int, order: Order, reporter: Reporter) -> None:
        self._rank, self._order, self._reporter = rank, order, reporter
        self._layout: Layout | None = None
        self._exchange = torch.device("cpu")
        """Where what ranks exchange lies."""
        self._counting = Counting()
        self._replays = self._idle = self._refreshes = self._elements = 0
        self._findings = 0
        """Disagreements, and what any rank found by itself."""
        self._seconds = 0.0
        self._skewing = False

    def run(self) -> None:
        """Replay until the end of the traffic, the number of replays or the first disagreement."""
        order = self._order
        self._reporter.begin("build", 300.0)
        if order.setting.engine is EngineKind.CUDA_GRAPH:
            torch.cuda.set_device(self._rank % torch.cuda.device_count())
        cases = Path(order.cases_dir)
        wanted = Wanted(cases_dir=cases, sut_options=order.sut_options)
        stage = stage_for(order.setting, wanted, load_models(cases))
        self._join(stage.engine)
        factory = self._counting.factory(stage.factory)
        with living(stage.case, order.setting, factory, stage.engine, stage.known) as life:
            lean = Lean(life, self._counting)
            for operation in batches(order, stage.case, self._rank):
                if self._replays >= order.replays or self._findings:
                    break
                self._one(life, lean, operation)
        self._reporter.begin(f"{GATHER} at the end", order.limit_s + PATIENCE_S)
        collective.barrier()
        collective.destroy_process_group()
        self._reporter.result(
            {
                "rank": self._rank, "replays": self._replays, "idle": self._idle,
                "refreshes": self._refreshes, "elements": self._elements, "findings": self._findings,
                "seconds": round(self._seconds, 3),
            }
        )  # fmt: skip

    def _join(self, engine: Engine) -> None:
        limit_s = self._order.limit_s + PATIENCE_S
        self._reporter.begin(f"{GATHER} at the start", 300.0)
        store = collective.TCPStore(  # type: ignore[attr-defined]
            "127.0.0.1", self._order.port, self._order.world, self._rank == 0, timedelta(seconds=240)
        )
        own = _has_own_gpu(engine, self._order.world)
        self._exchange = engine.device if own else torch.device("cpu")
        collective.init_process_group(
            "nccl" if own else "gloo",
            store=store, rank=self._rank, world_size=self._order.world, timeout=timedelta(seconds=limit_s),
        )  # fmt: skip
        collective.barrier()

    def _one(self, life: Life, lean: Lean, operation: Operation) -> None:
        limit_s = self._order.limit_s
        if not isinstance(operation, Replay):
            self._reporter.begin(f"capture of bucket {getattr(operation, 'bucket', 0)}", 300.0)
            self._report(life.window([operation]).findings)
            if isinstance(operation, Capture):
                lean.captured()
            return
        self._replays += 1
        name = f"round b{operation.bucket}.{life.operations + 1:02d}"
        self._reporter.begin(name, limit_s)
        begin = time.perf_counter()
        seen = self._replay(lean, operation)
        self._report(seen.findings)
        self._reporter.begin(f"{GATHER} after {name}", limit_s + PATIENCE_S)
        self._report(self._gather(life, seen))
        self._seconds += time.perf_counter() - begin
        self._idle += not operation.lengths
        self._refreshes += seen.refreshes
        self._elements += seen.elements

    def _replay(self, lean: Lean, operation: Replay) -> Seen:
        """Replay a batch, or do what this rank's trial has for it."""
        due = [
            trial.what
            for trial in self._order.trials
            if (trial.rank, trial.round) == (self._rank, self._replays)
        ]
        if "skew" in due or self._skewing:  # in the first round from then on that can show it
            self._skewing = max(operation.lengths, default=0) < 2
            due += [] if self._skewing else ["skewed"]
        if "kill" in due:
            os.kill(os.getpid(), signal.SIGKILL)
        if "hang" in due:
            time.sleep(1e6)
        if "skewed" in due:
            shorter = tuple(max(length - 1, 1) for length in operation.lengths)
            operation = msgspec.structs.replace(operation, lengths=shorter)
        seen = lean.replay(operation)
        return replace(seen, refreshes=0) if "idle" in due else seen

    def _gather(self, life: Life, seen: Seen) -> tuple[Finding, ...]:
        """Exchange what was seen; return what this rank has to report: rank 0 speaks for all."""
        if self._layout is None:
            self._layout = Layout.of(Dims.of(life.case, life.case.bucket), life.case.backends)
        layout = self._layout
        own = torch.tensor(layout.vector(seen), dtype=torch.int64, device=self._exchange)
        everyone = [torch.empty_like(own) for _ in range(self._order.world)]
        collective.all_gather(everyone, own)
        vectors = [one.tolist() for one in everyone]
        found = tuple(disagreements(vectors, layout, self._order.parallel, life.case.id))
        # Every rank sees the same vectors, so all of them end with the same round.
        self._findings += len(found) + sum(vector[FINDINGS] for vector in vectors)
        return found if self._rank == 0 else ()

    def _report(self, findings: tuple[Finding, ...]) -> None:
        """Report unexpected findings."""
        for finding in [one for one in findings if not one.known][:MOST_FINDINGS]:
            values: Mapping[str, Any] = {
                "rank": self._rank, "check": finding.check, "kind": finding.kind, "field": finding.field,
                "message": finding.message,
            }  # fmt: skip
            self._reporter.result(values)


def _has_own_gpu(engine: Engine, world: int) -> bool:
    """Whether every rank is alone on its GPU: NCCL takes no others."""
    return engine.device.type == "cuda" and torch.cuda.device_count() >= world


def main() -> int:
    """Run one rank; what goes wrong is printed, and the exit status says that it did."""
    rank, text, pipe = sys.argv[1:]
    order = msgspec.json.decode(text, type=Order)
    torch.set_num_threads(1)
    reporter = Reporter(int(pipe))
    try:
        with redirect_stdout(sys.stderr):
            Member(int(rank), order, reporter).run()
    except HarnessError as error:
        print(f"{error}", file=sys.stderr)
        return 2
    reporter.end()
    return 0


if __name__ == "__main__":
    sys.exit(main())
