"""The JSON beside a golden's tensors: what they are, where they came from, and a seal over itself.

Sorted keys and one entry a line, so that a review reads it; structure that several paths have in
common is written once, in `parts`, and named by digest.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from harness.errors import GoldenError
from harness.golden.codec import Inconsistent, Tensors, decode, encode
from harness.golden.model import Config, Entry, Golden, Outputs, Policy, Structure

SCHEMA = 1
LFS_POINTER = b"version https://git-lfs"
_MEND = "restore it with git, or remove the golden's files and update with mode new"
_DEPTH = 2
"""Levels of the JSON that are broken into lines."""


class TensorRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One tensor of the file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    sha256: str
    """Of its bytes in C order."""


class TensorFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The file of tensors as a whole."""

    bytes: int
    sha256: str


class EntryRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An entry, without its values."""

    by: str
    fields: int
    """How many fields it has."""
    labels: tuple[str, ...]


class OutputRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Outputs of a round, without their values."""

    inputs: str
    precision: str
    steps: int


class StructureRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A structure, its parts by digest."""

    ledger: str
    spans: str
    capture_ledger: str
    capture_spans: str
    alias: str
    across: list[str] | None


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """All of a manifest but its seal."""

    schema: int
    config: Config
    config_sha256: str
    policy: Policy
    reason: str
    tools: dict[str, str]
    device: str
    entries: dict[str, EntryRow]
    outputs: dict[str, OutputRow]
    structures: dict[str, StructureRow]
    parts: dict[str, dict[str, Any]]
    file: TensorFile
    tensors: tuple[TensorRow, ...]


def tensors_of(golden: Golden) -> Tensors:
    """Return a golden's values as tensors."""
    entries = [golden.entries[key].values for key in sorted(golden.entries)]
    outputs = [step for key in sorted(golden.outputs) for step in golden.outputs[key].steps]
    return encode("field", entries) | encode("output", outputs)


def manifest_of(golden: Golden, tensors: Tensors, file: bytes) -> Manifest:
    """Return the manifest of a golden whose tensors are serialised as `file`."""
    parts: dict[str, dict[str, Any]] = {}
    structures = {key: _structure_row(one, parts) for key, one in golden.structures.items()}
    return Manifest(
        schema=SCHEMA,
        config=golden.config,
        config_sha256=config_digest(golden.config),
        policy=golden.policy,
        reason=golden.reason,
        tools=dict(golden.tools),
        device=golden.device,
        entries={
            key: EntryRow(entry.by, len(entry.values), entry.labels) for key, entry in golden.entries.items()
        },
        outputs={
            key: OutputRow(one.inputs, one.precision, len(one.steps)) for key, one in golden.outputs.items()
        },
        structures=structures,
        parts=parts,
        file=TensorFile(len(file), hashlib.sha256(file).hexdigest()),
        tensors=tuple(tensor_row(name, tensors[name]) for name in sorted(tensors)),
    )


def _structure_row(structure: Structure, parts: dict[str, dict[str, Any]]) -> StructureRow:
    def part(value: Mapping[str, Any]) -> str:
        plain = {name: list(row) for name, row in value.items()}
        number = hashlib.sha256(_canonical(plain)).hexdigest()[:16]
        parts[number] = plain
        return number

    return StructureRow(
        ledger=part(structure.ledger),
        spans=part(structure.spans),
        capture_ledger=part(structure.capture_ledger),
        capture_spans=part(structure.capture_spans),
        alias=part(structure.alias),
        across=None if structure.across is None else list(structure.across),
    )


def tensor_row(name: str, tensor: NDArray[Any]) -> TensorRow:
    """Return a tensor's row of the table."""
    sha = hashlib.sha256(np.ascontiguousarray(tensor).tobytes()).hexdigest()
    return TensorRow(name, tensor.dtype.name, tensor.shape, sha)


def config_digest(config: Config) -> str:
    """Return the SHA-256 (hex) of a configuration."""
    return hashlib.sha256(_canonical(msgspec.to_builtins(config))).hexdigest()


def write(manifest: Manifest) -> bytes:
    """Return the manifest's file: sealed, keys sorted, newline at the end."""
    content: dict[str, Any] = msgspec.to_builtins(manifest)
    return seal(content)


def seal(content: dict[str, Any]) -> bytes:
    """Return a manifest's file, sealed with the SHA-256 of its content."""
    body = {key: value for key, value in content.items() if key != "seal"}
    body["seal"] = hashlib.sha256(_canonical(body)).hexdigest()
    return (_pretty(body, 0) + "\n").encode()


def read(where: str, data: bytes) -> Manifest:
    """Read a manifest's file. Raises GoldenError naming `where` and how to mend it."""
    if data.startswith(LFS_POINTER):
        raise GoldenError(f"{where}: is a Git LFS pointer, not the file; fetch it with `git lfs pull`")
    try:
        content = json.loads(data)
    except ValueError as error:  # bad UTF-8 included
        raise GoldenError(f"{where}: no readable JSON ({error}); {_MEND}") from error
    if not isinstance(content, dict) or content.get("schema") != SCHEMA:
        schema = content.get("schema") if isinstance(content, dict) else None
        raise GoldenError(f"{where}: schema {schema}, this version reads {SCHEMA}; {_MEND}")
    stated = content.pop("seal", None)
    if stated != hashlib.sha256(_canonical(content)).hexdigest():
        raise GoldenError(f"{where}: was damaged or edited by hand, its seal does not fit; {_MEND}")
    try:
        return msgspec.convert(content, Manifest)
    except msgspec.ValidationError as error:
        raise GoldenError(f"{where}: {error}; {_MEND}") from error


def golden_of(manifest: Manifest, tensors: Tensors) -> Golden:
    """Put a golden together. Raises Inconsistent where manifest and tensors do not fit."""
    keys, output_keys = sorted(manifest.entries), sorted(manifest.outputs)
    fields = decode("field", tensors, len(keys))
    entries = {}
    for key, found in zip(keys, fields, strict=True):
        row = manifest.entries[key]
        if len(found) != row.fields:
            raise Inconsistent(f"entry {key} has {len(found)} fields, the manifest lists {row.fields}")
        entries[key] = Entry(row.labels, row.by, found)
    counts = [manifest.outputs[key].steps for key in output_keys]
    steps = iter(decode("output", tensors, sum(counts)))
    outputs = {}
    for key, count in zip(output_keys, counts, strict=True):
        output_row = manifest.outputs[key]
        outputs[key] = Outputs(
            output_row.inputs, output_row.precision, tuple(next(steps) for _ in range(count))
        )
    structures = {key: _structure(row, manifest) for key, row in manifest.structures.items()}
    return Golden(
        manifest.config, manifest.policy, entries, outputs, structures,
        manifest.reason, manifest.tools, manifest.device,
    )  # fmt: skip


def _structure(row: StructureRow, manifest: Manifest) -> Structure:
    names = ("ledger", "spans", "capture_ledger", "capture_spans", "alias")
    try:
        parts = {name: manifest.parts[getattr(row, name)] for name in names}
    except KeyError as error:
        raise Inconsistent(f"structure part {error} is not in the manifest") from error
    return Structure(**parts, across=row.across)


def _canonical(content: object) -> bytes:
    return json.dumps(content, sort_keys=True, separators=(",", ":")).encode()


def _pretty(value: object, depth: int) -> str:
    """Break the outer levels into lines and leave the inner ones on theirs."""
    if depth >= _DEPTH or not isinstance(value, dict | list) or not value:
        return json.dumps(value, sort_keys=True, separators=(",", ":"))
    indent = " " * (depth + 1)
    if isinstance(value, dict):
        opening, closing = "{", "}"
        items = [f"{json.dumps(key)}: {_pretty(value[key], depth + 1)}" for key in sorted(value)]
    else:
        opening, closing = "[", "]"
        items = [_pretty(item, depth + 1) for item in value]
    lines = f",\n{indent}".join(items)
    return f"{opening}\n{indent}{lines}\n{' ' * depth}{closing}"
