"""Cases from the project's own case files, and their rounds reduced to what laziness tests compare."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path as FilePath

from harness.case import Case, Model
from harness.casefile import load_models
from harness.fields import Dims, canonical, fields_for
from harness.laziness import Seen, see
from harness.oracle import expected
from harness.rounds import Inputs, Program, Round, padded_inputs
from harness.types import Drill, EngineKind, Kernel, Mode, Path

CASES_DIR = FilePath(__file__).parent.parent / "cases"
MODELS = load_models(CASES_DIR)
BY_POOL = {4: "glm-5.3-flash", 1: "glm-5.3"}
"""One model for each P."""


def project_case(
    model: Model | str,
    mode: Mode = Mode.DECODE,
    bucket: int = 4,
    drill: Drill = Drill.PLAIN,
    *,
    draft_tokens: int = 6,
    engine: EngineKind = EngineKind.TAPE,
    sut: str = "embedded",
    seed: int = 0,
) -> Case:
    """Return a case of one of the project's models (or of another one)."""
    model = MODELS[model] if isinstance(model, str) else model
    variant = next(variant for variant in model.variants if variant.draft_tokens == draft_tokens)
    return Case(
        sut=sut, engine=engine, model=model, path=Path.SHARED, fusion=False, variant=variant, mode=mode,
        bucket=bucket, drill=drill, kernel=Kernel.FA3, seed=seed,
    )  # fmt: skip


def inputs_of(case: Case, program: Program, round_: Round) -> Inputs:
    """Return a round as the device sees it."""
    return padded_inputs(round_, program, case.model, case.mode, case.variant.draft_tokens)


def seen_rounds(case: Case, program: Program, rounds: Iterable[Round]) -> list[Seen]:
    """Reduce rounds to field values (by the oracle) and keys."""
    seen = []
    for round_ in rounds:
        dims, inputs = Dims.of(case, round_.bucket), inputs_of(case, program, round_)
        fields, values = fields_for(dims), expected(dims, inputs)
        live = {name: canonical(fields[name], dims, inputs, value) for name, value in values.items()}
        seen.append(see(inputs, dims, live))
    return seen


def live_pages(case: Case, program: Program, round_: Round) -> list[int]:
    """Return the model pages of all live tokens of a round."""
    reach = case.variant.draft_tokens if case.mode is Mode.TARGET_VERIFY else 0
    pages = program.tables[round_.table]
    return [
        int(page)
        for request, length in zip(round_.requests, round_.lengths, strict=True)
        for page in pages[request, : -(-(length + reach) // case.model.page_tokens)]
    ]
