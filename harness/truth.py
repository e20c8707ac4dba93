"""Expected values by round, computed once and shared by the driver, the checks and all cases of a worker."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Generic, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from harness.case import Case
from harness.digest import value_digest
from harness.fields import Dims, FieldSpec, Live, canonical, fields_for, plan_is_written
from harness.oracle import expected
from harness.rounds import Inputs, Program, Round, expand_table, pad_round

K = TypeVar("K")
V = TypeVar("V")
T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Expected:
    """The right value of one field in one round."""

    live: NDArray[np.generic]
    """Its defined elements, in the order of `fields.canonical`."""
    digest: str


@dataclass(frozen=True, eq=False)
class RoundTruth:
    """Inputs and expected values of one round."""

    dims: Dims
    inputs: Inputs
    fields: Mapping[str, FieldSpec]
    """Every field that exists, those without a formula included."""
    expected: Mapping[str, Expected]
    later: tuple[RoundTruth, ...] = ()
    """Of draft steps 1.., where lengths advance from step to step; else every step has this truth."""
    _derived: dict[object, object] = field(default_factory=dict, repr=False)

    def once(self, key: object, make: Callable[[], T]) -> T:
        """Return what `make` gave for `key` the first time: masks, sentinels. Kept as long as this is.

        key: whatever the result depends on besides this round, its kind first.
        """
        if key not in self._derived:
            self._derived[key] = make()
        return cast(T, self._derived[key])

    @property
    def advances(self) -> bool:
        """Whether leaves change from draft step to draft step: what a step read stands for them."""
        return self.dims.own is not None and self.dims.own.advance is not None

    def at(self, step: int) -> RoundTruth:
        """Return what is right at a draft step."""
        return self.later[step - 1] if step and self.later else self

    def judged(self, name: str) -> bool:
        """Whether a leaf has defined elements after this round's refresh."""
        spec = self.fields.get(name)
        return spec is not None and (spec.live is not Live.PLAN or plan_is_written(self.dims))


class Truth:
    """A bounded cache of round truths. Not shared between processes."""

    def __init__(self, rounds: int = 256) -> None:
        """Keep at most so many rounds and a quarter as many expanded request tables."""
        self._rounds: _Recent[object, RoundTruth] = _Recent(rounds)
        self._tables: _Recent[object, NDArray[np.int32]] = _Recent(max(rounds // 4, 4))

    def of(self, case: Case, program: Program, round_: Round) -> RoundTruth:
        """Return a round's inputs and expected values for a case's model, mode and geometry."""
        dims = Dims.of(case, round_.bucket)
        pages = program.tables[round_.table]
        tokens = case.model.page_tokens
        table_key = (tokens, hashlib.sha256(pages.tobytes()).digest())
        table = self._tables.get(table_key, lambda: expand_table(pages, tokens))
        key = (dims, round_.lengths, round_.requests, round_.accepted, table_key)
        fill = None if dims.own is None else dims.own.padded_length
        inputs = pad_round(round_, table, case.mode, dims.pool, dims.draft_tokens, fill)
        return self._rounds.get(key, lambda: _with_later(dims, inputs, case.backends))


def _with_later(dims: Dims, inputs: Inputs, steps: int) -> RoundTruth:
    first = _round_truth(dims, inputs)
    advance = None if dims.own is None else dims.own.advance
    if advance is None:
        return first
    later = tuple(_round_truth(dims, advance(dims, inputs, step)) for step in range(1, steps))
    return replace(first, later=later)


def _round_truth(dims: Dims, inputs: Inputs) -> RoundTruth:
    fields = fields_for(dims)
    values = {}
    for name, full in expected(dims, inputs).items():
        live = canonical(fields[name], dims, inputs, full).copy()
        values[name] = Expected(live, value_digest(live))
    return RoundTruth(dims, inputs, fields, values)


@dataclass
class _Recent(Generic[K, V]):
    """The most recently used values, at most `limit` of them."""

    limit: int
    values: dict[K, V] = field(default_factory=dict)

    def get(self, key: K, make: Callable[[], V]) -> V:
        """Return the value kept for `key`, made now if there is none."""
        value = self.values.pop(key) if key in self.values else make()
        self.values[key] = value
        if len(self.values) > self.limit:
            self.values.pop(next(iter(self.values)))
        return value
