"""Running cases: plan, drive each with its ordinary reference, judge, yield results.

Cases that share a reference run one after the other in one worker, so that the reference is driven once.
"""

from __future__ import annotations

import hashlib
import multiprocessing
import os
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import entry_points
from pathlib import Path as FilePath
from typing import TYPE_CHECKING, Literal

from harness.case import Case
from harness.casefile import load_models
from harness.errors import UsageError
from harness.findings import CaseResult
from harness.matrix import Plan, Selection, covering_array, full_matrix
from harness.ordinary import ordinary_of
from harness.rounds import rounds_key
from harness.types import EngineKind

if TYPE_CHECKING:
    from harness.sut.protocol import SutFactory

GROUP = "replay_harness.suts"
"""Entry-point group under which systems under test register their factories."""

LARGEST_GROUP = 16
"""Cases of one group: more would leave the other workers idle at the end."""


@dataclass(frozen=True)
class RunOptions:
    """What to run, and how."""

    cases_dir: FilePath
    golden_dir: FilePath
    sut: str = "embedded"
    engine: EngineKind = EngineKind.TAPE
    full: bool = False
    """The cross product instead of the covering array."""
    jobs: int = 0
    """Worker processes; 0: one a core on the tape, one on a GPU."""
    save: FilePath | None = None
    """Folder that keeps the observations."""
    selection: Selection = field(default_factory=Selection)
    golden: Literal["check", "off"] = "check"
    sut_options: Mapping[str, str] = field(default_factory=dict)
    """Keyword arguments for the system's factory."""
    isolated: bool = False
    """Run in worker processes of its own, even a single one: a process can load one release only."""

    @property
    def version(self) -> str:
        """The release that is asked for, empty where any will do."""
        return self.sut_options.get("version", "")


def factory_of(options: RunOptions) -> SutFactory:
    """Return the factory of the system under test. Raises UsageError if none of that name is installed."""
    found = {point.name: point for point in entry_points(group=GROUP)}
    if options.sut not in found:
        known = ", ".join(sorted(found)) or "none: install this package first (pip install -e .)"
        raise UsageError(f"no system under test is called {options.sut!r}; installed: {known}")
    factory: SutFactory = found[options.sut].load()
    return partial(factory, **options.sut_options) if options.sut_options else factory


def plan(options: RunOptions) -> Plan:
    """Return the cases that `options` select, and what is left out with reasons."""
    models = load_models(options.cases_dir)
    make = full_matrix if options.full else covering_array
    return make(models, options.sut, options.engine, options.selection)


def reference_key(case: Case) -> tuple[object, ...]:
    """Cases with equal keys have the same rounds and the same ordinary reference."""
    return ordinary_of(case).id, case.engine, case.sut, rounds_key(case)


def groups(cases: Iterable[Case]) -> list[tuple[Case, ...]]:
    """Gather cases that share a reference, at most `LARGEST_GROUP` together, the heaviest groups first."""
    gathered: dict[tuple[object, ...], list[Case]] = {}
    for case in cases:
        gathered.setdefault(reference_key(case), []).append(case)
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


def run(options: RunOptions, planned: Plan) -> Iterator[CaseResult]:
    """Run the planned cases and yield their results as they finish (no fixed order)."""
    factory_of(options)  # an unknown system is reported before any worker starts
    work = groups(planned.cases)
    jobs = min(options.jobs or _default_jobs(options.engine), len(work))
    if jobs <= 1 and not options.isolated:
        from harness.worker import Worker

        worker = Worker(options)
        for group in work:
            yield from worker.run(group)
        return
    context = multiprocessing.get_context("spawn")  # torch and CUDA do not survive a fork
    with ProcessPoolExecutor(jobs, context, initializer=_start, initargs=(options,)) as pool:
        futures = [pool.submit(_run_group, group) for group in work]
        try:
            for future in as_completed(futures):
                yield from future.result()
        except BaseException:  # interrupted, or a result nobody waits for: do not wait for running groups
            pool.shutdown(wait=False, cancel_futures=True)
            for process in multiprocessing.active_children():
                process.terminate()
            raise


def judge_saved(directory: FilePath, options: RunOptions) -> Iterator[CaseResult]:
    """Judge the observations that a run with `save` kept."""
    from harness.archive import observations
    from harness.worker import judge_file

    for file in observations(directory):
        yield judge_file(file, options)


def observation_name(case: Case) -> str:
    """Return the file name of a case's saved observation: readable, unique, short enough for any system."""
    digest = hashlib.sha256(f"{case.sut}/{case.engine}/{case.id}".encode()).hexdigest()[:8]
    return f"{case.sut}-{case.engine.value}-{case.id.replace('/', '-')}-{digest}"


def _default_jobs(engine: EngineKind) -> int:
    if engine is EngineKind.CUDA_GRAPH:
        return 1
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _start(options: RunOptions) -> None:
    """Make this process's worker; kept on the function, since a pool initializer has no other place."""
    import torch

    from harness.worker import Worker

    torch.set_num_threads(1)
    _start.worker = Worker(options)  # type: ignore[attr-defined]


def _run_group(group: tuple[Case, ...]) -> list[CaseResult]:
    return list(_start.worker.run(group))  # type: ignore[attr-defined]
