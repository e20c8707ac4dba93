"""From recorded moments to operations of a model that the harness knows: ids made to fit, lengths if asked
for.

A server's request rows and page ids may be larger than a model's geometry has. They are renamed so that what
was equal stays equal and what differed differs, within a batch and, as long as there is room, over time.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator, Sequence

from harness.case import Case
from harness.errors import UsageError
from harness.fuzz.sequence import Capture, Replay
from harness.lengths import Scale
from harness.pages import guard_page
from harness.trace.reader import Moment
from harness.types import Mode


class Names:
    """Renames ids into a range; an id keeps its name until the name is needed for others."""

    def __init__(self, first: int, last: int) -> None:
        """Names are `first` to `last`."""
        self._first, self._last = first, last
        self._names: OrderedDict[int, int] = OrderedDict()
        self._taken: set[int] = set()
        self._next = first

    def rename(self, ids: Sequence[int]) -> tuple[int, ...]:
        """Return names of ids, which are used last from now on. Raises ValueError for too many ids at once.

        An id that is a name itself keeps it while nobody else has it.
        """
        wanted = dict.fromkeys(ids)
        if len(wanted) > self._last - self._first + 1:
            raise ValueError(f"{len(wanted)} are used at once, there are {self._last - self._first + 1}")
        for one in wanted:
            if one in self._names:
                self._names.move_to_end(one)
        new = [one for one in wanted if one not in self._names]
        for one in sorted(new, key=lambda one: not self._first <= one <= self._last):
            self._names[one] = self._new(one, wanted)
        return tuple(self._names[one] for one in ids)

    def _new(self, one: int, wanted: Collection[int]) -> int:
        if self._first <= one <= self._last and one not in self._taken:
            name = one
        elif len(self._taken) <= self._last - self._first:
            while self._next in self._taken:
                self._next += 1
            name = self._next
        else:
            oldest = next(known for known in self._names if known not in wanted)
            name = self._names.pop(oldest)
        self._taken.add(name)
        return name


class Mapping:
    """Makes operations of moments, for one case."""

    def __init__(self, case: Case, *, fit: bool = False) -> None:
        """Map to a case's geometry; `fit` folds lengths that are too long for it."""
        self.folded = 0
        """Lengths that were too long."""
        self._case, self._fit, self._scale = case, fit, Scale.of(case)
        geometry = case.geometry
        self._requests = Names(1, geometry.requests - 1)
        self._pages = Names(geometry.first_page, guard_page(case.model, geometry) - 1)
        self._unit = self._scale.unit

    def operation(self, moment: Moment) -> Capture | Replay:
        """Return a moment as an operation. Raises UsageError where it does not fit the model's geometry."""
        lengths = tuple(self._length(moment, length) for length in moment.lengths)
        if moment.bucket not in self._case.model.buckets:
            raise UsageError(
                f"record {moment.n}: bucket {moment.bucket} is not one of {list(self._case.model.buckets)}"
            )
        pages: int | tuple[tuple[int, ...], ...] = 0
        try:
            requests = self._requests.rename(moment.requests)
            if moment.pages:
                rows = [
                    row[: self._scale.columns(length)]
                    for row, length in zip(moment.pages, lengths, strict=True)
                ]
                names = iter(self._pages.rename([page for row in rows for page in row]))
                pages = tuple(tuple(next(names) for _ in row) for row in rows)
        except ValueError as error:
            raise UsageError(
                f"record {moment.n}: does not fit {self._case.model.name} on {self._case.engine}: {error}"
            ) from error
        draft = self._scale.draft_tokens
        accepted: tuple[int, ...] = ()
        if self._scale.mode is Mode.DRAFT_EXTEND:
            accepted = tuple(min(max(count, 1), draft) for count in moment.accepted)
        kind = Capture if moment.capture else Replay
        return kind(bucket=moment.bucket, lengths=lengths, requests=requests, pages=pages, accepted=accepted)

    def _length(self, moment: Moment, length: int) -> int:
        if self._scale.legal(length):
            return length
        if not self._fit:
            limits = f"{self._scale.low} to {self._scale.high}"
            raise UsageError(
                f"record {moment.n}: length {length} is out of range for {self._case.model.name} on "
                f"{self._case.engine}: {limits}; choose a wider --model or --engine, or add --fit"
            )
        self.folded += 1
        if length < self._scale.low:
            return self._scale.low
        return self._scale.high - (self._scale.high - length) % min(self._unit, self._scale.high)


def operations(moments: Iterable[Moment], mapping: Mapping, mode: str) -> Iterator[Capture | Replay]:
    """Yield the operations of one mode; a bucket whose capture is missing is captured by its first batch."""
    captured: set[int] = set()
    for moment in moments:
        if moment.mode != mode:
            continue
        made = mapping.operation(moment)
        if isinstance(made, Replay) and made.bucket not in captured:
            yield Capture(
                bucket=made.bucket, lengths=made.lengths, requests=made.requests, pages=made.pages,
                accepted=made.accepted,
            )  # fmt: skip
        captured.add(made.bucket)
        yield made
