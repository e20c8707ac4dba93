"""Saved observations: JSON for structure, safetensors for values. Loading gives back what was saved.

An observation `NAME` is two files, `NAME.json` and `NAME.safetensors`. Each is written under a
temporary name and renamed, the tensors first: a JSON file never stands without its tensors.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from harness.case import Case
from harness.errors import UsageError
from harness.observation import Observation

SCHEMA = 1
_TABLE = "table/"
_VALUE = "value/"


@dataclass(frozen=True)
class _File:
    """The JSON file: an observation whose arrays lie beside it."""

    schema: int
    ordinary: str
    """Name of the ordinary path's observation in the same folder; empty if there is none."""
    observation: Observation


def save_observation(folder: Path, name: str, observation: Observation, ordinary: str = "") -> Path:
    """Write one observation under `folder` and return its JSON file; `ordinary` names its reference there."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors: dict[str, NDArray[Any]] = {}
    for digest, value in observation.values.items():
        tensors[_VALUE + digest] = np.ascontiguousarray(value)
    for key, table in observation.program.tables.items():
        tensors[_TABLE + key] = np.ascontiguousarray(table)
    bare = replace(observation, values={}, program=replace(observation.program, tables={}))
    text = msgspec.json.encode(_File(SCHEMA, ordinary, bare))
    _write(folder / f"{name}.safetensors", save(dict(sorted(tensors.items()))))
    target = folder / f"{name}.json"
    _write(target, text)
    return target


def load_observation(file: Path) -> tuple[Observation, str]:
    """Read one observation and the name of its ordinary reference. Raises UsageError in one line."""
    try:
        record = msgspec.json.decode(file.read_bytes(), type=_File, strict=False)
        tensors = load(file.with_suffix(".safetensors").read_bytes())
    except (OSError, msgspec.MsgspecError, SafetensorError) as error:
        raise UsageError(
            f"{file}: not a saved observation ({error}); make it again with verify --save"
        ) from error
    if record.schema != SCHEMA:
        raise UsageError(f"{file}: schema {record.schema}, this version reads {SCHEMA}; save it again")
    values = {key[len(_VALUE) :]: value for key, value in tensors.items() if key.startswith(_VALUE)}
    tables = {key[len(_TABLE) :]: value for key, value in tensors.items() if key.startswith(_TABLE)}
    bare = record.observation
    return replace(bare, values=values, program=replace(bare.program, tables=tables)), record.ordinary


def observation_name(case: Case) -> str:
    """Return the file name of a case's saved observation: readable, unique, short enough for any system."""
    digest = hashlib.sha256(f"{case.sut}/{case.engine}/{case.id}".encode()).hexdigest()[:8]
    return f"{case.sut}-{case.engine.value}-{case.id.replace('/', '-')}-{digest}"


def observations(folder: Path) -> Iterator[Path]:
    """Yield the JSON files of a folder's observations, references left out, in name order."""
    if not folder.is_dir():
        raise UsageError(f"{folder}: no such folder; `replay-harness verify --save DIR` makes one")
    for file in sorted(folder.glob("*.json")):
        if not file.name.startswith(ORDINARY):
            yield file


ORDINARY = "ordinary-"
"""Prefix of the ordinary references' names."""


def _write(target: Path, content: bytes) -> None:
    temporary = target.with_name(f".{target.name}.{os.getpid()}")
    temporary.write_bytes(content)
    os.replace(temporary, target)
