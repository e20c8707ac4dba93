"""On a GPU: a case that kills its device context, or never ends, is the finding; the others run."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from unittest.mock import patch

import pytest
import torch

from harness import pool, runner
from harness.case import Case
from harness.engine.protocol import Engine
from harness.findings import CaseResult, Verdict
from harness.options import RunOptions
from harness.sut.embedded.sut import EmbeddedSut
from harness.sut.protocol import SpanRecorder
from harness.types import EngineKind
from tests.faulty import Bends, BentSut
from tests.helpers import make_case, tiny_model

pytestmark = pytest.mark.gpu

BAD = 2
"""The bucket whose case goes wrong."""
FOREVER = 1 << 50
"""Clock cycles of a kernel that does not end: days."""


def read_out_of_bounds(sut: BentSut, bucket: int) -> None:
    """A device-side assertion: nothing works in this context any more."""
    lengths = torch.ones(4, device=sut.engine.device)
    lengths[torch.tensor([1 << 20], device=sut.engine.device)].add_(1)


def never_end(sut: BentSut, bucket: int) -> None:
    torch.cuda._sleep(FOREVER)  # type: ignore[no-untyped-call]


ACTS = {"dies": read_out_of_bounds, "hangs": never_end}


def run(act: str, options: RunOptions, group: pool.Group) -> pool.Done:
    """Run a group as `verify` does, in a worker process, with a system that goes wrong in one bucket."""

    def factory(case: Case, engine: Engine, span: SpanRecorder) -> EmbeddedSut:
        bends = Bends(before=ACTS[act]) if case.bucket == BAD else Bends()
        return BentSut(bends, case, engine, span)

    with patch("harness.worker.factory_of", lambda options: factory):
        return runner._run_group(options, group)


def results(act: str, tmp_path: Path, limit_s: float) -> dict[int, CaseResult]:
    options = RunOptions(
        engine=EngineKind.CUDA_GRAPH, cases_dir=tmp_path, golden_dir=tmp_path, golden="off", limit_s=limit_s
    )
    model = tiny_model()
    cases = tuple(
        replace(make_case(model, bucket=bucket), engine=EngineKind.CUDA_GRAPH) for bucket in (1, BAD, 4)
    )
    found = list(pool.run_groups(partial(run, act, options), [cases], 1, limit_s))
    assert len(found) == len(cases)
    return {int(result.axes["bucket"]): result for result in found}


@pytest.mark.parametrize(("act", "kind", "limit_s"), [("dies", "raised", 120.0), ("hangs", "hung", 25.0)])
def test_the_others_pass(act: str, kind: str, limit_s: float, tmp_path: Path) -> None:
    found = results(act, tmp_path, limit_s)
    assert [result.verdict for _, result in sorted(found.items())] == [
        Verdict.PASSED,
        Verdict.FAILED,
        Verdict.PASSED,
    ]
    first, *_ = (finding for check in found[BAD].checks for finding in check.findings)
    assert first.kind == kind
