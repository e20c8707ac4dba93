"""A covering array by greedy choice: all combinations as a table of indices, and which rows to take."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import combinations, product

import numpy as np
from numpy.typing import NDArray

from harness.axes import AXES, Axes, Combination
from harness.case import Model
from harness.rounds import OWN_INPUTS
from harness.types import Drill, Kernel, Path

_MUST = 2.0
"""What a must-have counts for, in pairs."""


class Table:
    """All combinations of axis values as index rows, those that a constraint forbids taken out."""

    def __init__(self, axes: Axes, models: Mapping[str, Model]) -> None:
        self._axes = axes
        package = Path.RELEASED in axes.values["path"]
        sizes = [len(axes.values[name]) for name in AXES]
        grid = np.indices(sizes, np.int16).reshape(len(AXES), -1).T
        names = [
            name for name in AXES if name in ("model", "path", "steps", "mode", "bucket", "drill", "kernel")
        ]
        allowed = {model.name: {v.steps for v in model.variants} for model in models.values()}
        own = {model.name: set(model.buckets) for model in models.values()}
        constrained = [len(axes.values[name]) if name in names else 1 for name in AXES]
        verdicts = np.zeros(np.prod(constrained), np.int8)
        for index, row in enumerate(product(*(axes.values[name] for name in names))):
            values = dict(zip(names, row, strict=True))
            if values["steps"] not in allowed[str(values["model"])]:
                verdicts[index] = len(axes.constraints) + 1
            elif values["bucket"] not in own[str(values["model"])]:
                verdicts[index] = len(axes.constraints) + 2
            for number, constraint in enumerate(axes.constraints, start=1):
                applies = package or not constraint.packages_only
                if not verdicts[index] and applies and constraint.forbids(values, models):
                    verdicts[index] = number
        self._reasons = np.broadcast_to(verdicts.reshape(constrained), sizes).reshape(-1)
        self.rows: NDArray[np.int16] = grid[self._reasons == 0]

    def combination(self, row: int) -> Combination:
        """Return the axis values of a row."""
        return tuple(
            self._axes.values[name][i] for name, i in zip(AXES, self.rows[row].tolist(), strict=True)
        )

    def encode(self, combination: Combination) -> list[int]:
        """Return the index row of a combination."""
        return [self._axes.values[name].index(v) for name, v in zip(AXES, combination, strict=True)]

    def matching(
        self, partial: Mapping[str, object], rows: NDArray[np.int16] | None = None
    ) -> NDArray[np.bool_]:
        """Return which rows have these values."""
        rows = self.rows if rows is None else rows
        mask = np.ones(len(rows), np.bool_)
        for name, value in partial.items():
            mask &= rows[:, AXES.index(name)] == self._axes.values[name].index(value)
        return mask

    def reluctance(self) -> NDArray[np.float64]:
        """Return how little each row proves, in [0, 1): what ties between equally covering rows are cut by.

        A batch of one row, or a single draft step, hides most faults; many rows cost time.
        """
        last = max(int(str(value)) for value in self._axes.values["bucket"])
        by_bucket = {1: 0.6, 2: 0.2, last: 0.5}
        by_steps = {2: 0.4, 3: 0.25, 5: 0.1, 6: 0.2}
        buckets = [by_bucket.get(int(str(value)), 0.0) for value in self._axes.values["bucket"]]
        steps = [by_steps.get(int(str(value)), 0.0) for value in self._axes.values["steps"]]
        columns = self.rows[:, AXES.index("bucket")], self.rows[:, AXES.index("steps")]
        return np.asarray(np.array(buckets)[columns[0]] + np.array(steps)[columns[1]])

    def references(self) -> NDArray[np.intp]:
        """Return a number per row: rows of equal number have the same ordinary reference."""
        orders = [value if value in OWN_INPUTS else Drill.PLAIN for value in self._axes.values["drill"]]
        flash = [value is Kernel.FLASHMLA_KV for value in self._axes.values["kernel"]]
        rows = self.rows
        keys = (
            rows[:, AXES.index("model")],
            rows[:, AXES.index("mode")],
            rows[:, AXES.index("bucket")],
            np.array([orders.index(order) for order in orders])[rows[:, AXES.index("drill")]],
            np.array(flash, np.int16)[rows[:, AXES.index("kernel")]],
            rows[:, AXES.index("precision")],
        )
        return np.ravel_multi_index(keys, [int(key.max()) + 1 for key in keys])

    def not_applicable(self) -> tuple[tuple[str, str], ...]:
        """Return (number of combinations, reason) of what the constraints take out."""
        reasons = [constraint.reason for constraint in self._axes.constraints]
        reasons += ["the model has no such S/k/N variant", "the model has no such bucket"]
        counts = np.bincount(self._reasons, minlength=len(reasons) + 1)
        return tuple(
            (f"{counts[number]} combinations", reason)
            for number, reason in enumerate(reasons, start=1)
            if counts[number]
        )


def pair_tables(rows: NDArray[np.int16], axes: Axes) -> dict[tuple[int, int], NDArray[np.bool_]]:
    """Return, for every two axes, which pairs of their values some row has."""
    sizes = [len(axes.values[name]) for name in AXES]
    tables = {}
    for one, two in combinations(range(len(AXES)), 2):
        found = np.zeros((sizes[one], sizes[two]), np.bool_)
        found[rows[:, one], rows[:, two]] = True
        tables[one, two] = found
    return tables


def cover(table: Table, axes: Axes) -> Iterator[Combination]:
    """Greedy cover: must-haves first, the narrowest ones before those that they may satisfy too, then pairs.

    Each pick takes the row that covers most new must-haves and pairs. Deterministic: near ties go to the
    row that proves more for its cost and to one whose ordinary reference is driven anyway, then to the first.
    """
    rows, reluctance = table.rows, table.reluctance()
    open_ = pair_tables(rows, axes)
    pairs = list(open_)
    musts = [mask for mask in map(table.matching, sorted(axes.musts, key=len, reverse=True)) if mask.any()]
    wanted = np.zeros(len(rows))
    for mask in musts:
        wanted += mask
    references = table.references()
    driven = np.zeros(references.max() + 1, np.bool_)

    def pick(candidates: NDArray[np.intp]) -> int:
        gain = _MUST * wanted[candidates]
        for one, two in pairs:
            gain += open_[one, two][rows[candidates, one], rows[candidates, two]]
        best = int(
            candidates[np.argmax(gain - reluctance[candidates] + 3.0 * driven[references[candidates]])]
        )
        for one, two in pairs:
            open_[one, two][rows[best, one], rows[best, two]] = False
        driven[references[best]] = True
        for index in [index for index, mask in enumerate(musts) if mask[best]][::-1]:
            np.subtract(wanted, musts.pop(index), out=wanted)
        return best

    while musts:
        yield table.combination(pick(np.flatnonzero(musts[0])))
    for one, two in pairs:
        while open_[one, two].any():
            first, second = np.argwhere(open_[one, two])[0]
            mask = (rows[:, one] == first) & (rows[:, two] == second)
            yield table.combination(pick(np.flatnonzero(mask)))
