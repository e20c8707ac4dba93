"""What a fuzzing run draws from: the settings of a system that exist, its batch sizes, and legal batches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise, product

from harness.axes import OURS, axes_of
from harness.case import Case, Model
from harness.errors import UsageError
from harness.fuzz.sequence import Setting, case_of, setting_of
from harness.lengths import SEGMENT, Scale
from harness.matrix import Selection
from harness.types import Drill, EngineKind, Mode, Path

LARGEST_BUCKET = 8
"""Largest batch size that is drawn: more rows cost time and show nothing else."""

USUAL_STEPS = 3
"""`S` that comes first: two draft steps, of which the second can share or copy; more cost time."""


@dataclass(frozen=True)
class Space:
    """Settings to draw from, by mode, and what may be drawn within one."""

    models: Mapping[str, Model]
    settings: Mapping[Mode, tuple[Setting, ...]]
    """Only modes that have some. The first ones are drawn more often, and failures shrink towards them."""
    pauses: bool = False
    """Whether the system offers pause and resume."""
    load: str = ""
    """Load model of which stretches are drawn as well; empty: none."""

    @property
    def count(self) -> int:
        """Settings in all."""
        return sum(len(settings) for settings in self.settings.values())

    def room(self, setting: Setting) -> Room:
        """Return what batches of a setting may be."""
        return Room.of(case_of(setting, self.models[setting.model]))


@dataclass(frozen=True)
class Room:
    """Legal batches of one setting."""

    scale: Scale
    buckets: tuple[int, ...]
    """Batch sizes, ascending."""
    requests: int
    """Request rows 1 .. requests are drawn."""
    lengths: tuple[int, ...]
    """Lengths next to borders, ascending."""

    @classmethod
    def of(cls, case: Case) -> Room:
        """Return what batches of a case may be."""
        scale = Scale.of(case)
        sizes = tuple(bucket for bucket in case.model.buckets if bucket <= LARGEST_BUCKET)
        buckets = sizes or case.model.buckets[:1]
        requests = min(case.geometry.requests - 1, buckets[-1] + 4)
        return cls(scale, buckets, requests, borders(scale))


def borders(scale: Scale) -> tuple[int, ...]:
    """Return legal lengths next to what fields step over: pages, pools, segments, K, thresholds, W."""
    units = {scale.page_tokens, 64, SEGMENT, SEGMENT * scale.pool, scale.topk, scale.draft_tokens}
    marks = {unit * times for unit in units for times in (1, 2, 3)} | {scale.unit, scale.tall}
    marks |= {threshold * pool for threshold, _ in scale.thresholds for pool in (1, scale.pool)}
    near = {mark + offset for mark in marks for offset in (-1, 0, 1, scale.pool - 1, scale.pool)}
    ends = {scale.low, scale.low + 1, scale.low + scale.pool, scale.near_full, scale.high - 1, scale.high}
    return tuple(sorted(length for length in near | ends | set(scale.awkward()) if scale.legal(length)))


def space_of(
    models: Mapping[str, Model], sut: str, engine: EngineKind, selection: Selection, *, pauses: bool = False
) -> Space:
    """Return all settings that exist and that a selection allows. Raises UsageError where there is none.

    Every setting has two neighbouring batch sizes but for the embedded system, which has all: a package
    is built for those that its case captures.
    """
    missing = [name for name in selection.models if name not in models]
    if missing:
        raise UsageError(f"--model {missing[0]}: no such model; there are {', '.join(models)}")
    named = [models[name] for name in selection.models] or list(models.values())
    settings: dict[Mode, tuple[Setting, ...]] = {}
    for mode in Mode:
        cases = [case for case in _cases(named, models, sut, engine, mode) if not selection.rejects(case)]
        cases.sort(key=lambda case: abs(case.variant.steps - USUAL_STEPS))
        found = [setting_of(case, buckets) for case in cases for buckets in sizes_of(case)]
        if found:
            settings[mode] = tuple(found)
    if not settings:
        raise UsageError(f"no setting of {sut} is selected; drop a filter")
    return Space(models, settings, pauses)


def _cases(
    named: list[Model], models: Mapping[str, Model], sut: str, engine: EngineKind, mode: Mode
) -> list[Case]:
    """Return the cases of a mode, plain and in the largest batch size that is drawn."""
    found = axes_of(named, sut)
    axes = found.values
    if mode not in axes["mode"]:
        return []
    names = ("path", "steps", "fusion", "kernel", "precision", "model")
    package = Path.RELEASED in axes["path"]
    cases = []
    for combination in product(*(axes[name] for name in names)):
        value = dict(zip(names, combination, strict=True))
        model = models[str(value["model"])]
        variant = next((one for one in model.variants if one.steps == value["steps"]), None)
        if variant is None:
            continue
        bucket = max((one for one in model.buckets if one <= LARGEST_BUCKET), default=model.buckets[0])
        whole = {**value, "mode": mode, "drill": Drill.PLAIN, "bucket": bucket}
        if any(
            (package or not constraint.packages_only) and constraint.forbids(whole, models)
            for constraint in found.constraints
        ):
            continue
        cases.append(
            Case(
                sut=sut,
                engine=engine,
                model=model,
                path=value["path"],  # type: ignore[arg-type]
                fusion=bool(value["fusion"]),
                variant=variant,
                mode=mode,
                bucket=bucket,
                drill=Drill.PLAIN,
                kernel=value["kernel"],  # type: ignore[arg-type]
                precision=value["precision"],  # type: ignore[arg-type]
            )
        )
    return cases


def sizes_of(case: Case) -> list[tuple[int, ...]]:
    """Return the batch sizes that one setting is built for: all, or two neighbours."""
    if case.sut in OURS:
        return [()]
    sizes = [bucket for bucket in case.model.buckets if bucket <= LARGEST_BUCKET]
    return [tuple(pair) for pair in pairwise(sizes)] or [tuple(sizes)]
