"""Trying entries in worker processes: what was tried comes back as it finishes."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path as FilePath

from harness.faults.catalogue import Entry, entries
from harness.faults.trial import Tried
from harness.ordinary import reference_key
from harness.pool import worker_context
from harness.types import EngineKind

LARGEST_SHARE = 12
"""Entries that a worker takes at once."""


@dataclass(frozen=True)
class Options:
    """Where and how entries are tried."""

    cases_dir: FilePath
    """Holds the declaration of known findings."""
    sut: str = "embedded"
    engine: EngineKind = EngineKind.TAPE
    jobs: int = 0
    """Worker processes; 0: one a core on the tape, one on a GPU."""


def attempt(options: Options, chosen: Sequence[Entry]) -> Iterator[list[Tried]]:
    """Yield each entry's trials, in no fixed order."""
    shares = _shares(chosen)
    jobs = min(options.jobs or _default_jobs(options.engine), len(shares))
    if jobs <= 1:
        from harness.faults.bench import make_laboratory

        laboratory = make_laboratory(options)
        for entry in chosen:
            yield laboratory.attempt(entry)
        return
    with ProcessPoolExecutor(jobs, worker_context(), initializer=_start, initargs=(options,)) as pool:
        futures = [pool.submit(_run, tuple(entry.id for entry in share)) for share in shares]
        try:
            for future in as_completed(futures):
                yield from future.result()
        except BaseException:  # interrupted: do not wait for what runs
            pool.shutdown(wait=False, cancel_futures=True)
            for process in multiprocessing.active_children():
                process.terminate()
            raise


def _shares(chosen: Sequence[Entry]) -> list[list[Entry]]:
    """Put entries whose cases have a reference in common together, in shares of bounded size."""
    gathered: dict[tuple[object, ...], list[Entry]] = {}
    for entry in chosen:
        gathered.setdefault(reference_key(entry.cases[0]), []).append(entry)
    shares = [
        group[start : start + LARGEST_SHARE]
        for group in gathered.values()
        for start in range(0, len(group), LARGEST_SHARE)
    ]
    return sorted(shares, key=len, reverse=True)


def _default_jobs(engine: EngineKind) -> int:
    if engine is EngineKind.CUDA_GRAPH:
        return 1
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _start(options: Options) -> None:
    """Make this process's laboratory; kept on the function, since an initializer has no other place."""
    from harness.faults.bench import make_laboratory

    _start.laboratory = make_laboratory(options)  # type: ignore[attr-defined]
    _start.entries = {entry.id: entry for entry in entries(options.sut)}  # type: ignore[attr-defined]


def _run(identities: tuple[str, ...]) -> list[list[Tried]]:
    known = _start.entries  # type: ignore[attr-defined]
    return [_start.laboratory.attempt(known[identity]) for identity in identities]  # type: ignore[attr-defined]
