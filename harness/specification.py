"""Metadata that is not DSA's: a system that declares its own fields, their formulas and its part of the axes.

A system registers a `Specification` under its own name in the entry-point group
`replay_harness.specifications`, beside its factory. Its module is imported by every front end: it uses
NumPy only. A system without one has the metadata of `fields.FIELDS`, with the formulas of `oracle`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import entry_points
from typing import TYPE_CHECKING

from harness.errors import UsageError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from harness.fields import Dims, FieldSpec
    from harness.rounds import Inputs

GROUP = "replay_harness.specifications"
"""Entry-point group: name of the system -> its `Specification`."""


@dataclass(frozen=True, eq=False)
class Specification:
    """What the metadata of one kind of system is."""

    fields: tuple[FieldSpec, ...]
    """Every field; one that is not there in some mode or bucket says so itself (`exists`)."""
    expected: Callable[[Dims, Inputs], Mapping[str, NDArray[np.generic]]]
    """The right value of every field but those of `Live.ELSEWHERE`, in the leaf's shape; any integer or
    float type. What is not defined (`mask`) may hold anything."""
    axes: Mapping[str, tuple[object, ...]] = field(default_factory=dict)
    """By axis (`axes.AXES`): the values that make sense for the system; all that there are where left out."""


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
