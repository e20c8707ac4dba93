"""From a sequence to what the driver runs: a case and a program of rounds with what happens between them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from harness import rounds as program
from harness.axes import OURS
from harness.case import Case, Model
from harness.errors import CaseError
from harness.fuzz.sequence import Batch, Capture, Churn, Eager, Operation, Replay, Sequence, case_of
from harness.lengths import Scale
from harness.ordinary import ordinary_of
from harness.pages import fill_dead_columns, guard_page, page_columns, seeded_pages
from harness.rounds import Program, Round
from harness.types import Mode

Tables = dict[str, NDArray[np.int32]]


def expand(sequence: Sequence, models: Mapping[str, Model]) -> tuple[Case, Program]:
    """Return a sequence's case and program; `store.problems` says beforehand what cannot be expanded.

    Rounds are named by their bucket and the number of their operation, counted from 1. Raises CaseError
    where requests that lie on the pages of one seed need more of them than the pool has.
    """
    delayed = any(sequence.held_back(index) for index in range(len(sequence.operations)))
    model = models[sequence.setting.model]
    case = case_of(sequence.setting, model, sequence.captured, delayed=delayed)
    return case, program_of(sequence, case)


def program_of(
    sequence: Sequence, case: Case, first: int = 1, standing: NDArray[np.int32] | None = None
) -> Program:
    """Return the program of a sequence, or of a part of a longer one.

    first: number of its first operation. standing: page map that holds what earlier operations gave, updated
    in place: requests that are not in a batch keep their pages, as in a server; else they have none.
    """
    held = frozenset(index for index in range(len(sequence.operations)) if sequence.held_back(index))
    tables = _seeded(sequence, case)
    capture: dict[int, Round] = {}
    rounds: list[Round] = []
    before: dict[int, tuple[program.Disturbance, ...]] = {}
    waiting: list[program.Disturbance] = []
    delayed: list[int] = []
    for index, operation in enumerate(sequence.operations):
        if not isinstance(operation, Replay):
            waiting.append(_disturbance(operation, index + first, case, tables, capture, standing))
            continue
        if waiting:
            before[len(rounds)], waiting = tuple(waiting), []
        if index in held:
            delayed.append(len(rounds))
        name = f"b{operation.bucket}.{index + first:02d}"
        rounds.append(_round(operation, name, case, tables, standing))
    if waiting:
        before[len(rounds)] = tuple(waiting)
    used = {one.table for one in (*rounds, *_captures(before))}
    return Program(
        buckets=(),
        capture=capture,
        rounds=tuple(rounds),
        tables={key: table for key, table in tables.items() if key in used},
        before=before,
        delayed=frozenset(delayed),
    )


def undisturbed(case: Case, made: Program) -> tuple[Case, Program]:
    """Return the ordinary case and the same rounds with nothing between them: what outputs are held against.

    The embedded system's has as many steps as the case: what a step computes depends on no later one.
    """
    ordinary = ordinary_of(case)
    if case.sut in OURS:
        ordinary = replace(ordinary, variant=case.variant)
    return ordinary, replace(made, buckets=tuple(made.capture), before={}, delayed=None)


def _captures(before: Mapping[int, tuple[program.Disturbance, ...]]) -> list[Round]:
    flat = [one for disturbances in before.values() for one in disturbances]
    return [one.round for one in flat if isinstance(one, program.Captured)]


def _disturbance(
    operation: Operation,
    number: int,
    case: Case,
    tables: Tables,
    capture: dict[int, Round],
    standing: NDArray[np.int32] | None,
) -> program.Disturbance:
    if isinstance(operation, Capture):
        name = f"b{operation.bucket}.capture{number:02d}"
        round_ = _round(operation, name, case, tables, standing)
        capture.setdefault(operation.bucket, round_)
        return program.Captured(round_)
    if isinstance(operation, Eager):
        return program.Eager(operation.rows)
    return program.Churn() if isinstance(operation, Churn) else program.Pause()


def _round(batch: Batch, name: str, case: Case, tables: Tables, standing: NDArray[np.int32] | None) -> Round:
    scale = Scale.of(case)
    accepted: tuple[int, ...] = ()
    if case.mode is Mode.DRAFT_EXTEND:
        accepted = batch.accepted or (scale.draft_tokens,) * len(batch.lengths)
    if isinstance(batch.pages, int):
        table = _seed_key(batch.pages)
    else:
        table = f"{name}.pages"
        tables[table] = _given_pages(batch.requests, batch.pages, case, standing)
    if isinstance(batch, Replay) and batch.exchange:
        exchanged = f"{name}.exchange"
        tables[exchanged] = _exchanged(tables[table], batch)
        table = exchanged
    if isinstance(batch, Replay) and batch.junk:
        live = {
            request: scale.columns(length)
            for request, length in zip(batch.requests, batch.lengths, strict=True)
        }
        valid = case.geometry.first_page, guard_page(case.model, case.geometry)
        rng = np.random.default_rng([batch.junk, 0xDEAD])
        junked = f"{name}.junk"
        tables[junked] = fill_dead_columns(tables[table], live, valid, rng)
        table = junked
    return Round(name, batch.bucket, batch.lengths, batch.requests, table, accepted)


def _exchanged(table: NDArray[np.int32], batch: Replay) -> NDArray[np.int32]:
    row, first, second = batch.exchange
    changed, request = table.copy(), batch.requests[row]
    changed[request, [first, second]] = table[request, [second, first]]
    changed.flags.writeable = False
    return changed


def _seed_key(seed: int) -> str:
    return f"pages{seed}"


def _seeded(sequence: Sequence, case: Case) -> Tables:
    """Return a page map per seed; a request keeps its pages over all operations of a seed."""
    scale = Scale.of(case)
    reach: dict[int, dict[int, int]] = {}
    for one in sequence.operations:
        if isinstance(one, Capture | Replay) and isinstance(one.pages, int):
            columns = reach.setdefault(one.pages, {})
            for request, length in zip(one.requests, one.lengths, strict=True):
                columns[request] = max(columns.get(request, 0), scale.columns(length))
    tables: Tables = {}
    for seed, columns in reach.items():
        try:
            tables[_seed_key(seed)] = seeded_pages(case.model, case.geometry, columns, seed)
        except ValueError as error:
            raise CaseError(f"pages = {seed}: {error}; use another seed or shorter lengths") from error
    return tables


def _given_pages(
    requests: tuple[int, ...],
    pages: tuple[tuple[int, ...], ...],
    case: Case,
    standing: NDArray[np.int32] | None,
) -> NDArray[np.int32]:
    table = standing
    if table is None:
        table = np.zeros((case.geometry.requests, page_columns(case.model, case.geometry)), np.int32)
    for request, row in zip(requests, pages, strict=True):
        table[request, : len(row)] = row
    table = table if standing is None else table.copy()
    table.flags.writeable = False
    return table
