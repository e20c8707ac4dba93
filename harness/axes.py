"""Axes of the matrix, what cannot be combined and why, and the combinations that must occur."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product

from harness.case import Model
from harness.errors import UsageError
from harness.specification import Constraint, Specification, specification_of
from harness.types import Drill, Kernel, Mode, Path, Precision

EMBEDDED = "embedded"
EMBEDDED_FUSED = "embedded-fused"
"""The embedded system with the fused refresh, which is one way of the paths that share."""
OURS = (EMBEDDED, EMBEDDED_FUSED)
"""The systems of this package; all others are packages of others."""
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
FUSED_PATHS = (Path.SHARED, Path.SHARED_IN_GRAPH)
PACKAGE_PATHS = (Path.RELEASED, Path.SHARED, Path.SHARED_IN_GRAPH)
BETWEEN_STEPS = (Path.SIBLING_COPY, Path.MULTI_DESTINATION_COPY)
"""Paths that copy from one draft step to others: they need several."""


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
    constraints: tuple[Constraint, ...] = CONSTRAINTS
    """Combinations that make no sense."""


def axes_of(models: Sequence[Model], sut: str) -> Axes:
    """Return the axes and the must-have list of a system.

    The others are slower to drive, and what metadata code sees of a model is P: one model for each.
    """
    embedded = sut in OURS
    if sut != EMBEDDED:
        models = list({model.index_kpool: model for model in reversed(models)}.values())[::-1]
    paths = {EMBEDDED: EMBEDDED_PATHS, EMBEDDED_FUSED: FUSED_PATHS}.get(sut, PACKAGE_PATHS)
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
    own = specification_of(sut)
    if own is not None:
        if own.ordinary:
            values["path"] = tuple(own.ordinary)
        values = {name: _restricted(sut, name, all_, own) for name, all_ in values.items()}
    musts = _musts(models, values, embedded=embedded)
    kept = tuple(must for must in musts if all(must[name] in values[name] for name in must))
    return Axes(values, kept, CONSTRAINTS if own is None else (*CONSTRAINTS, *own.constraints))


def _restricted(sut: str, axis: str, values: tuple[object, ...], own: Specification) -> tuple[object, ...]:
    wanted = own.axes.get(axis, values)
    left = tuple(value for value in values if value in wanted)
    if not left:
        there_are = ", ".join(map(str, values))
        raise UsageError(f"the specification of {sut} leaves nothing of axis {axis}: there are {there_are}")
    return left


def _musts(
    models: Sequence[Model], values: Mapping[str, tuple[object, ...]], *, embedded: bool
) -> Iterator[dict[str, object]]:
    """The combinations that the project exists for, stated one by one."""
    decode: dict[str, object] = {"mode": Mode.DECODE}
    pools = sorted({model.index_kpool for model in models})
    first = [next(model.name for model in models if model.index_kpool == pool) for pool in pools]
    pooled = first[-1]  # the model with the most metadata fields
    for model, fusion, path in product(values["model"], values["fusion"], values["path"]):
        yield decode | {"model": model, "fusion": fusion, "path": path}
    for model, fusion, path, steps in product(first, values["fusion"], values["path"], values["steps"]):
        if not fusion or model == pooled:  # P = 1 never fuses: that on equals off is in the first list
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
    # Every way of refreshing goes through whole programs: the other drills run part of their rounds.
    for model, mode, path in product(first, values["mode"], values["path"]):
        yield {"model": model, "mode": mode, "path": path, "drill": Drill.PLAIN}
    for path in values["path"]:
        yield decode | {"model": pooled, "path": path, "fusion": True, "drill": Drill.PLAIN}
    if embedded:
        for path, drill in product(values["path"], values["drill"]):
            yield decode | {"model": pooled, "path": path, "drill": drill}
    if Path.INDEPENDENT in values["path"]:
        # What goldens are made of: in decode with every step, so that it serves as the reference as well.
        plain: dict[str, object] = {"path": Path.INDEPENDENT, "drill": Drill.PLAIN, "fusion": False}
        for model in values["model"]:
            yield decode | plain | {"model": model}
        deepest: dict[str, object] = {"steps": max(values["steps"], key=str)}
        for model, mode, bucket in product(first, values["mode"], values["bucket"]):
            steps = deepest if mode is Mode.DECODE else {}
            yield plain | steps | {"model": model, "mode": mode, "bucket": bucket}
