"""Worker processes that may die or hang: what they lose is run again, each case for itself.

A kernel that reads past its buffers can end its process, leave a device context in which nothing works
any more, or never return. The case that did it is the finding; the other cases of its group did nothing.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass
from multiprocessing import forkserver
from multiprocessing.context import BaseContext

from pebble import ProcessExpired, ProcessPool

from harness.case import Case
from harness.findings import CaseResult
from harness.unrun import lost

UNFIT = 97
"""Exit status of a worker whose device context is dead: it leaves its next group to another one."""

Group = tuple[Case, ...]


@dataclass(frozen=True)
class Done:
    """What a worker returns of a group."""

    results: tuple[CaseResult, ...]
    rest: Group = ()
    """Cases that it did not run because its device context died before them."""


Work = Callable[[Group], Done]
"""Runs a group in a worker process; has to be picklable."""


def run_groups(work: Work, groups: Sequence[Group], jobs: int, limit_s: float) -> Iterator[CaseResult]:
    """Run groups in `jobs` processes and yield results as groups finish.

    limit_s: seconds that a case may take; a group has that many for each of its cases. A group whose worker
    dies or is too slow is run again case by case; a case that ends its worker alone has a failed result.
    """
    with ProcessPool(max_workers=jobs, context=worker_context()) as pool:
        pending: dict[Future[Done], Group] = {}

        def start(group: Group) -> None:
            pending[pool.schedule(work, args=(group,), timeout=limit_s * len(group))] = group

        try:
            for group in groups:
                start(group)
            while pending:
                finished, _ = wait(pending, return_when=FIRST_COMPLETED)
                for future in finished:
                    group = pending.pop(future)
                    error = future.exception()
                    if isinstance(error, ProcessExpired | TimeoutError):
                        for again in _again(group, error):
                            start(again)
                        if len(group) == 1 and not _unfit(error):
                            yield lost(group[0], *_fate(error, limit_s))
                        continue
                    done = future.result()
                    if done.rest:
                        start(done.rest)
                    yield from done.results
        except BaseException:  # interrupted, or a result nobody waits for: do not wait for running groups
            pool.stop()  # type: ignore[no-untyped-call]
            raise


def worker_context() -> BaseContext:
    """Return how worker processes are made: forked from a server that has imported torch and used no device.

    CUDA does not survive a fork, torch's import does, and one import serves all workers.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["harness.worker"])
    return context


def get_ready() -> None:
    """Let the server of `worker_context` import torch now, while this process does other things."""
    worker_context()
    forkserver.ensure_running()


def leave_if(dead: bool) -> None:
    """End this worker process where its device context is dead, so that another one takes its group."""
    if dead:
        os._exit(UNFIT)  # the context's own exit handlers would fail or hang


def _unfit(error: BaseException) -> bool:
    return isinstance(error, ProcessExpired) and error.exitcode == UNFIT


def _again(group: Group, error: BaseException) -> list[Group]:
    if _unfit(error):
        return [group]
    return [(case,) for case in group] if len(group) > 1 else []


def _fate(error: BaseException, limit_s: float) -> tuple[str, str]:
    """Return kind and message of the finding for a case that ended its worker."""
    if isinstance(error, TimeoutError):
        return "hung", f"the case did not end within {limit_s:g} s: its worker was killed"
    code = error.exitcode if isinstance(error, ProcessExpired) else 0
    ended = f"signal {-code}" if code < 0 else f"exit status {code}"
    return "crashed", f"the case ended its worker process ({ended})"
