"""The matrix: axes, constraints with reasons, and a covering array that states what it covers.

All pairs of axis values that some allowed combination has, plus a list of must-have combinations.
`--full` runs the whole cross product instead.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations, product

import numpy as np
from numpy.typing import NDArray

from harness.case import Case, Model, Variant
from harness.rounds import OWN_ORDER
from harness.types import Drill, EngineKind, Kernel, Mode, Path, Precision

EMBEDDED = "embedded"
Combination = tuple[object, ...]
"""One value per axis, in the order of `AXES`."""
AXES = ("model", "fusion", "path", "steps", "mode", "bucket", "drill", "kernel", "precision")

EMBEDDED_PATHS = (
    Path.INDEPENDENT,
    Path.SIBLING_COPY,
    Path.MULTI_DESTINATION_COPY,
    Path.SHARED,
    Path.SHARED_IN_GRAPH,
)
PACKAGE_PATHS = (Path.RELEASED, Path.SHARED, Path.SHARED_IN_GRAPH)
BETWEEN_STEPS = (Path.SIBLING_COPY, Path.MULTI_DESTINATION_COPY)
"""Paths that copy from one draft step to others: they need several."""


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


@dataclass(frozen=True)
class Constraint:
    """Combinations that make no sense, with the reason that reports print."""

    reason: str
    forbids: Callable[[Mapping[str, object], Mapping[str, Model]], bool]
    packages_only: bool = False
    """Whether it holds for packages alone, not for the embedded system."""


CONSTRAINTS: tuple[Constraint, ...] = (
    Constraint(
        "outside decode there is a single backend: nothing is copied between steps",
        lambda c, models: c["mode"] is not Mode.DECODE and c["path"] in BETWEEN_STEPS,
    ),
    Constraint(
        "outside decode the number of draft steps has no meaning: the model's default stands for all",
        lambda c, models: (
            c["mode"] is not Mode.DECODE and c["steps"] != models[str(c["model"])].default_variant.steps
        ),
    ),
    Constraint(
        "outside decode a package has a single backend, driven as released",
        lambda c, models: c["mode"] is not Mode.DECODE and c["path"] is not Path.RELEASED,
        packages_only=True,
    ),
    Constraint(
        "flashmla_kv rejects KPool (P > 1)",
        lambda c, models: c["kernel"] is Kernel.FLASHMLA_KV and models[str(c["model"])].index_kpool > 1,
    ),
    Constraint(
        "a bucket of one row cannot be padded",
        lambda c, models: c["drill"] is Drill.PADDED and c["bucket"] == 1,
    ),
)


@dataclass(frozen=True)
class Axes:
    """The axis values of one system's matrix."""

    values: Mapping[str, tuple[object, ...]]
    musts: tuple[Mapping[str, object], ...] = field(default=())
    """Must-have combinations: partial assignments, each in at least one case."""


def axes_of(models: Sequence[Model], sut: str) -> Axes:
    """Return the axes and the must-have list of a system.

    A package is slower to drive, and what its metadata code sees of a model is P: one model for each.
    """
    embedded = sut == EMBEDDED
    if not embedded:
        models = list({model.index_kpool: model for model in reversed(models)}.values())[::-1]
    paths = EMBEDDED_PATHS if embedded else PACKAGE_PATHS
    steps = tuple(sorted({variant.steps for model in models for variant in model.variants}))
    buckets = tuple(sorted({bucket for model in models for bucket in model.buckets}))
    values: dict[str, tuple[object, ...]] = {
        "model": tuple(model.name for model in models),
        "fusion": (False, True),
        "path": paths,
        "steps": steps,
        "mode": tuple(Mode),
        "bucket": buckets,
        "drill": tuple(Drill),
        "kernel": tuple(Kernel),
        "precision": tuple(Precision) if embedded else (Precision.FP32,),
    }
    return Axes(values, tuple(_musts(models, values, embedded=embedded)))


def _musts(
    models: Sequence[Model], values: Mapping[str, tuple[object, ...]], *, embedded: bool
) -> Iterator[dict[str, object]]:
    """The combinations that the project exists for, stated one by one."""
    decode: dict[str, object] = {"mode": Mode.DECODE}
    pools = sorted({model.index_kpool for model in models})
    first = [next(model.name for model in models if model.index_kpool == pool) for pool in pools]
    for model, fusion, path in product(values["model"], values["fusion"], values["path"]):
        yield decode | {"model": model, "fusion": fusion, "path": path}
    for model, fusion, path, steps in product(first, values["fusion"], values["path"], values["steps"]):
        yield decode | {"model": model, "fusion": fusion, "path": path, "steps": steps}
    for model, path, bucket in product(first, values["path"], values["bucket"][-1:]):
        # The least that a shared path has to survive: many rows, several steps, populated plans.
        yield decode | {
            "model": model,
            "path": path,
            "bucket": bucket,
            "steps": max(values["steps"], key=str),
        }
    for model, path in product(models, values["path"]):
        # The least cell of each model in which mixed-up rows and steps can show.
        middle = values["bucket"][len(values["bucket"]) // 2]
        depth = max(model.default_variant.steps, 3)
        yield decode | {"model": model.name, "path": path, "bucket": middle, "steps": depth}
    for mode, path, fusion in product(values["mode"], values["path"], values["fusion"]):
        yield {"mode": mode, "path": path, "fusion": fusion}
    if embedded:
        for model, path, drill in product(first, values["path"], values["drill"]):
            yield decode | {"model": model, "path": path, "drill": drill}
        for model, mode, bucket in product(first, values["mode"], values["bucket"]):
            # What goldens are made of.
            yield {
                "model": model,
                "mode": mode,
                "bucket": bucket,
                "path": Path.INDEPENDENT,
                "drill": Drill.PLAIN,
            }


def covering_array(
    models: Mapping[str, Model], sut: str, engine: EngineKind, selection: Selection | None = None
) -> Plan:
    """Return the covering array over the models of the default matrix, filtered by `selection`.

    Where the selection names a model that is kept out of the default matrix, the array is one over
    the named models alone.
    """
    chosen = _chosen(models, selection or Selection())
    if not chosen:
        return Plan()
    axes = axes_of(chosen, sut)
    table = _Table(axes, models)
    cases = tuple(make_case(combination, models, sut, engine) for combination in _cover(table, axes))
    return _select(cases, selection or Selection(), table.not_applicable())


def full_matrix(
    models: Mapping[str, Model], sut: str, engine: EngineKind, selection: Selection | None = None
) -> Plan:
    """Return the cross product of all axes, constraints applied, filtered by `selection`."""
    chosen = _chosen(models, selection or Selection())
    if not chosen:
        return Plan()
    axes = axes_of(chosen, sut)
    table = _Table(axes, models)
    cases = tuple(make_case(table.combination(row), models, sut, engine) for row in range(len(table.rows)))
    return _select(cases, selection or Selection(), table.not_applicable())


def uncovered(
    cases: Iterable[Case], models: Mapping[str, Model], sut: str
) -> tuple[tuple[Mapping[str, object], ...], tuple[Mapping[str, object], ...]]:
    """Return (pairs, must-haves) that some allowed combination has and no case; both empty if it covers."""
    axes = axes_of([model for model in models.values() if model.matrix], sut)
    table = _Table(axes, models)
    have = np.array([table.encode(combination_of(case)) for case in cases])
    pairs: list[Mapping[str, object]] = []
    for (one, two), missing_pairs in _pair_tables(table.rows, axes).items():
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


def _chosen(models: Mapping[str, Model], selection: Selection) -> list[Model]:
    """Return the models that take part: the default matrix's, or just the named ones if one is not in it."""
    named = [models[name] for name in dict.fromkeys(selection.models) if name in models]
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


class _Table:
    """All combinations of axis values as index rows, those that a constraint forbids taken out."""

    def __init__(self, axes: Axes, models: Mapping[str, Model]) -> None:
        self._axes = axes
        package = Path.RELEASED in axes.values["path"]
        sizes = [len(axes.values[name]) for name in AXES]
        grid = np.indices(sizes, np.int16).reshape(len(AXES), -1).T
        names = [
            name for name in AXES if name in ("model", "path", "steps", "mode", "bucket", "drill", "kernel")
        ]
        allowed = {model.name: {v.steps for v in model.variants} for model in models.values()}
        own = {model.name: set(model.buckets) for model in models.values()}
        constrained = [len(axes.values[name]) if name in names else 1 for name in AXES]
        verdicts = np.zeros(np.prod(constrained), np.int8)
        for index, row in enumerate(product(*(axes.values[name] for name in names))):
            values = dict(zip(names, row, strict=True))
            if values["steps"] not in allowed[str(values["model"])]:
                verdicts[index] = len(CONSTRAINTS) + 1
            elif values["bucket"] not in own[str(values["model"])]:
                verdicts[index] = len(CONSTRAINTS) + 2
            for number, constraint in enumerate(CONSTRAINTS, start=1):
                applies = package or not constraint.packages_only
                if not verdicts[index] and applies and constraint.forbids(values, models):
                    verdicts[index] = number
        self._reasons = np.broadcast_to(verdicts.reshape(constrained), sizes).reshape(-1)
        self.rows: NDArray[np.int16] = grid[self._reasons == 0]

    def combination(self, row: int) -> Combination:
        """Return the axis values of a row."""
        return tuple(
            self._axes.values[name][i] for name, i in zip(AXES, self.rows[row].tolist(), strict=True)
        )

    def encode(self, combination: Combination) -> list[int]:
        """Return the index row of a combination."""
        return [self._axes.values[name].index(v) for name, v in zip(AXES, combination, strict=True)]

    def matching(
        self, partial: Mapping[str, object], rows: NDArray[np.int16] | None = None
    ) -> NDArray[np.bool_]:
        """Return which rows have these values."""
        rows = self.rows if rows is None else rows
        mask = np.ones(len(rows), np.bool_)
        for name, value in partial.items():
            mask &= rows[:, AXES.index(name)] == self._axes.values[name].index(value)
        return mask

    def reluctance(self) -> NDArray[np.float64]:
        """Return how little each row proves, in [0, 1): what ties between equally covering rows are cut by.

        A batch of one row, or a single draft step, hides most faults; many rows cost time.
        """
        last = max(int(str(value)) for value in self._axes.values["bucket"])
        by_bucket = {1: 0.6, 2: 0.2, last: 0.5}
        by_steps = {2: 0.3, 3: 0.15, 4: 0.05}
        buckets = [by_bucket.get(int(str(value)), 0.0) for value in self._axes.values["bucket"]]
        steps = [by_steps.get(int(str(value)), 0.0) for value in self._axes.values["steps"]]
        columns = self.rows[:, AXES.index("bucket")], self.rows[:, AXES.index("steps")]
        return np.asarray(np.array(buckets)[columns[0]] + np.array(steps)[columns[1]])

    def references(self) -> NDArray[np.intp]:
        """Return a number per row: rows of equal number have the same rounds and ordinary reference."""
        orders = [value if value in OWN_ORDER else Drill.PLAIN for value in self._axes.values["drill"]]
        flash = [value is Kernel.FLASHMLA_KV for value in self._axes.values["kernel"]]
        rows = self.rows
        keys = (
            rows[:, AXES.index("model")],
            rows[:, AXES.index("mode")],
            rows[:, AXES.index("bucket")],
            np.array([orders.index(order) for order in orders])[rows[:, AXES.index("drill")]],
            np.array(flash, np.int16)[rows[:, AXES.index("kernel")]],
            rows[:, AXES.index("precision")],
        )
        return np.ravel_multi_index(keys, [int(key.max()) + 1 for key in keys])

    def not_applicable(self) -> tuple[tuple[str, str], ...]:
        """Return (number of combinations, reason) of what the constraints take out."""
        reasons = [constraint.reason for constraint in CONSTRAINTS]
        reasons += ["the model has no such S/k/N variant", "the model has no such bucket"]
        counts = np.bincount(self._reasons, minlength=len(reasons) + 1)
        return tuple(
            (f"{counts[number]} combinations", reason)
            for number, reason in enumerate(reasons, start=1)
            if counts[number]
        )


def _pair_tables(rows: NDArray[np.int16], axes: Axes) -> dict[tuple[int, int], NDArray[np.bool_]]:
    """Return, for every two axes, which pairs of their values some row has."""
    sizes = [len(axes.values[name]) for name in AXES]
    tables = {}
    for one, two in combinations(range(len(AXES)), 2):
        found = np.zeros((sizes[one], sizes[two]), np.bool_)
        found[rows[:, one], rows[:, two]] = True
        tables[one, two] = found
    return tables


def _cover(table: _Table, axes: Axes) -> Iterator[Combination]:
    """Greedy cover: must-haves first, then pairs; each pick takes the row that covers most new pairs.

    Deterministic: near ties go to the row that proves more for its cost and to one whose ordinary
    reference is driven anyway, then to the first.
    """
    rows, reluctance = table.rows, table.reluctance()
    open_ = _pair_tables(rows, axes)
    pairs = list(open_)
    taken: list[int] = []
    references = table.references()
    driven = np.zeros(references.max() + 1, np.bool_)

    def pick(candidates: NDArray[np.intp]) -> int:
        gain = np.zeros(len(candidates), np.float64)
        for one, two in pairs:
            gain += open_[one, two][rows[candidates, one], rows[candidates, two]]
        best = int(
            candidates[np.argmax(gain - reluctance[candidates] + 1.5 * driven[references[candidates]])]
        )
        for one, two in pairs:
            open_[one, two][rows[best, one], rows[best, two]] = False
        taken.append(best)
        driven[references[best]] = True
        return best

    for must in axes.musts:
        mask = table.matching(must)
        if mask.any() and not mask[taken].any():
            yield table.combination(pick(np.flatnonzero(mask)))
    for one, two in pairs:
        while open_[one, two].any():
            first, second = np.argwhere(open_[one, two])[0]
            mask = (rows[:, one] == first) & (rows[:, two] == second)
            yield table.combination(pick(np.flatnonzero(mask)))
