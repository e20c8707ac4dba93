"""Sequences as TOML files: read strictly, with errors that name file, operation and key; written readably."""

from __future__ import annotations

import hashlib
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path as FilePath
from typing import Any

import msgspec

from harness.case import Case, Model
from harness.errors import CaseError
from harness.fuzz.sequence import Batch, Capture, Eager, Replay, Sequence, case_of
from harness.lengths import Scale
from harness.pages import guard_page
from harness.types import Mode

MOST_EAGER_ROWS = 1 << 17
"""Most query rows of an eager call; more would only cost memory."""


def load_sequence(file: FilePath, models: Mapping[str, Model]) -> Sequence:
    """Read one sequence. Raises CaseError: file, operation and key, what is wrong, how to mend it."""
    sequence = read_sequence(file)
    check_sequence(file, sequence, models)
    return sequence


def check_sequence(file: FilePath, sequence: Sequence, models: Mapping[str, Model]) -> None:
    """Raise CaseError, as `load_sequence` does, for what cannot be run with these models."""
    for key, problem in problems(sequence, models):
        raise CaseError(f"{file}: {key}: {problem}")


def read_sequence(file: FilePath) -> Sequence:
    """Read one sequence, whatever models there are. Raises CaseError for another form."""
    try:
        return msgspec.convert(tomllib.loads(file.read_text(encoding="utf-8")), Sequence)
    except OSError as error:
        raise CaseError(f"{file}: cannot be read ({error.strerror}); check its name and rights") from error
    except UnicodeDecodeError as error:
        raise CaseError(f"{file}: is no UTF-8 text (byte {error.start}); save it as UTF-8") from error
    except tomllib.TOMLDecodeError as error:
        raise CaseError(f"{file}: is no TOML: {error}; mend the syntax there") from error
    except msgspec.ValidationError as error:
        text, _, where = str(error).partition(" - at `$")
        where = where.rstrip("`").lstrip(".") or "top level"
        hint = "see docs/fuzz.md for the keys"
        raise CaseError(f"{file}: {where}: {text[0].lower()}{text[1:]}; {hint}") from error


def problems(sequence: Sequence, models: Mapping[str, Model]) -> Iterator[tuple[str, str]]:
    """Yield (key, what is wrong and how to mend it) for what types alone cannot say."""
    setting = sequence.setting
    model = models.get(setting.model)
    if model is None:
        yield "setting.model", f"{setting.model!r} is not one of {', '.join(models)}"
        return
    known = [variant.steps for variant in model.variants]
    if setting.steps not in known:
        yield "setting.steps", f"{setting.steps} is no variant of {model.name}; use one of {known}"
        return
    if not sequence.captured:
        yield "operations", "captures nothing; begin with a capture"
        return
    case = case_of(setting, model, sequence.captured)
    captured: set[int] = set()
    for index, operation in enumerate(sequence.operations):
        where = f"operations[{index}]"
        if isinstance(operation, Eager) and not 1 <= operation.rows <= MOST_EAGER_ROWS:
            yield f"{where}.rows", f"{operation.rows} is not between 1 and {MOST_EAGER_ROWS}"
        if isinstance(operation, Capture | Replay):
            for key, problem in _batch_problems(operation, case):
                yield f"{where}.{key}", problem
        if isinstance(operation, Capture):
            captured.add(operation.bucket)
        elif isinstance(operation, Replay) and operation.bucket not in captured:
            yield f"{where}.bucket", f"bucket {operation.bucket} is replayed before it is captured"


def _batch_problems(batch: Batch, case: Case) -> Iterator[tuple[str, str]]:
    scale, live = Scale.of(case), len(batch.lengths)
    if batch.bucket not in case.model.buckets:
        yield "bucket", f"{batch.bucket} is not one of buckets {list(case.model.buckets)}"
    if live > batch.bucket:
        yield "lengths", f"{live} live requests do not fit into bucket {batch.bucket}"
    for index, length in enumerate(batch.lengths):
        if not scale.legal(length):
            limits = f"{scale.low} to {scale.high} in {case.mode.value}"
            yield f"lengths[{index}]", f"{length} is out of range: {limits}"
    if len(batch.requests) != live:
        yield "requests", f"{len(batch.requests)} request ids for {live} lengths"
    for index, request in enumerate(batch.requests):
        if not 1 <= request < case.geometry.requests:
            last = case.geometry.requests - 1
            yield f"requests[{index}]", f"{request} is out of range: 1 to {last} (0 is reserved)"
    if len(set(batch.requests)) != len(batch.requests):
        yield "requests", f"{list(batch.requests)} names a request twice"
    if batch.accepted:
        allowed = f"one value from 1 to {scale.draft_tokens} per request, in draft_extend only"
        whole = len(batch.accepted) == live and case.mode is Mode.DRAFT_EXTEND
        if not whole or not all(1 <= count <= scale.draft_tokens for count in batch.accepted):
            yield "accepted", f"{list(batch.accepted)}: {allowed}"
    yield from _page_problems(batch, case, scale)


def _page_problems(batch: Batch, case: Case, scale: Scale) -> Iterator[tuple[str, str]]:
    if (
        isinstance(batch, Replay)
        and batch.exchange
        and not exchangeable(batch.exchange, batch.lengths, scale)
    ):
        yield "exchange", f"{list(batch.exchange)} is not a live row and two of the columns that it reaches"
    if isinstance(batch.pages, int):
        if batch.pages < 0:
            yield "pages", f"{batch.pages} is a seed: use 0 or more"
        return
    if len(batch.pages) != len(batch.lengths):
        yield "pages", f"{len(batch.pages)} lists of pages for {len(batch.lengths)} lengths"
        return
    first, last = case.geometry.first_page, guard_page(case.model, case.geometry) - 1
    for index, (pages, length) in enumerate(zip(batch.pages, batch.lengths, strict=True)):
        columns = case.geometry.width // case.model.page_tokens
        if not scale.columns(length) <= len(pages) <= columns:
            needed = f"{scale.columns(length)} to {columns} pages of {case.model.page_tokens} tokens"
            yield f"pages[{index}]", f"{len(pages)} pages; a length of {length} needs {needed}"
        if not all(first <= page <= last for page in pages) or len(set(pages)) != len(pages):
            yield f"pages[{index}]", f"pages are distinct and from {first} to {last}"


def exchangeable(exchange: tuple[int, ...], lengths: tuple[int, ...], scale: Scale) -> bool:
    """Whether these are a live row and two different columns that its length reaches."""
    if len(exchange) != 3 or not 0 <= exchange[0] < len(lengths):
        return False
    row, first, second = exchange
    return min(first, second) >= 0 and first != second and max(first, second) < scale.columns(lengths[row])


def dump_sequence(sequence: Sequence) -> str:
    """Return a sequence as TOML text that `load_sequence` reads; what has its default is left out."""
    lines: list[str] = []
    if sequence.why:
        lines.append(f"why = {_value(sequence.why)}")
    if sequence.ordinary:
        lines.append("ordinary = true")
    lines += [*([""] if lines else []), "[setting]"]
    lines += _pairs(sequence.setting, always=("sut", "engine", "mode"))
    for operation in sequence.operations:
        lines += ["", "[[operations]]"]
        lines += [f'do = "{operation.__struct_config__.tag}"']
        lines += _pairs(operation, always=("lengths", "requests"))
    return "\n".join(lines) + "\n"


def sequence_name(sequence: Sequence) -> str:
    """Return a file name, without ending, that tells the setting and is unique for the content."""
    setting = sequence.setting
    digest = hashlib.sha256(msgspec.json.encode(sequence)).hexdigest()[:8]
    words = (setting.sut, setting.model, setting.path.value, setting.mode.value, f"s{setting.steps}", digest)
    return "-".join(words)


def _pairs(struct: msgspec.Struct, always: tuple[str, ...]) -> list[str]:
    """Return `key = value` lines of what differs from its default, and of `always`."""
    lines = []
    for field in msgspec.structs.fields(struct):
        value = getattr(struct, field.name)
        if value != field.default or field.name in always:
            lines.append(f"{field.name} = {_value(value)}")
    return lines


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, str):  # a JSON string is a TOML basic string
        return msgspec.json.encode(str(value)).decode()
    return f"[{', '.join(_value(one) for one in value)}]"
