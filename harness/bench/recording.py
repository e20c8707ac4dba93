"""What a recorder costs a refresh of the released SGLang: with and without it, in turns."""

from __future__ import annotations

import datetime
import gc
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path as FilePath
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from harness.bench.settings import Point, case_at, inputs_at
from harness.bench.subjects import SGLANG
from harness.case import Model
from harness.engine.protocol import Engine
from harness.record import install
from harness.types import Path

if TYPE_CHECKING:
    from harness.sut.sglang.loader import Loaded

LIMIT_US, LIMIT_SHARE = 20.0, 0.02
"""What recording may cost on the server's thread: so much, or this share of the refresh."""
WARMUP = 3


@dataclass(frozen=True)
class Overhead:
    """One refresh with and without a recorder. Times are microseconds of host time."""

    path: str
    point: str
    pages: str
    plain_us: float
    """Median until the call returns, on an idle device."""
    recorded_us: float
    """The same with the recorder in front of it."""
    call_us: float
    """Median inside the recorder's own call: what the server's thread pays."""
    call_p90_us: float
    writer_us: float
    """CPU time of the writer's thread a record, beside the server's."""
    bytes_per_record: float
    calls: int
    lost: int

    @property
    def share(self) -> float:
        """The recorder's own call as a share of the plain refresh."""
        return self.call_us / self.plain_us

    @property
    def within(self) -> bool:
        """Whether it costs as little as it has to."""
        return self.call_us < LIMIT_US or self.share < LIMIT_SHARE


def measure(
    model: Model, point: Point, path: Path, engine: Engine, loaded: Loaded, pages: str, turns: int, calls: int
) -> Overhead:
    """Measure one refresh of `path` at a point: `turns` turns of `calls` refreshes, plain and recorded."""
    with _backend(model, point, path, engine, loaded) as (multi, batch), TemporaryDirectory() as folder:
        plain = partial(multi.init_forward_metadata_out_graph, batch)  # bound before it is wrapped
        installed = install(multi, FilePath(folder) / "run", pages=pages)
        multi.init_forward_metadata_out_graph(batch, in_capture=True)

        recorded = partial(multi.init_forward_metadata_out_graph, batch)
        times: dict[bool, list[float]] = {False: [], True: []}
        for call in (plain, recorded):
            for _ in range(WARMUP):
                _timed(call, engine)
        enabled = gc.isenabled()
        gc.disable()
        try:
            for turn in range(turns):
                for with_recorder in (False, True) if turn % 2 == 0 else (True, False):
                    call = recorded if with_recorder else plain
                    times[with_recorder] += [_timed(call, engine) for _ in range(calls)]
        finally:
            if enabled:
                gc.enable()
        recorder = installed.recorder
        installed.uninstall()
        if recorder is None:
            raise RuntimeError(f"the recorder did not come to work: {installed.problem}")
        cost = recorder.cost()
        size = recorder.path.stat().st_size
    return Overhead(
        path=path.value,
        point=str(point),
        pages=pages,
        plain_us=statistics.median(times[False]),
        recorded_us=statistics.median(times[True]),
        call_us=cost.host_us,
        call_p90_us=cost.host_p90_us,
        writer_us=cost.writer_us,
        bytes_per_record=size / max(cost.calls - cost.lost, 1),
        calls=cost.calls,
        lost=cost.lost,
    )


@contextmanager
def _backend(
    model: Model, point: Point, path: Path, engine: Engine, loaded: Loaded
) -> Iterator[tuple[Any, Any]]:
    """Give SGLang's multi-step backend, captured, and its batch at a point, while SGLang may be called."""
    from harness.sut.sglang import shared
    from harness.sut.sglang.backend import Batches, make_multi

    case = case_at(point, model, SGLANG, path)
    with loaded.calls(case.geometry, declared=False) as patches:
        if path is not Path.RELEASED:
            shared.install(shared.Options())
            patches.callback(shared.uninstall)
        batches = Batches(case, loaded.seams, (point.bucket,), engine.device)
        multi = make_multi(case, loaded.seams, batches, point.bucket)
        multi.init_cuda_graph_state(point.bucket, point.bucket)
        batches.stage(inputs_at(case, [1] * point.bucket))
        multi.init_forward_metadata_out_graph(batches[point.bucket], in_capture=True)
        batches.stage(inputs_at(case, point.lengths()))
        yield multi, batches[point.bucket]


def _timed(call: Callable[[], None], engine: Engine) -> float:
    """Return how long a call takes to return, microseconds; the device is idle before it."""
    engine.synchronize()
    begin = time.perf_counter_ns()
    call()
    return (time.perf_counter_ns() - begin) / 1000


def lines(overheads: Sequence[Overhead]) -> Iterator[str]:
    """Yield a Markdown table and a verdict."""
    yield (
        "| path | point | pages | refresh, us | recorded, us | recorder's call, us | 90 % below "
        "| of the refresh | writer, us | bytes a record | lost |"
    )
    yield "|---|---|---|---|---|---|---|---|---|---|---|"
    for one in overheads:
        yield (
            f"| {one.path} | {one.point} | {one.pages} | {one.plain_us:,.0f} | {one.recorded_us:,.0f} "
            f"| {one.call_us:.1f} | {one.call_p90_us:.1f} | {100 * one.share:.2f} % | {one.writer_us:.0f} "
            f"| {one.bytes_per_record:.0f} | {one.lost} of {one.calls} |"
        )
    beyond = sum(not one.within for one in overheads)
    limit = f"{LIMIT_US:.0f} us or {100 * LIMIT_SHARE:.0f} % of the refresh"
    yield f"limit     {limit}: {'all within' if not beyond else f'{beyond} of {len(overheads)} beyond it'}"


def document(overheads: Sequence[Overhead], device: str, software: dict[str, str]) -> dict[str, Any]:
    """Return the figures as JSON-ready data."""
    return {
        "what": "replay-harness bench record: host cost of recording a refresh of the released SGLang",
        "date": datetime.date.today().isoformat(),
        "device": device,
        "software": software,
        "limit_us": LIMIT_US,
        "limit_share": LIMIT_SHARE,
        "overheads": [{**asdict(one), "share": one.share, "within": one.within} for one in overheads],
    }
