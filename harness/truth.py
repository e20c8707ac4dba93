"""Expected values by round, computed once and shared by the driver, the checks and all cases of a worker."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from harness.case import Case
from harness.digest import value_digest
from harness.fields import Dims, FieldSpec, Live, canonical, fields_for, plan_is_written
from harness.oracle import expected
from harness.rounds import Inputs, Program, Round, padded_inputs

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Expected:
    """The right value of one field in one round."""

    field: FieldSpec
    full: NDArray[np.generic]
    """The leaf's shape; unspecified outside the live region."""
    live: NDArray[np.generic]
    """`fields.canonical` of it."""
    digest: str


@dataclass(frozen=True, eq=False)
class RoundTruth:
    """Inputs and expected values of one round."""

    dims: Dims
    inputs: Inputs
    fields: Mapping[str, FieldSpec]
    """Every field that exists, those without a formula included."""
    expected: Mapping[str, Expected]

    def judged(self, name: str) -> bool:
        """Whether a leaf has defined elements after this round's refresh."""
        field = self.fields.get(name)
        return field is not None and (field.live is not Live.PLAN or plan_is_written(self.dims))


class Truth:
    """A bounded cache of round truths. Not shared between processes."""

    def __init__(self, rounds: int = 256) -> None:
        """Keep at most so many rounds."""
        self._rounds: OrderedDict[object, RoundTruth] = OrderedDict()
        self._limit = rounds

    def of(self, case: Case, program: Program, round_: Round) -> RoundTruth:
        """Return a round's inputs and expected values for a case's model, mode and geometry."""
        dims = Dims.of(case, round_.bucket)
        pages = hashlib.sha256(program.tables[round_.table].tobytes()).digest()
        key = (dims, round_.lengths, round_.requests, round_.accepted, pages)
        return _remember(self._rounds, key, self._limit, lambda: self._make(case, program, round_, dims))

    def _make(self, case: Case, program: Program, round_: Round, dims: Dims) -> RoundTruth:
        inputs = padded_inputs(round_, program, case.model, case.mode, dims.draft_tokens)
        fields = fields_for(dims)
        values = {}
        for name, full in expected(dims, inputs).items():
            live = canonical(fields[name], dims, inputs, full)
            values[name] = Expected(fields[name], full, live, value_digest(live))
        return RoundTruth(dims, inputs, fields, values)


def _remember(cache: OrderedDict[object, T], key: object, limit: int, make: Callable[[], T]) -> T:
    if key not in cache:
        cache[key] = make()
        if len(cache) > limit:
            cache.popitem(last=False)
    cache.move_to_end(key)
    return cache[key]
