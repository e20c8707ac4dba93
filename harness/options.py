"""What a run is asked to do, and which system under test it drives."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path as FilePath
from typing import TYPE_CHECKING, Literal

from harness.errors import UsageError
from harness.matrix import Selection
from harness.types import EngineKind

if TYPE_CHECKING:
    from harness.sut.protocol import SutFactory

GROUP = "replay_harness.suts"
"""Entry-point group under which systems under test register their factories."""


@dataclass(frozen=True)
class RunOptions:
    """What to run, and how."""

    cases_dir: FilePath
    golden_dir: FilePath
    sut: str = "embedded"
    engine: EngineKind = EngineKind.TAPE
    full: bool = False
    """The cross product instead of the covering array."""
    jobs: int = 0
    """Worker processes; 0: one a core on the tape, one on a GPU."""
    limit_s: float = 300.0
    """Seconds that a case may take in a worker process."""
    save: FilePath | None = None
    """Folder that keeps the observations."""
    selection: Selection = field(default_factory=Selection)
    golden: Literal["check", "off"] = "check"
    sut_options: Mapping[str, str] = field(default_factory=dict)
    """Keyword arguments for the system's factory."""
    isolated: bool = False
    """Run in worker processes of its own, even a single one: a process can load one release only."""
    pictures: bool = False
    """Let results carry what a report draws of each case."""

    @property
    def version(self) -> str:
        """The release that is asked for, empty where any will do."""
        return self.sut_options.get("version", "")


def flags_of(options: RunOptions) -> str:
    """Return the flags, each after a blank, that run the same cases again, besides system, engine, release
    and case: the cross product, folders that are not the default ones, goldens off, options of the system.
    """
    from harness import locate

    flags = ["--full"] if options.full else []
    given, golden = options.cases_dir, options.golden_dir
    if not _same(given, locate.default_cases_dir()):
        flags += ["--cases-dir", str(given)]
    if not _same(golden, locate.golden_dir(None, given)):
        flags += ["--golden-dir", str(golden)]
    if options.golden == "off":
        flags.append("--no-golden")
    for key, value in options.sut_options.items():
        if key != "version":
            flags += ["--sut-option", f"{key}={value}"]
    return "".join(f" {shlex.quote(flag)}" for flag in flags)


def _same(one: FilePath, other: FilePath | None) -> bool:
    return other is not None and one.resolve() == other.resolve()


def factory_of(options: RunOptions) -> SutFactory:
    """Return the factory of the system under test. Raises UsageError if none of that name is installed."""
    factory: SutFactory = registered(options).load()
    return partial(factory, **options.sut_options) if options.sut_options else factory


def registered(options: RunOptions) -> EntryPoint:
    """Return where the system under test is registered, not loaded; UsageError as `factory_of`."""
    found = {point.name: point for point in entry_points(group=GROUP)}
    if options.sut not in found:
        known = ", ".join(sorted(found)) or "none: install this package first (pip install -e .)"
        raise UsageError(f"no system under test is called {options.sut!r}; installed: {known}")
    return found[options.sut]
