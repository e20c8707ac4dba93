"""`bench gpu`: all subjects side by side at each point, in turns, so that drift hits them alike."""

from __future__ import annotations

import datetime
import gc
import platform
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from importlib import metadata
from typing import TYPE_CHECKING

import torch

from harness.bench.figures import FLOOR, NOTHING, ONE, Figures, Measured, Report, Spread
from harness.bench.floor import triton_launches
from harness.bench.meter import Call, CudaMeter, Meter
from harness.bench.settings import Effort, Point, case_at, inputs_at
from harness.bench.subjects import EMBEDDED, FUSED, PATHS, SGLANG, Grapher, Staging, Subject, embedded
from harness.bench.weigh import bytes_owned, bytes_written, wrong_fields
from harness.case import Model
from harness.engine.cuda_graph import CudaGraphEngine
from harness.engine.protocol import Engine
from harness.errors import UsageError
from harness.fields import Dims
from harness.rounds import Inputs
from harness.types import Path

if TYPE_CHECKING:
    from harness.sut.sglang.loader import Loaded

PACKAGES = ("torch", "triton", "numpy")
LEAST_STEPS = {Path.SIBLING_COPY: 2, Path.MULTI_DESTINATION_COPY: 3}
"""Draft steps below which a path is another one."""
SWEPT_PATHS = (Path.INDEPENDENT, Path.RELEASED, Path.SHARED, Path.SHARED_IN_GRAPH)
"""Paths whose growth is measured."""


@dataclass(frozen=True)
class Request:
    """What is asked for."""

    models: Mapping[str, Model]
    points: tuple[Point, ...]
    swept: tuple[Point, ...] = ()
    """Measured as well, on `SWEPT_PATHS` only."""
    systems: tuple[str, ...] = (EMBEDDED, FUSED)
    paths: tuple[Path, ...] = ()
    """Empty: all that a system has."""
    effort: Effort = field(default_factory=Effort)
    version: str = ""
    """Release of SGLang; empty: whichever is found first."""


def run(request: Request, say: Callable[[str], None]) -> Iterator[Report]:
    """Measure on the current CUDA device; yield all figures so far after each point.

    `say` gets a line before each point. Raises UsageError without a CUDA device, for an unknown system, or
    where SGLang is asked for and absent.
    """
    unknown = [system for system in request.systems if system not in PATHS]
    if unknown:
        raise UsageError(f"bench gpu measures {', '.join(PATHS)}; there is no {unknown[0]}")
    if not torch.cuda.is_available():
        raise UsageError(f"bench gpu needs a CUDA device; torch {torch.__version__} sees none")
    engine = CudaGraphEngine()
    loaded = None
    if SGLANG in request.systems:
        from harness.sut.sglang.loader import load

        loaded = load(request.version or None, engine.device)
    meter = CudaMeter()
    launches = {NOTHING: _nothing, ONE: meter.launch_one, **triton_launches(engine.device)}
    report = Report(
        what="replay-harness bench gpu",
        date=datetime.date.today().isoformat(),
        device=_device(engine.device),
        software=_software(loaded),
        effort=request.effort,
        measured=(),
    )
    points = tuple(dict.fromkeys((*request.points, *request.swept)))
    for number, point in enumerate(points, start=1):
        say(f"{number} of {len(points)}: {point}")
        with _memory_returned():
            model = request.models[point.model]
            case = case_at(point, model, EMBEDDED, Path.SHARED)
            inputs = inputs_at(case, point.lengths())
            staging = Staging(inputs_at(case, [1] * point.bucket), inputs)
            subjects = tuple(_subjects(request, point, staging, engine, meter, loaded))
            dims = Dims.of(case, point.bucket)
            one = measure(point, dims, inputs, subjects, launches, meter, request.effort)
            del subjects
        report = replace(report, measured=(*report.measured, one))
        yield report


def _subjects(
    request: Request,
    point: Point,
    staging: Staging,
    engine: Engine,
    grapher: Grapher,
    loaded: Loaded | None,
) -> Iterator[Subject]:
    model = request.models[point.model]
    for system in request.systems:
        for path in PATHS[system]:
            chosen = path in (request.paths or PATHS[system])
            chosen &= point in request.points or path in SWEPT_PATHS
            if not chosen or point.steps - 1 < LEAST_STEPS.get(path, 1):
                continue
            if system == SGLANG and loaded is not None:
                from harness.bench.packages import sglang

                yield sglang(path, point, model, staging, engine, grapher, loaded)
            else:
                yield embedded(system, path, point, model, staging, engine, grapher)


def measure(
    point: Point,
    dims: Dims,
    inputs: Inputs,
    subjects: Sequence[Subject],
    launches: Mapping[str, Call],
    meter: Meter,
    effort: Effort,
) -> Measured:
    """Measure all subjects, and bare launches with them, in turns of alternating order."""
    bare = tuple(Subject(FLOOR, name, launch, launch, tuple) for name, launch in launches.items())
    everything = (*bare, *subjects)
    figures = []
    for subject in everything:
        with subject.ready():
            for _ in range(effort.warmup):
                subject.refresh()
            one = _counted(subject, meter)
            figures.append(one if subject.system == FLOOR else _weighed(one, subject, dims, inputs, meter))
    samples = [_Samples(meter) for _ in everything]
    order = list(zip(everything, samples, strict=True))
    for turn in range(effort.rounds):
        for subject, taken in order if turn % 2 == 0 else order[::-1]:
            with subject.ready():
                taken.take(subject, effort)
    finished = [
        replace(one, host=taken.spread("host"), span=taken.spread("span"), gap=taken.spread("gap"))
        for one, taken in zip(figures, samples, strict=True)
    ]
    return Measured(point, point.lengths(), tuple(finished[: len(bare)]), tuple(finished[len(bare) :]))


def _counted(subject: Subject, meter: Meter) -> Figures:
    activities = meter.activities(subject.refresh)
    eager = activities if subject.following is None else meter.activities(subject.eager)
    unknown = Spread(0, 0, 0, 0)
    return Figures(subject.system, subject.path, unknown, unknown, unknown, activities, eager)


def _weighed(one: Figures, subject: Subject, dims: Dims, inputs: Inputs, meter: Meter) -> Figures:
    """Add bytes and what is wrong; within `subject.ready()`."""
    written = bytes_written(subject, dims)
    temporary = meter.temporary(subject.refresh)
    return replace(
        one,
        bytes_owned=bytes_owned(subject),
        bytes_written=written,
        bytes_temporary=temporary,
        wrong=wrong_fields(subject, dims, inputs),
    )


class _Samples:
    """What one subject's turns gave."""

    def __init__(self, meter: Meter) -> None:
        self._meter = meter
        self._taken: dict[str, list[float]] = defaultdict(list)

    def take(self, subject: Subject, effort: Effort) -> None:
        """Take one turn, garbage collection off."""
        meter, taken = self._meter, self._taken
        between = subject.refresh if subject.following is None else subject.eager
        enabled = gc.isenabled()
        gc.disable()
        try:
            taken["host"] += [meter.host(subject.refresh) for _ in range(effort.host)]
            host = self.spread("host").median
            taken["span"] += [meter.span(subject.refresh, host) for _ in range(effort.spans)]
            taken["gap"] += [meter.gap(between, subject.following) for _ in range(effort.gaps)]
        finally:
            if enabled:
                gc.enable()

    def spread(self, what: str) -> Spread:
        """Return the spread of all turns so far."""
        return Spread.of(self._taken[what])


def _nothing() -> None:
    pass


@contextmanager
def _memory_returned() -> Iterator[None]:
    yield
    gc.collect()
    torch.cuda.empty_cache()


def _device(device: torch.device) -> dict[str, object]:
    properties = torch.cuda.get_device_properties(device)
    return {
        "name": properties.name,
        "compute_capability": f"{properties.major}.{properties.minor}",
        "multiprocessors": properties.multi_processor_count,
        "memory_bytes": properties.total_memory,
    }


def _software(loaded: Loaded | None) -> dict[str, str]:
    versions = {"python": platform.python_version(), "cuda": str(torch.version.cuda)}
    versions |= {package: metadata.version(package) for package in PACKAGES}
    return versions if loaded is None else {**versions, "sglang": loaded.site.version}
