"""Shrinking a failing sequence on its plain data: fewer operations first, then smaller ones.

Hypothesis shrinks what it drew; a batch made from the one before changes with it, so some of what is
superfluous stays. Here every value stands for itself. The passes repeat until none helps or the runs
are spent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import msgspec

from harness.case import Model
from harness.fuzz.sequence import Batch, Capture, Eager, Operation, Replay, Sequence, case_of
from harness.fuzz.store import problems
from harness.lengths import Scale
from harness.types import Kernel, Precision

SEVERAL_STEPS = 3
"""Least S with two draft steps: with fewer, nothing can be shared or copied between steps."""

Shows = Callable[[Sequence], bool]
"""Runs a sequence and says whether the fault still shows."""


@dataclass
class Reducer:
    """One reduction in progress."""

    models: Mapping[str, Model]
    shows: Shows
    most_runs: int
    runs: int = 0

    def reduce(self, sequence: Sequence) -> Sequence:
        """Return the smallest sequence found that still shows the fault."""
        passes = (_ended, _without_operations, _simpler_setting, _smaller_batches, _shorter_lengths)
        changed = True
        while changed and self.runs < self.most_runs:
            changed = False
            for candidates in passes:
                sequence, better = self._exhaust(candidates, sequence)
                changed = changed or better
        return sequence

    def _exhaust(
        self, candidates: Callable[[Sequence, Mapping[str, Model]], Iterator[Sequence]], sequence: Sequence
    ) -> tuple[Sequence, bool]:
        """Take the first candidate that still shows the fault, again and again."""
        better, tried = False, {msgspec.json.encode(sequence)}
        found = True
        while found:
            found = False
            for candidate in candidates(sequence, self.models):
                key = msgspec.json.encode(candidate)
                if key in tried or next(problems(candidate, self.models), None) is not None:
                    continue
                tried.add(key)
                if self.runs >= self.most_runs:
                    return sequence, better
                self.runs += 1
                if self.shows(candidate):
                    sequence, better, found = candidate, True, True
                    break
        return sequence, better


def size_of(sequence: Sequence) -> tuple[int, ...]:
    """Return what makes a sequence small: operations, live requests, tokens."""
    batches = [one for one in sequence.operations if isinstance(one, Capture | Replay)]
    return (
        len(sequence.operations),
        sum(len(one.lengths) for one in batches),
        sum(sum(one.lengths) for one in batches),
    )


def _with_operations(sequence: Sequence, operations: tuple[Operation, ...]) -> Sequence:
    return msgspec.structs.replace(sequence, operations=operations)


def _ended(sequence: Sequence, models: Mapping[str, Model]) -> Iterator[Sequence]:
    """End it sooner: what comes after the fault shows is of no use."""
    for length in _less(len(sequence.operations), 1):
        yield _with_operations(sequence, sequence.operations[:length])


def _without_operations(sequence: Sequence, models: Mapping[str, Model]) -> Iterator[Sequence]:
    """Leave out stretches of operations: long ones first, later ones first."""
    operations = sequence.operations
    length = len(operations)
    while length >= 1:
        for start in range(len(operations) - length, -1, -1):
            yield _with_operations(sequence, operations[:start] + operations[start + length :])
        length //= 2


def _simpler_setting(sequence: Sequence, models: Mapping[str, Model]) -> Iterator[Sequence]:
    """No second run, fewer steps (but several where there are several), no fusion, the plainest kernel."""
    setting = sequence.setting
    if sequence.ordinary:
        yield msgspec.structs.replace(sequence, ordinary=False)
    changes: list[dict[str, object]] = []
    few = min(SEVERAL_STEPS, setting.steps)
    variants = models[setting.model].variants
    changes += [{"steps": one.steps} for one in variants if few <= one.steps < setting.steps]
    changes += [{"fusion": False}] * setting.fusion
    changes += [{"kernel": Kernel.FA3}] * (setting.kernel is not Kernel.FA3)
    changes += [{"precision": Precision.FP32}] * (setting.precision is not Precision.FP32)
    for change in changes:
        yield msgspec.structs.replace(sequence, setting=msgspec.structs.replace(setting, **change))


def _smaller_batches(sequence: Sequence, models: Mapping[str, Model]) -> Iterator[Sequence]:
    """Smaller buckets, fewer live requests, fewer rows of eager calls, no junk, one page map."""
    model = models[sequence.setting.model]
    for bucket in sorted(sequence.captured, reverse=True):
        for smaller in model.buckets:
            if smaller < bucket and smaller not in sequence.captured:
                yield _with_operations(
                    sequence, tuple(_rebucketed(one, bucket, smaller) for one in sequence.operations)
                )
    for index, one in enumerate(sequence.operations):
        for simpler in _simpler(one):
            yield _replaced(sequence, index, simpler)


def _simpler(operation: Operation) -> Iterator[Operation]:
    change = msgspec.structs.replace
    if isinstance(operation, Eager):
        yield from (change(operation, rows=rows) for rows in _less(operation.rows, 1))
    if isinstance(operation, Replay):
        if operation.delayed:
            yield change(operation, delayed=False)
        if operation.junk:
            yield change(operation, junk=0)
        if operation.exchange:
            yield change(operation, exchange=())
    if isinstance(operation, Capture | Replay):
        if operation.pages:
            yield change(operation, pages=0)
        if operation.accepted:
            yield change(operation, accepted=())
        live = len(operation.lengths)
        if live > 1:
            for row in range(live - 1, -1, -1):
                yield _without_row(operation, row)
        plain = tuple(range(1, live + 1))
        if operation.requests != plain:
            yield change(operation, requests=plain)


def _shorter_lengths(sequence: Sequence, models: Mapping[str, Model]) -> Iterator[Sequence]:
    """Shorter requests: all as short as may be, then one at a time."""
    scale = Scale.of(case_of(sequence.setting, models[sequence.setting.model], sequence.captured))
    for index, one in enumerate(sequence.operations):
        if not isinstance(one, Capture | Replay) or not isinstance(one.pages, int):
            continue
        if any(length > scale.low for length in one.lengths):
            shortest = (scale.low,) * len(one.lengths)
            yield _replaced(sequence, index, msgspec.structs.replace(one, lengths=shortest))
        for row, length in enumerate(one.lengths):
            for less in _less(length, scale.low):
                lengths = (*one.lengths[:row], less, *one.lengths[row + 1 :])
                yield _replaced(sequence, index, msgspec.structs.replace(one, lengths=lengths))


def _less(value: int, least: int) -> Iterator[int]:
    """Yield smaller values, the least first, then ever nearer to `value`."""
    step = value - least
    while step > 0:
        yield value - step
        step //= 2


def _replaced(sequence: Sequence, index: int, operation: Operation) -> Sequence:
    before, after = sequence.operations[:index], sequence.operations[index + 1 :]
    return _with_operations(sequence, (*before, operation, *after))


def _rebucketed(operation: Operation, bucket: int, smaller: int) -> Operation:
    if not isinstance(operation, Capture | Replay) or operation.bucket != bucket:
        return operation
    for row in range(len(operation.lengths) - 1, smaller - 1, -1):
        operation = _without_row(operation, row)
    return msgspec.structs.replace(operation, bucket=smaller)


def _without_row(batch: Batch, row: int) -> Batch:
    def left(values: tuple[int, ...]) -> tuple[int, ...]:
        return values[:row] + values[row + 1 :]

    pages = batch.pages
    fewer = msgspec.structs.replace(
        batch,
        lengths=left(batch.lengths),
        requests=left(batch.requests),
        accepted=left(batch.accepted) if batch.accepted else (),
        pages=pages if isinstance(pages, int) else pages[:row] + pages[row + 1 :],
    )
    if not isinstance(fewer, Replay) or not fewer.exchange or fewer.exchange[0] < row:
        return fewer
    moved, *columns = fewer.exchange
    return msgspec.structs.replace(fewer, exchange=() if moved == row else (moved - 1, *columns))
