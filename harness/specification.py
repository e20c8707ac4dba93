"""Metadata that is not DSA's: a system that declares its own fields, their formulas and its part of the axes.

Lengths may advance from draft step to draft step (`advance`): then one metadata object may serve all steps,
each of which has its own right values, and what a Python value of that object is at a step may be declared
(`hosts`).

A system registers a `Specification` under its own name in the entry-point group
`replay_harness.specifications`, beside its factory. Its module is imported by every front end: it uses
NumPy only. A system without one has the metadata of `fields.FIELDS`, with the formulas of `oracle`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any

from harness.errors import UsageError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from harness.case import Case, Model
    from harness.fields import Dims, FieldSpec
    from harness.rounds import Inputs
    from harness.types import Path

GROUP = "replay_harness.specifications"
"""Entry-point group: name of the system -> its `Specification`."""


@dataclass(frozen=True)
class Constraint:
    """Combinations that make no sense, with the reason that reports print."""

    reason: str
    forbids: Callable[[Mapping[str, object], Mapping[str, Model]], bool]
    packages_only: bool = False
    """Whether it holds for packages alone, not for the embedded system."""


@dataclass(frozen=True)
class HostSpec:
    """A Python value of a metadata object, which a graph keeps as it was at capture."""

    name: str
    value: Callable[[Dims, Inputs, bool], object]
    """What an ordinary build gives: dimensions, inputs of the batch, whether it is built for a capture."""
    frozen: bool = False
    """Whether a build of another batch may give another value, which the graph never sees, by design."""


def _no_hosts(dims: Dims) -> tuple[HostSpec, ...]:
    return ()


def _no_growth(model: Model) -> int:
    return 0


def _nothing_more(case: Case) -> Mapping[str, Any]:
    return {}


@dataclass(frozen=True, eq=False)
class Specification:
    """What the metadata of one kind of system is."""

    fields: tuple[FieldSpec, ...] | Callable[[Dims], tuple[FieldSpec, ...]]
    """Every field; one that is not there in some mode or bucket says so itself (`exists`). A function where
    roles, overlaps or padded rows depend on the dimensions."""
    expected: Callable[[Dims, Inputs], Mapping[str, NDArray[np.generic]]]
    """The right value of every field but those of `Live.ELSEWHERE`, in the leaf's shape; any integer or
    float type. What is not defined (`mask`) may hold anything."""
    axes: Mapping[str, tuple[object, ...]] = field(default_factory=dict)
    """By axis (`axes.AXES`): the values that make sense for the system; all that there are where left out."""
    ordinary: Mapping[Path, Path] = field(default_factory=dict)
    """The system's refresh paths, each with the one whose case is its reference; a package's where left
    out."""
    constraints: tuple[Constraint, ...] = ()
    """Combinations of axis values that make no sense for it."""
    advance: Callable[[Dims, Inputs, int], Inputs] | None = None
    """What the staged inputs have become after so many draft steps; None: every step sees the staged ones."""
    ahead: Callable[[Model], int] = _no_growth
    """Most tokens by which a request grows within one round."""
    hosts: Callable[[Dims], tuple[HostSpec, ...]] = _no_hosts
    """The host values that are judged in every round."""
    matters: Callable[[Case], Mapping[str, Any]] = _nothing_more
    """What its dimensions depend on besides model, geometry and mode: `steps` and `path` of `fields.Dims`."""
    padded_length: int | None = None
    """Length of a padded row when a batch is staged; None: the mode's (`rounds.length_fill`)."""
    idle: bool = True
    """Whether a batch without any request is run."""
    goldens: bool = True
    """Whether goldens are kept of it."""


@cache
def specification_of(sut: str) -> Specification | None:
    """Return what a system has registered, None where its metadata is DSA's.

    Raises UsageError where the entry holds something else.
    """
    for point in entry_points(group=GROUP, name=sut):
        found = point.load()
        if not isinstance(found, Specification):
            raise UsageError(
                f"{point.value} in the group {GROUP} is no Specification but {type(found).__name__}"
            )
        return found
    return None
