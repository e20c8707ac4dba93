"""Case files: TOML -> `Model`, with errors that name file, key and allowed values in one line."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import msgspec

from harness.case import PHYSICAL_PAGE, ExtraRound, Geometry, Model, Variant
from harness.errors import CaseError
from harness.types import EngineKind, Mode

KNOWN_FINDINGS = "known_findings.toml"
"""A file of the same folder that holds no model."""


def load_models(directory: Path) -> dict[str, Model]:
    """Read every case file of a folder; models by name, in file order. Raises CaseError in one line."""
    if not directory.is_dir():
        raise CaseError(f"{directory}: no such folder of case files; name one with --cases-dir")
    models: dict[str, Model] = {}
    origin: dict[str, Path] = {}
    for file in sorted(directory.glob("*.toml")):
        if file.name == KNOWN_FINDINGS:
            continue
        model = load_model(file)
        if model.name in models:
            raise CaseError(f"{file}: name: {model.name!r} is taken by {origin[model.name]}; give it another")
        models[model.name], origin[model.name] = model, file
    if not models:
        raise CaseError(f"{directory}: holds no case file (*.toml); see cases/ of the checkout for one")
    return models


def load_model(file: Path) -> Model:
    """Read one case file. Raises CaseError: file, key, what is wrong, how to mend it."""
    try:
        data = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise CaseError(f"{file}: cannot be read ({error.strerror}); check its name and rights") from error
    except UnicodeDecodeError as error:
        raise CaseError(f"{file}: is no UTF-8 text (byte {error.start}); save it as UTF-8") from error
    except tomllib.TOMLDecodeError as error:
        raise CaseError(f"{file}: is no TOML: {error}; mend the syntax there") from error
    try:
        model = msgspec.convert(data, Model)
    except msgspec.ValidationError as error:
        raise CaseError(f"{file}: {_readable(error)}; keys and types are those of harness/case.py") from error
    for key, problem in _problems(model):
        raise CaseError(f"{file}: {key}: {problem}")
    return model


def _readable(error: msgspec.ValidationError) -> str:
    """Turn msgspec's `... - at `$.a.b`` into `a.b: ...`."""
    text = str(error)
    found = re.fullmatch(r"(?P<what>.*?) - at `(?:key in )?\$\.?(?P<where>[^`]*)`", text, re.DOTALL)
    if found is None:
        return text
    return f"{found['where'] or 'top level'}: {found['what']}"


def _problems(model: Model) -> Iterator[tuple[str, str]]:
    """Yield (key, what is wrong and how to mend it) for what types alone cannot say."""
    pool, page = model.index_kpool, model.page_size
    if pool < 1 or page % max(pool, 1):
        yield "index_kpool", f"{pool} does not divide page_size {page}; use a divisor, 1 or 4"
        return
    if page != model.page_tokens:
        yield "page_size", f"{page} is not {PHYSICAL_PAGE} * index_kpool = {model.page_tokens}"
    if not model.buckets or list(model.buckets) != sorted(set(model.buckets)) or model.buckets[0] < 1:
        yield "buckets", f"{list(model.buckets)} is not ascending, distinct and positive"
    if model.default_variant not in model.variants:
        names = ", ".join(map(str, model.variants))
        yield "default_variant", f"{model.default_variant} is not one of variants ({names})"
    yield from _variant_problems(model.variants)
    known = [kind.value for kind in EngineKind]
    for name, geometry in model.geometries.items():
        if not any(name == kind or name.endswith(f"_{kind}") for kind in known):
            yield f"geometries.{name}", f"no such engine; use {', '.join(known)}, or <system>_<engine>"
        for key, problem in _geometry_problems(model, geometry):
            yield f"geometries.{name}.{key}", problem
    for kind in known:
        if kind not in model.geometries:
            yield "geometries", f"has no {kind}; add [geometries.{kind}]"
    for index, extra in enumerate(model.rounds):
        for key, problem in _round_problems(model, extra):
            yield f"rounds[{index}].{key}", problem


def _variant_problems(variants: tuple[Variant, ...]) -> Iterator[tuple[str, str]]:
    for variant in variants:
        if variant.steps < 2 or variant.topk != 1 or variant.draft_tokens < 2:
            yield "variants", f"{variant} needs steps >= 2, topk 1 and draft_tokens >= 2"
    if len({variant.steps for variant in variants}) != len(variants):
        yield "variants", "two variants have the same number of steps; keep one of them"


def _geometry_problems(model: Model, geometry: Geometry) -> Iterator[tuple[str, str]]:
    tokens = model.page_tokens
    if geometry.width < tokens or geometry.width % tokens:
        yield "width", f"{geometry.width} is not a multiple of {tokens} (64 * index_kpool)"
    if geometry.topk < 1 or geometry.topk % model.index_kpool:
        yield "topk", f"{geometry.topk} is not a positive multiple of index_kpool {model.index_kpool}"
    if geometry.requests <= max(model.buckets, default=1):
        yield "requests", f"{geometry.requests} rows cannot hold the largest bucket and the reserved row 0"
    if geometry.num_sms < 1:
        yield "num_sms", f"{geometry.num_sms} is not positive"
    plan = geometry.plan
    thresholds = [threshold for threshold, _ in plan.candidates]
    if not thresholds or thresholds != sorted(set(thresholds)):
        yield "plan.candidates", f"thresholds {thresholds} are not ascending and distinct"
    if not 1 <= plan.min_rows <= plan.max_rows:
        yield "plan.min_rows", f"{plan.min_rows} is not between 1 and max_rows {plan.max_rows}"


def _round_problems(model: Model, extra: ExtraRound) -> Iterator[tuple[str, str]]:
    names = [extra.engine.value] if extra.engine else list(model.geometries)
    width = min(model.geometries[name].width for name in names)
    requests = min(model.geometries[name].requests for name in names)
    live, verify = len(extra.lengths), extra.mode is Mode.TARGET_VERIFY
    if extra.bucket not in model.buckets:
        yield "bucket", f"{extra.bucket} is not one of buckets {list(model.buckets)}"
    if not 1 <= live <= extra.bucket:
        yield "lengths", f"{live} live requests do not fit into bucket {extra.bucket}"
    if len(extra.requests) != live:
        yield "requests", f"{len(extra.requests)} request ids for {live} lengths"
    tokens = max((variant.draft_tokens for variant in model.variants), default=0)
    for index, length in enumerate(extra.lengths):
        reach = length + (tokens if verify else 0)
        if length < 1:
            yield f"lengths[{index}]", f"{length} is below 1"
        if reach > width:
            what = f"length {length}" + (f" + {tokens} draft tokens" if verify else "")
            yield f"lengths[{index}]", f"{what} exceeds width {width}"
        if extra.mode is Mode.DRAFT_EXTEND and length < tokens:
            yield f"lengths[{index}]", f"{length} is below the {tokens} draft tokens that it includes"
    for index, request in enumerate(extra.requests):
        if not 1 <= request < requests:
            yield f"requests[{index}]", f"{request} is out of range: 1 to {requests - 1} (0 is reserved)"
    if len(set(extra.requests)) != len(extra.requests):
        yield "requests", f"{list(extra.requests)} names a request twice"
    for index, count in enumerate(extra.accepted):
        if extra.mode is not Mode.DRAFT_EXTEND or not 1 <= count <= tokens or len(extra.accepted) != live:
            yield (
                f"accepted[{index}]",
                f"{count}: one value of 1 to {tokens} per request, in draft_extend only",
            )
