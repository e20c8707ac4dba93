"""Hand-made observations: right values from the oracle, a plausible ledger and walk, seeded outputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path as FilePath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.case import Case, Model
from harness.digest import value_digest
from harness.fields import Dims, Live, canonical, fields_for, plan_is_written
from harness.golden.store import GoldenStore
from harness.golden.update import GoldenUpdate
from harness.observation import (
    Capture,
    Cell,
    Expectation,
    LeafFact,
    LedgerEntry,
    Observation,
    Refresh,
    Replay,
    RoundRecord,
    Span,
    Walk,
)
from harness.oracle import expected
from harness.rounds import Program, padded_inputs
from harness.types import Path, Precision
from tests.helpers import make_case, make_program, tiny_model

Array = NDArray[Any]
Edit = Callable[[str, int, str, Array], Array]
"""(round, step, leaf or output, value) -> value; edits what an observation holds."""

BATCHES = (
    ((5, 64, 300, 257), (3, 1, 4, 2)),
    ((65, 255, 301), (2, 5, 1)),
    ((66, 256, 302, 1000), (2, 5, 1, 7)),
    ((66, 256, 302, 1000), (2, 5, 1, 7)),
)
ENVIRON: Mapping[str, str] = {}
"""An environment that is neither CI nor a parallel worker."""


def same(round_name: str, step: int, name: str, value: Array) -> Array:
    """Edit nothing."""
    return value


def sample_case(model: Model | None = None, **choices: Any) -> Case:
    """Return a small decode case whose plans are written."""
    return make_case(model or tiny_model(), **choices)


def sample_program(case: Case, batches: Any = BATCHES) -> Program:
    """Return four rounds of the case's bucket, one of them padded."""
    return make_program(case.model, case.bucket, batches)


def observe(
    case: Case,
    program: Program | None = None,
    *,
    edit: Edit = same,
    ledger: Callable[[tuple[LedgerEntry, ...]], tuple[LedgerEntry, ...]] = tuple,
    walk: Callable[[tuple[LeafFact, ...]], tuple[LeafFact, ...]] = tuple,
    poisoned: Callable[[str, int, str], int] = lambda round_name, step, name: 0,
) -> Observation:
    """Return an observation of a healthy run, as edited."""
    program = program or sample_program(case)
    values: dict[str, Array] = {}
    references: dict[str, str] = {}
    records = []

    def keep(value: Array) -> str:
        digest = value_digest(value)
        values[digest] = value
        return digest

    for index, round_ in enumerate(program.rounds):
        dims = Dims.of(case, round_.bucket)
        inputs = padded_inputs(round_, program, case.model, case.mode, dims.draft_tokens)
        full: dict[str, Array] = dict(expected(dims, inputs))
        for name, field in fields_for(dims).items():
            if field.live is Live.ELSEWHERE:
                full[name] = np.full(field.shape(dims), int(inputs.lengths.sum()), np.int32)
                references[f"{round_.name}/{name}"] = keep(full[name].reshape(-1))
        cells, outputs = [], []
        rng = np.random.default_rng(int(inputs.lengths.sum()) + 1000 * index)
        attention = rng.standard_normal((len(round_.lengths), 2, 32)).astype(np.float32)
        for step in range(case.backends):
            for name, value in full.items():
                spec = fields_for(dims)[name]
                if spec.live is Live.PLAN and not plan_is_written(dims):
                    continue
                live = edit(round_.name, step, name, canonical(spec, dims, inputs, value).copy())
                cells.append(Cell(step, name, keep(live), poisoned(round_.name, step, name)))
            computed: dict[str, Array] = {
                "attention": attention + np.float32(step),
                "draft_token": inputs.requests[: inputs.live] + step,
            }
            if case.precision is Precision.BF16:
                computed["attention"] = (computed["attention"].view(np.uint32) >> 16).astype(np.uint16)
            for name, value in computed.items():
                outputs.append(Cell(step, name, keep(edit(round_.name, step, name, value.copy()))))
        refresh = Refresh((), ledger(_ledger(case)), _spans(case), (), tuple(cells), 0)
        replay = Replay((), tuple(outputs), (), 0)
        records.append(RoundRecord(index, round_.name, (refresh,), replay))
    return Observation(
        case=case,
        program=program,
        expectation=Expectation(case.path.value, (), {}, case.path is Path.SHARED, ()),
        facts={"device": "cpu"},
        walks=(Walk(walk(_leaves(case, program)), (), ()),),
        captures=tuple(Capture(bucket, 0, (), ()) for bucket in program.buckets),
        rounds=tuple(records),
        route=case.path.value,
        values=values,
        references=references,
    )


def _owners(case: Case) -> range:
    return range(1) if case.path is Path.SHARED else range(case.backends)


def _ledger(case: Case) -> tuple[LedgerEntry, ...]:
    names = fields_for(Dims.of(case, case.bucket))
    return tuple(LedgerEntry(step, name, 1) for step in _owners(case) for name in names)


def _spans(case: Case) -> tuple[Span, ...]:
    return (Span("precompute", -1, 3), *(Span("derived_refresh", step, 2) for step in _owners(case)))


def _leaves(case: Case, program: Program) -> tuple[LeafFact, ...]:
    """Every step's leaves in every bucket; on the shared path all steps' lie where step 0's do."""
    leaves = []
    for bucket in program.buckets:
        dims = Dims.of(case, bucket)
        for step in range(case.backends):
            owner = 0 if case.path is Path.SHARED else step
            for number, (name, field) in enumerate(fields_for(dims).items()):
                shape = field.shape(dims)
                size = int(np.prod(shape)) * np.dtype(field.dtype).itemsize
                region = 1000 * owner + number + (0 if name == "page_table_1" else 100 * bucket)
                leaves.append(LeafFact(step, bucket, name, field.dtype, shape, (1,), region, 0, size))
    for step in range(case.backends):
        counter = LeafFact(step, 0, "multi_ctas_kv_counter_buffer", "int32", (4,), (1,), 9000 + step, 0, 16)
        leaves.append(counter)
    return tuple(leaves)


def at(round_name: str, step: int | None, name: str, change: Callable[[Array], Array]) -> Edit:
    """Edit one leaf or output of one round in one step, or in all."""

    def edit(where: str, at_step: int, leaf: str, value: Array) -> Array:
        hit = (where, leaf) == (round_name, name) and step in (None, at_step)
        return change(value) if hit else value

    return edit


def plus_one(value: Array) -> Array:
    """Add one to the second element."""
    value = value.copy()
    value.reshape(-1)[1] += 1
    return value


def lying_oracle(name: str) -> Callable[[Dims, Any], dict[str, Array]]:
    """Return an oracle that confirms `plus_one` of one field, as a changed specification would."""

    def oracle(dims: Dims, inputs: Any) -> dict[str, Array]:
        values: dict[str, Array] = dict(expected(dims, inputs))
        values[name] = plus_one(values[name])
        return values

    return oracle


def accept(
    store: GoldenStore,
    *observations: Observation,
    mode: str = "new",
    reason: str = "first goldens",
    oracle: Callable[[Dims, Any], Mapping[str, Array]] = expected,
    **options: Any,
) -> tuple[str, ...]:
    """Update a store with clean observations and return the report."""
    update = GoldenUpdate(store, mode, reason, oracle, environ=ENVIRON, **options)
    for observation in observations:
        update.add(observation, ())
    return update.apply().lines()


def make_store(folder: FilePath, *observations: Observation) -> GoldenStore:
    """Return a store that holds goldens of these observations."""
    store = GoldenStore(folder / "golden")
    if observations:
        accept(store, *observations)
    return store
