"""Goldens on disk: `<model>.<engine>.safetensors` and `<model>.<engine>.manifest.json`, written as one.

The manifest is the commit point: it carries the tensors' SHA-256 and is replaced last. Until then
the old tensors stay under `.previous`, so that an update killed at any moment leaves a pair that
fits: the old one before the manifest is replaced, the new one after.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import pathlib
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import replace

from safetensors.numpy import save as save_tensors

from harness.case import Case
from harness.errors import GoldenError
from harness.golden.codec import Inconsistent, Tensors
from harness.golden.collect import golden_key
from harness.golden.damage import MEND, checked, damage
from harness.golden.manifest import (
    Manifest,
    golden_of,
    manifest_of,
    read,
    tensors_of,
    write,
)  # fmt: skip
from harness.golden.model import Golden, stem

MAX_FILE = 256 * 1024
"""Bytes of the largest file that a golden may have."""
MAX_TOTAL = 10 * 1024 * 1024
"""Bytes of all goldens together."""
TENSORS, MANIFEST = ".safetensors", ".manifest.json"
PENDING = "pending"
"""Folder of what waits for review (`golden.pending`)."""
PREVIOUS, TEMPORARY = ".previous", ".tmp"
_LEFTOVERS = (TENSORS + PREVIOUS, TENSORS + TEMPORARY, MANIFEST + TEMPORARY)


class GoldenStore:
    """A folder of goldens. Every error is a GoldenError of one line: which file, what, how to mend it."""

    def __init__(self, root: pathlib.Path) -> None:
        """Use `root`; it is made when the first golden is written."""
        self.root = root
        self._decoded: dict[str, tuple[tuple[bytes, ...], Golden]] = {}

    def stems(self) -> tuple[str, ...]:
        """Return the stems (`<model>.<engine>`) that have a manifest or tensors, sorted."""
        names = {path.name for path in self.root.glob("*")} if self.root.is_dir() else set()
        suffixes = (TENSORS, MANIFEST)
        return tuple(sorted({n.removesuffix(s) for n in names for s in suffixes if n.endswith(s)}))

    def load(self, model: str, engine: str) -> Golden:
        """Read a golden and check it against its manifest. Raises GoldenError, a missing one included."""
        golden = self.find(model, engine)
        if golden is None:
            raise GoldenError(
                f"{self._path(stem(model, engine), MANIFEST)}: no such golden;"
                " make it with mode new and a reason"
            )
        return golden

    def for_case(self, case: Case) -> Golden | None:
        """Read the golden that a case is held against, as `find` does."""
        return self.find(*golden_key(case))

    def find(self, model: str, engine: str) -> Golden | None:
        """Read a golden, None if neither of its files exists. Raises GoldenError for a damaged one.

        engine: an engine kind, or `<system>_<engine>` for a geometry of its own. Files that have not
        changed since the last call are not decoded again.
        """
        name = stem(model, engine)
        manifest_path, tensors_path = self._path(name, MANIFEST), self._path(name, TENSORS)
        if not manifest_path.exists():
            if not tensors_path.exists() or self._path(name, MANIFEST + TEMPORARY).exists():
                return None  # the latter: a first write that was killed half way
            raise GoldenError(f"{tensors_path}: has no manifest beside it; {MEND}")
        state = self._state(name)
        if name not in self._decoded or self._decoded[name][0] != state:
            self._decoded[name] = (state, self._decode(name))
        return self._decoded[name][1]

    def _state(self, name: str) -> tuple[bytes, ...]:
        paths = (self._path(name, suffix) for suffix in (MANIFEST, TENSORS, TENSORS + PREVIOUS))
        return tuple(hashlib.sha256(_bytes(path)).digest() if path.exists() else b"" for path in paths)

    def _decode(self, name: str) -> Golden:
        path = self._path(name, MANIFEST)
        manifest = read(str(path), _bytes(path))
        if stem(manifest.config.model, manifest.config.engine) != name:
            raise GoldenError(f"{path}: is the golden of another model or engine; {MEND}")
        tensors, interrupted = self._tensors(name, manifest)
        try:
            return replace(golden_of(manifest, tensors), interrupted=interrupted)
        except Inconsistent as error:
            raise GoldenError(f"{path}: does not fit its tensors: {error}; {MEND}") from error

    def _tensors(self, name: str, manifest: Manifest) -> tuple[Tensors, bool]:
        """Return the tensors that the manifest means, and whether they are those of an interrupted update."""
        path, previous = self._path(name, TENSORS), self._path(name, TENSORS + PREVIOUS)
        for candidate in (path, previous):
            if candidate.exists():
                data = _bytes(candidate)
                if hashlib.sha256(data).hexdigest() == manifest.file.sha256:
                    return checked(str(candidate), data, manifest), candidate == previous
        if not path.exists():
            raise GoldenError(f"{path}: is missing, its manifest is there; {MEND}")
        raise GoldenError(damage(path, _bytes(path), manifest))

    def save(self, golden: Golden) -> None:
        """Write a golden so that no crash leaves a broken pair. Raises GoldenError where it is too large."""
        name = golden.name
        tensors = tensors_of(golden)
        data = save_tensors(tensors)
        text = write(manifest_of(golden, tensors, data))
        self._check_size(name, data, text)
        self.root.mkdir(parents=True, exist_ok=True)
        self._finish_interrupted(name)
        path, previous = self._path(name, TENSORS), self._path(name, TENSORS + PREVIOUS)
        new_tensors = self._written(name, TENSORS + TEMPORARY, data)
        new_manifest = self._written(name, MANIFEST + TEMPORARY, text)
        if path.exists():
            self._written(name, TENSORS + PREVIOUS, path.read_bytes())
        os.replace(new_tensors, path)
        os.replace(new_manifest, self._path(name, MANIFEST))
        previous.unlink(missing_ok=True)

    def _finish_interrupted(self, name: str) -> None:
        """Put back the tensors that the manifest means, and remove what a killed update left."""
        previous, manifest_path = self._path(name, TENSORS + PREVIOUS), self._path(name, MANIFEST)
        if not manifest_path.exists():
            if self._path(name, MANIFEST + TEMPORARY).exists():
                self._path(name, TENSORS).unlink(missing_ok=True)
        elif previous.exists():
            manifest = read(str(manifest_path), _bytes(manifest_path))
            if hashlib.sha256(_bytes(previous)).hexdigest() == manifest.file.sha256:
                os.replace(previous, self._path(name, TENSORS))
        for suffix in _LEFTOVERS:
            self._path(name, suffix).unlink(missing_ok=True)

    def mend(self) -> tuple[str, ...]:
        """Undo interrupted updates: old pairs are put back, leftovers removed. Return one line each."""
        lines = []
        with self.lock():
            for name in self._leftover_stems():
                self._finish_interrupted(name)
                lines.append(f"{name}: undid an interrupted update")
        return tuple(lines)

    def remove(self, name: str) -> None:
        """Remove a golden's files, an explicit act; the manifest goes first."""
        for suffix in (MANIFEST, TENSORS, *_LEFTOVERS):
            self._path(name, suffix).unlink(missing_ok=True)

    def problems(self, known: Collection[tuple[str, str]]) -> tuple[str, ...]:
        """Return what is wrong with the folder as a whole, one line each: orphans, leftovers, damage, sizes.

        known: (model, engine kind) pairs that may have a golden.
        """
        if not self.root.is_dir():
            return ()
        names = {stem(model, engine): (model, engine) for model, engine in known}
        present = self.stems()
        lines = [
            f"{self._path(name, MANIFEST)}: an orphan, no known model and engine have this name; prune it"
            for name in present
            if name not in names
        ]
        for name in present:
            try:
                if name in names:
                    self.find(*names[name])
            except GoldenError as error:
                lines.append(str(error))
        lines += [
            f"{self._path(name, TENSORS)}: an update of it was interrupted; the next update undoes that"
            for name in self._leftover_stems()
        ]
        total, known_suffixes = 0, (TENSORS, MANIFEST, *_LEFTOVERS)
        for path in sorted(self.root.iterdir()):
            if path.is_dir() and path.name == PENDING:
                continue
            if not path.is_file():
                lines.append(f"{path}: not a file; only goldens belong here")
                continue
            total += path.stat().st_size
            if path.stat().st_size > MAX_FILE:
                lines.append(f"{path}: {path.stat().st_size} bytes, more than {MAX_FILE}")
            if not path.name.startswith((".", "README")) and not path.name.endswith(known_suffixes):
                lines.append(f"{path}: no golden; only goldens belong here")
        if total > MAX_TOTAL:
            lines.append(f"{self.root}: {total} bytes, more than {MAX_TOTAL}; prune some")
        return tuple(lines)

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Keep other updates of this folder out. Raises GoldenError where one is running."""
        self.root.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self.root, os.O_RDONLY)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise GoldenError(f"{self.root}: another update is writing here; wait for it") from error
            yield
        finally:
            os.close(descriptor)

    def _leftover_stems(self) -> list[str]:
        names = [path.name for path in self.root.glob("*")]
        return sorted({n.removesuffix(s) for n in names for s in _LEFTOVERS if n.endswith(s)})

    def _check_size(self, name: str, data: bytes, text: bytes) -> None:
        for suffix, content in ((TENSORS, data), (MANIFEST, text)):
            if len(content) > MAX_FILE:
                raise GoldenError(
                    f"{self._path(name, suffix)}: would have {len(content)} bytes, more than {MAX_FILE};"
                    " prune it, or lower the policy's rounds_per_program"
                )
        own = {self._path(name, suffix).name for suffix in (TENSORS, MANIFEST)}
        others = sum(p.stat().st_size for p in self.root.glob("*") if p.is_file() and p.name not in own)
        total = others + len(data) + len(text)
        if total > MAX_TOTAL:
            raise GoldenError(
                f"{self.root}: goldens would have {total} bytes, more than {MAX_TOTAL}; prune some"
            )

    def _written(self, name: str, suffix: str, data: bytes) -> pathlib.Path:
        path = self._path(name, suffix)
        with path.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        return path

    def _path(self, name: str, suffix: str) -> pathlib.Path:
        return self.root / (name + suffix)


def _bytes(path: pathlib.Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise GoldenError(f"{path}: cannot be read ({error.strerror}); {MEND}") from error
