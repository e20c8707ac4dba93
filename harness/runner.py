"""Running cases: plan, drive each with its ordinary reference, judge, yield results.

Cases that share a reference run one after the other in one worker, so that the reference is driven once.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path as FilePath

from harness import pool
from harness.case import Case
from harness.casefile import load_models
from harness.findings import CaseResult
from harness.matrix import Plan, Selection, covering_array, full_matrix
from harness.options import RunOptions, registered
from harness.ordinary import is_reference, reference_key
from harness.types import EngineKind

LARGEST_GROUP = 16
"""Cases of one group: more would leave the other workers idle at the end."""


def plan(options: RunOptions) -> Plan:
    """Return the cases that `options` select, and what is left out with reasons."""
    models = load_models(options.cases_dir)
    make = full_matrix if options.full else covering_array
    return make(models, options.sut, options.engine, options.selection)


def groups(cases: Iterable[Case]) -> list[tuple[Case, ...]]:
    """Gather cases that share a reference, at most `LARGEST_GROUP` together, the heaviest groups first.

    A case that is the reference of its group comes first in it: it need not be driven again.
    """
    gathered: dict[tuple[object, ...], list[Case]] = {}
    for case in cases:
        gathered.setdefault(reference_key(case), []).append(case)
    for group in gathered.values():
        group.sort(key=is_reference, reverse=True)
    parts = [
        tuple(group[start : start + LARGEST_GROUP])
        for group in gathered.values()
        for start in range(0, len(group), LARGEST_GROUP)
    ]
    return sorted(parts, key=_weight, reverse=True)


def _weight(group: tuple[Case, ...]) -> int:
    return sum(
        case.bucket * case.backends * (case.variant.draft_tokens if case.backends == 1 else 1)
        for case in group
    )


def get_ready(options: RunOptions) -> None:
    """Begin what worker processes need, where a whole matrix will want them."""
    if options.jobs != 1 and options.selection == Selection():
        pool.get_ready()


def run(options: RunOptions, planned: Plan) -> Iterator[CaseResult]:
    """Run the planned cases and yield their results as they finish (no fixed order)."""
    registered(options)  # an unknown system is reported before any worker starts, and torch imported in them
    work = groups(planned.cases)
    jobs = min(options.jobs or _default_jobs(options.engine), len(work))
    if jobs <= 1 and not options.isolated and options.engine is EngineKind.TAPE:
        from harness.worker import Worker

        worker = Worker(options)
        for group in work:
            yield from worker.run(group)
        return
    yield from pool.run_groups(partial(_run_group, options), work, jobs, options.limit_s)


def judge_saved(directory: FilePath, options: RunOptions) -> Iterator[CaseResult]:
    """Judge the observations that a run with `save` kept."""
    from harness.archive import observations
    from harness.worker import judge_file

    for file in observations(directory):
        yield judge_file(file, options)


def _default_jobs(engine: EngineKind) -> int:
    if engine is EngineKind.CUDA_GRAPH:
        return 1
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _run_group(options: RunOptions, group: tuple[Case, ...]) -> pool.Done:
    """Run a group in this process's worker: kept on the function, since a pool has no other place for it."""
    from harness.worker import Worker

    worker: Worker | None = getattr(_run_group, "worker", None)
    if worker is None:
        worker = Worker(options)
        _run_group.worker = worker  # type: ignore[attr-defined]
    pool.leave_if(worker.dead)
    results = []
    for result in worker.run(group):
        results.append(result)
        if worker.dead:
            break
    return pool.Done(tuple(results), group[len(results) :])
