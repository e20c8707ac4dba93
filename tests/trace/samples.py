"""Short traces of simulated servers, and what they are driven with."""

from __future__ import annotations

from pathlib import Path as FilePath

from harness.casefile import load_models
from harness.trace.made import made_trace
from harness.trace.reader import Trace
from harness.trace.setup import Contents, Stage, Wanted, contents, stage_of
from harness.types import Path

CASES = FilePath(__file__).resolve().parents[2] / "cases"
MODELS = load_models(CASES)


def wanted(model: str = "tiny-p1", path: Path = Path.SHARED, **others: object) -> Wanted:
    return Wanted(cases_dir=CASES, model=model, path=path, steps=3, **others)  # type: ignore[arg-type]


def made(folder: FilePath, rounds: int = 60, *, load: str = "bursty", seed: int = 1) -> Trace:
    file = folder / "made.rank0.jsonl.zst"
    made_trace(file, wanted(), load, seed, rounds)
    return Trace(file)


def staged(trace: Trace, plant: str = "", path: Path = Path.SHARED) -> tuple[Contents, Stage]:
    found = contents(trace)
    return found, stage_of(trace, found, wanted(path=path, plant=plant))
