"""The matrix: a covering array that states what it covers, or the whole cross product; filters.

All pairs of axis values that some allowed combination has, plus a list of must-have combinations
(`axes`). `--full` runs the whole cross product instead.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from harness.axes import AXES, Combination, axes_of
from harness.case import Case, Model, Variant
from harness.covering import Table, cover, pair_tables
from harness.types import Drill, EngineKind, Kernel, Mode, Path, Precision


@dataclass(frozen=True)
class Selection:
    """Filters of a run; values of one filter are alternatives, filters combine. Empty means all."""

    models: tuple[str, ...] = ()
    paths: tuple[Path, ...] = ()
    fusion: tuple[bool, ...] = ()
    steps: tuple[int, ...] = ()
    modes: tuple[Mode, ...] = ()
    drills: tuple[Drill, ...] = ()
    buckets: tuple[int, ...] = ()
    kernels: tuple[Kernel, ...] = ()
    cases: tuple[str, ...] = ()
    """Case ids, or globs of them."""

    def rejects(self, case: Case) -> str:
        """Return which filter leaves the case out, empty if none does."""
        checks: tuple[tuple[str, Sequence[object], object], ...] = (
            ("model", self.models, case.model.name),
            ("path", self.paths, case.path),
            ("fusion", self.fusion, case.fusion),
            ("steps", self.steps, case.variant.steps),
            ("mode", self.modes, case.mode),
            ("drill", self.drills, case.drill),
            ("bucket", self.buckets, case.bucket),
            ("kernel", self.kernels, case.kernel),
        )
        for name, allowed, value in checks:
            if allowed and value not in allowed:
                return f"left out by --{name}"
        if self.cases and not any(fnmatch.fnmatchcase(case.id, pattern) for pattern in self.cases):
            return "left out by --case"
        return ""


@dataclass(frozen=True)
class Plan:
    """What a run does and what it leaves out."""

    cases: tuple[Case, ...] = ()
    not_applicable: tuple[tuple[str, str], ...] = ()
    """(axis values, reason) of combinations that cannot exist."""
    skipped: tuple[tuple[str, str], ...] = ()
    """(case id, reason) of planned cases that the filters leave out."""


def covering_array(
    models: Mapping[str, Model], sut: str, engine: EngineKind, selection: Selection | None = None
) -> Plan:
    """Return the covering array over the models of the default matrix, filtered by `selection`.

    Where the selection names a model that is kept out of the default matrix, the array is one over
    the named models alone.
    """
    chosen = _chosen(models, selection or Selection(), sut)
    if not chosen:
        return Plan()
    axes = axes_of(chosen, sut)
    table = Table(axes, models)
    cases = tuple(make_case(combination, models, sut, engine) for combination in cover(table, axes))
    return _select(cases, selection or Selection(), table.not_applicable())


def full_matrix(
    models: Mapping[str, Model], sut: str, engine: EngineKind, selection: Selection | None = None
) -> Plan:
    """Return the cross product of all axes, constraints applied, filtered by `selection`."""
    chosen = _chosen(models, selection or Selection(), sut)
    if not chosen:
        return Plan()
    axes = axes_of(chosen, sut)
    table = Table(axes, models)
    cases = tuple(make_case(table.combination(row), models, sut, engine) for row in range(len(table.rows)))
    return _select(cases, selection or Selection(), table.not_applicable())


def uncovered(
    cases: Iterable[Case], models: Mapping[str, Model], sut: str
) -> tuple[tuple[Mapping[str, object], ...], tuple[Mapping[str, object], ...]]:
    """Return (pairs, must-haves) that some allowed combination has and no case; both empty if it covers."""
    axes = axes_of(_chosen(models, Selection(), sut), sut)
    table = Table(axes, models)
    have = np.array([table.encode(combination_of(case)) for case in cases])
    pairs: list[Mapping[str, object]] = []
    for (one, two), missing_pairs in pair_tables(table.rows, axes).items():
        missing_pairs[have[:, one], have[:, two]] = False
        missing = np.argwhere(missing_pairs).tolist()
        pairs += [
            {AXES[one]: axes.values[AXES[one]][a], AXES[two]: axes.values[AXES[two]][b]} for a, b in missing
        ]
    musts = [
        must for must in axes.musts if table.matching(must).any() and not table.matching(must, have).any()
    ]
    return tuple(pairs), tuple(musts)


def make_case(combination: Combination, models: Mapping[str, Model], sut: str, engine: EngineKind) -> Case:
    """Return the case of one combination of axis values."""
    value = dict(zip(AXES, combination, strict=True))
    model = models[str(value["model"])]
    return Case(
        sut=sut,
        engine=engine,
        model=model,
        path=Path(str(value["path"])),
        fusion=bool(value["fusion"]),
        variant=_variant(model, int(str(value["steps"]))),
        mode=Mode(str(value["mode"])),
        bucket=int(str(value["bucket"])),
        drill=Drill(str(value["drill"])),
        kernel=Kernel(str(value["kernel"])),
        precision=Precision(str(value["precision"])),
    )


def combination_of(case: Case) -> Combination:
    """Return a case's axis values."""
    return (
        case.model.name,
        case.fusion,
        case.path,
        case.variant.steps,
        case.mode,
        case.bucket,
        case.drill,
        case.kernel,
        case.precision,
    )


def _variant(model: Model, steps: int) -> Variant:
    return next(variant for variant in model.variants if variant.steps == steps)


def _chosen(models: Mapping[str, Model], selection: Selection, sut: str) -> list[Model]:
    """Return the models that take part: the default matrix's, or just the named ones if one is not in it.

    A system that has models of its own takes those alone.

    A case that is named names its model, so that a report's command runs it again as it stands.
    """
    names = selection.models or tuple(case.partition("/")[0] for case in selection.cases)
    models = {name: model for name, model in models.items() if not model.systems or sut in model.systems}
    own = [model for model in models.values() if model.systems]
    if own:
        return own
    named = [models[name] for name in dict.fromkeys(names) if name in models]
    if any(not model.matrix for model in named):
        return named
    return [model for model in models.values() if model.matrix]


def _select(cases: tuple[Case, ...], selection: Selection, impossible: tuple[tuple[str, str], ...]) -> Plan:
    reasons = [(case, selection.rejects(case)) for case in cases]
    return Plan(
        cases=tuple(case for case, reason in reasons if not reason),
        not_applicable=impossible,
        skipped=tuple((case.id, reason) for case, reason in reasons if reason),
    )
