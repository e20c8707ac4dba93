"""Case files: TOML -> `Model`, with errors that name file, key and allowed values in one line."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar, get_args, get_type_hints

import msgspec

from harness.case import PHYSICAL_PAGE, ExtraRound, Geometry, Model, Variant
from harness.errors import CaseError
from harness.pages import guard_page, pool_pages
from harness.types import EngineKind, Mode

KNOWN_FINDINGS = "known_findings.toml"
"""A file of the same folder that holds no model."""
MIN_WIDTH = 1024
"""Narrowest request table in which the generated rounds find room, tokens."""
MAX_DRAFT_TOKENS = 64
"""Most draft tokens for which they do."""

T = TypeVar("T", bound=msgspec.Struct)


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
    geometries = data.get("geometries")
    if isinstance(geometries, dict):  # one by one: an error within a table of tables has no exact path
        for name, geometry in geometries.items():
            _convert(file, f"geometries.{name}", geometry, Geometry)
    model = _convert(file, "", data, Model)
    for key, problem in _problems(model):
        raise CaseError(f"{file}: {key}: {problem}")
    return model


def _convert(file: Path, key: str, value: object, kind: type[T]) -> T:
    """Convert a table, strictly; turn msgspec's `... - at `$.a.b`` into `a.b: ...`, with what is allowed."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        text, _, where = str(error).partition(" - at `$")
        where = where.rstrip("`")
        dotted = (key + where).lstrip(".") or "top level"
        message = f"{file}: {dotted}: {text[0].lower()}{text[1:]}{_allowed(kind, where, text)}"
        raise CaseError(message) from error


def _allowed(kind: type[msgspec.Struct], where: str, text: str) -> str:
    """Say which keys the table at `where` may have, or which values an enumeration has."""
    inner: Any = kind
    for name in re.findall(r"\.(\w+)", where):
        hint = get_type_hints(inner).get(name)
        parts = [part for part in (hint, *get_args(hint)) if isinstance(part, type)]
        if not parts:  # inside a plain array: msgspec has said it all
            return ""
        inner = next(part for part in parts if part is not type(None))
    if "unknown field" in text or "missing required" in text:
        return f"; its keys are {', '.join(inner.__struct_fields__)}"
    if "enum value" in text:
        return f"; allowed are {', '.join(member.value for member in inner)}"
    return ""


def _problems(model: Model) -> Iterator[tuple[str, str]]:
    """Yield (key, what is wrong and how to mend it) for what types alone cannot say."""
    pool, page = model.index_kpool, model.page_size
    if not re.fullmatch(r"[a-z0-9][a-z0-9._-]*", model.name):
        yield "name", f"{model.name!r} becomes part of case ids: use a-z, 0-9, '.', '_' and '-' only"
    if pool < 1 or page % max(pool, 1):
        yield "index_kpool", f"{pool} does not divide page_size {page}; use a divisor, 1 or 4"
        return
    if page != model.page_tokens:
        yield "page_size", f"{page} is not {PHYSICAL_PAGE} * index_kpool = {model.page_tokens}"
    if PHYSICAL_PAGE % pool:
        yield "index_kpool", f"{pool} does not divide the physical page of {PHYSICAL_PAGE} tokens"
    if model.heads < 1:
        yield "heads", f"{model.heads} is not positive"
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
        if variant.steps < 2 or variant.topk != 1 or not 2 <= variant.draft_tokens <= MAX_DRAFT_TOKENS:
            allowed = f"steps >= 2, topk 1 and draft_tokens from 2 to {MAX_DRAFT_TOKENS}"
            yield "variants", f"{variant} needs {allowed}"
    if len({variant.steps for variant in variants}) != len(variants):
        yield "variants", "two variants have the same number of steps; keep one of them"


def _geometry_problems(model: Model, geometry: Geometry) -> Iterator[tuple[str, str]]:
    tokens = model.page_tokens
    least = max(MIN_WIDTH, 4 * tokens)
    if geometry.width < least or geometry.width % tokens:
        yield "width", f"{geometry.width} is not a multiple of {tokens} (64 * index_kpool) from {least} on"
    if not 1 <= geometry.topk <= geometry.width // 2 or geometry.topk % model.index_kpool:
        limits = f"up to {geometry.width // 2} (width / 2)"
        yield (
            "topk",
            f"{geometry.topk} is not a positive multiple of index_kpool {model.index_kpool} {limits}",
        )
    if geometry.requests < max(model.buckets, default=1) + 2:
        rows = "the largest bucket, the reserved row 0 and a spare"
        yield "requests", f"{geometry.requests} rows cannot hold {rows}"
    highest = guard_page(model, geometry)
    if geometry.first_page < 1 or (highest + 1) * tokens > 2**31:
        yield "first_page", f"{geometry.first_page} lets token ids exceed int32 or is below 1"
    if geometry.num_sms < 1:
        yield "num_sms", f"{geometry.num_sms} is not positive"
    plan = geometry.plan
    thresholds = [threshold for threshold, _ in plan.candidates]
    if not thresholds or thresholds != sorted(set(thresholds)):
        yield "plan.candidates", f"thresholds {thresholds} are not ascending and distinct"
    if any(threshold < 1 or cap < 1 for threshold, cap in plan.candidates):
        yield "plan.candidates", "a threshold or its cap of rows is not positive"
    if not 1 <= plan.min_rows <= plan.max_rows:
        yield "plan.min_rows", f"{plan.min_rows} is not between 1 and max_rows {plan.max_rows}"


def _round_problems(model: Model, extra: ExtraRound) -> Iterator[tuple[str, str]]:
    names = [name for name in model.geometries if extra.engine in (None, _engine(name))]
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
    fewest = min((variant.draft_tokens for variant in model.variants), default=1)
    for index, count in enumerate(extra.accepted):
        if extra.mode is not Mode.DRAFT_EXTEND or not 1 <= count <= fewest or len(extra.accepted) != live:
            allowed = f"one value from 1 to {fewest} per request, in draft_extend only"
            yield f"accepted[{index}]", f"{count} among {len(extra.accepted)}: {allowed}"
    if extra.pages < 0:
        yield "pages", f"{extra.pages} is a seed: use 0 or more"
    for name in names:
        yield from _pool_problems(model, extra, name, tokens if verify else 0)


def _pool_problems(model: Model, extra: ExtraRound, name: str, drafts: int) -> Iterator[tuple[str, str]]:
    """Yield where the rounds that lie on the same pages need more of them than a geometry's pool has."""
    reach: dict[int, int] = {}
    for other in model.rounds:
        if (other.pages, other.mode, other.bucket) == (extra.pages, extra.mode, extra.bucket):
            for request, length in zip(other.requests, other.lengths, strict=False):
                reach[request] = max(reach.get(request, 0), -(-(length + drafts) // model.page_tokens))
    needed, held = sum(reach.values()), pool_pages(model, model.geometries[name]) - 2
    if needed > held:
        what = f"rounds with pages = {extra.pages} need {needed} model pages, geometries.{name} has {held}"
        yield "pages", f"{what}; use another seed or shorter lengths"


def _engine(geometry: str) -> EngineKind:
    """Return the engine of a geometry's name, `<engine>` or `<system>_<engine>`."""
    return next(kind for kind in EngineKind if geometry == kind or geometry.endswith(f"_{kind}"))
