"""What a run ran on: versions and the machine, without importing what it describes."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable, Mapping
from importlib import metadata

from harness import __version__
from harness.findings import CaseResult

_PACKAGES = ("torch", "numpy", "triton", "sglang")


def environment(results: Iterable[CaseResult]) -> dict[str, object]:
    """Return versions, the machine, and the facts that systems stated, each with all values that occurred."""
    return {
        "harness": __version__,
        "python": platform.python_version(),
        "packages": _versions(),
        "platform": platform.platform(),
        "cpus": os.cpu_count(),
        "facts": _facts(results),
    }


def _versions() -> dict[str, str]:
    versions = {}
    for package in _PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            versions[package] = "not installed"
    return versions


def _facts(results: Iterable[CaseResult]) -> dict[str, dict[str, list[str]]]:
    facts: dict[str, dict[str, set[str]]] = {}
    for result in results:
        stated = facts.setdefault(result.axes.get("sut", ""), {})
        _add(stated, result.facts)
    return {
        sut: {name: sorted(values) for name, values in sorted(stated.items())}
        for sut, stated in sorted(facts.items())
        if stated
    }


def _add(stated: dict[str, set[str]], facts: Mapping[str, str]) -> None:
    for name, value in facts.items():
        stated.setdefault(name, set()).add(value)
