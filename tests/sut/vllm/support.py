"""Cases of vLLM, and how its tests run them."""

from __future__ import annotations

from functools import cache
from pathlib import Path as FilePath

import pytest
import torch

from harness.case import Case
from harness.casefile import load_models
from harness.errors import UsageError
from harness.findings import CaseResult
from harness.options import RunOptions
from harness.sut.vllm.loader import Loaded, load
from harness.types import Drill, EngineKind, Mode, Path
from harness.worker import Worker

ROOT = FilePath(__file__).parent.parent.parent.parent
CPU, CUDA = torch.device("cpu"), torch.device("cuda")


@cache
def models():  # type: ignore[no-untyped-def]
    """Return the project's models, by name."""
    return load_models(ROOT / "cases")


def case(
    path: Path = Path.FUSED_REPAIRED,
    pool: int = 4,
    *,
    steps: int = 3,
    bucket: int = 2,
    drill: Drill = Drill.PLAIN,
    engine: EngineKind = EngineKind.TAPE,
) -> Case:
    """Return a case of vLLM."""
    model = models()[f"vllm-p{pool}"]
    variant = next(one for one in model.variants if one.steps == steps)
    return Case("vllm", engine, model, path, False, variant, Mode.DECODE, bucket, drill)


def loaded(device: torch.device = CPU) -> Loaded:
    """Return the vLLM of this process; the test is skipped where there is none."""
    try:
        return load(None, device)
    except UsageError as error:
        pytest.skip(str(error))


@cache
def worker(engine: EngineKind) -> Worker:
    """Return this process's worker of an engine."""
    return Worker(RunOptions(ROOT / "cases", ROOT / "golden", sut="vllm", engine=engine))


def verified(of: Case) -> CaseResult:
    """Drive a case and judge it as `verify` does."""
    loaded(CPU if of.engine is EngineKind.TAPE else CUDA)
    (result,) = worker(of.engine).run((of,))
    return result
