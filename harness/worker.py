"""One process's share of a run: an engine, the caches, and the steps from a case to its result."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path as FilePath

import torch

from harness.archive import ORDINARY, load_observation, observation_name, save_observation
from harness.case import Case
from harness.checks.subject import Subject
from harness.driver import drive
from harness.engine.protocol import Engine
from harness.errors import NotDrivable
from harness.findings import CaseResult
from harness.golden.store import GoldenStore
from harness.judge import judge
from harness.known import load_known
from harness.observation import Observation
from harness.options import RunOptions, factory_of
from harness.ordinary import is_reference, ordinary_of, reference_key
from harness.rounds import Program, rounds_key
from harness.traffic import build_program
from harness.truth import Truth
from harness.types import EngineKind
from harness.unrun import skipped

KNOWN_FILE = "known_findings.toml"
COLLECT_EVERY = 4
"""Cases on the tape between two collections of cyclic garbage, which take as long as a replay or two."""
PROGRAMS = 8
"""Programs that a worker keeps: about one for each drill of a group."""


class Worker:
    """Drives and judges cases, one after the other."""

    def __init__(self, options: RunOptions) -> None:
        """Make the engine. Raises UsageError where the device is missing."""
        torch.set_num_threads(1)  # small tensors, and a worker a core: threads get in each other's way
        self._options = options
        self._factory = factory_of(options)
        self._engine = make_engine(options.engine)
        self._truth = Truth(rounds=256 if options.engine is EngineKind.TAPE else 48)
        self._known = load_known(options.cases_dir / KNOWN_FILE)
        self._goldens = GoldenStore(options.golden_dir)
        self._programs: dict[object, Program] = {}
        self._uncollected = 0
        self._reference: tuple[tuple[object, ...], Observation] | None = None
        gc.freeze()  # modules and models stay: collections between cases need not look at them again

    def run(self, group: tuple[Case, ...]) -> Iterator[CaseResult]:
        """Run cases that share a reference; the reference is driven when the first case needs it."""
        for case in group:
            start = time.perf_counter()
            with self._collected_after():
                try:
                    observation, reference = self.observe(case)
                    result = self._judge(observation, reference, start)
                except NotDrivable as reason:
                    result = skipped(case, str(reason))
            yield result

    @property
    def dead(self) -> bool:
        """Whether nothing more can run on this worker's device."""
        return not self._engine.alive()

    def observe(self, case: Case) -> tuple[Observation, Observation | None]:
        """Drive one case, judge nothing; return it and its ordinary reference, if it is not one itself.

        The reference of the last case is kept: cases that share one come one after the other
        (`runner.groups`).
        """
        rounds = self._program(case)
        observation = drive(case, rounds, self._truth, self._factory, self._engine)
        if is_reference(case):
            self._reference = reference_key(case), observation
            return observation, None
        return observation, self._ordinary(case)

    @contextmanager
    def _collected_after(self) -> Iterator[None]:
        """Collect cyclic garbage, which may keep graphs and buffers, between cases and not in their midst."""
        enabled = gc.isenabled()
        gc.disable()
        try:
            yield
        finally:
            if enabled:
                gc.enable()
            self._uncollected += 1
            if self._uncollected >= COLLECT_EVERY or self._options.engine is not EngineKind.TAPE:
                gc.collect()
                self._uncollected = 0

    def _program(self, case: Case) -> Program:
        """Return the case's rounds, made once for cases that share them; the last few programs are kept."""
        key = (case.model.name, case.sut, case.drill, rounds_key(case))
        if key not in self._programs:
            if len(self._programs) >= PROGRAMS:
                self._programs.pop(next(iter(self._programs)))
            self._programs[key] = build_program(case)
        return self._programs[key]

    def _ordinary(self, case: Case) -> Observation:
        key = reference_key(case)
        if self._reference is None or self._reference[0] != key:
            ordinary = ordinary_of(case)
            program = self._program(ordinary)
            driven = drive(ordinary, program, self._truth, self._factory, self._engine, probes=False)
            self._reference = key, driven
        return self._reference[1]

    def _judge(self, observation: Observation, ordinary: Observation | None, start: float) -> CaseResult:
        options, case = self._options, observation.case
        if options.save is not None:
            name = ""
            if ordinary is not None:
                name = ORDINARY + observation_name(case)
                save_observation(options.save, name, ordinary)
            save_observation(options.save, observation_name(case), observation, name)
        checked = options.golden == "check"
        golden = self._goldens.for_case(case) if checked else None
        subject = Subject.of(observation, self._truth, ordinary, golden, golden_checked=checked)
        result = pictured(judge(subject, self._known), subject, options)
        return replace(result, seconds=time.perf_counter() - start)


def judge_file(file: FilePath, options: RunOptions) -> CaseResult:
    """Judge one saved observation again, with the reference that was saved beside it."""
    start = time.perf_counter()
    observation, name = load_observation(file)
    ordinary = load_observation(file.with_name(f"{name}.json"))[0] if name else None
    checked = options.golden == "check"
    case = observation.case
    golden = GoldenStore(options.golden_dir).for_case(case) if checked else None
    subject = Subject.of(observation, Truth(), ordinary, golden, golden_checked=checked)
    result = pictured(judge(subject, load_known(options.cases_dir / KNOWN_FILE)), subject, options)
    return replace(result, seconds=time.perf_counter() - start)


def pictured(result: CaseResult, subject: Subject, options: RunOptions) -> CaseResult:
    """Return a result with the lines around its differences, and with its picture where a report asks."""
    if result.findings:
        from harness.neighbours import around

        result = replace(result, around=around(subject, result.findings))
    if not options.pictures:
        return result
    from harness.portray import portray

    return replace(result, picture=portray(subject))


def make_engine(kind: EngineKind) -> Engine:
    """Return the engine of that kind. Raises UsageError where its device is missing."""
    if kind is EngineKind.CUDA_GRAPH:
        from harness.engine.cuda_graph import CudaGraphEngine

        return CudaGraphEngine()
    from harness.engine.tape import TapeEngine

    return TapeEngine()
