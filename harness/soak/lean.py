"""Judging a replay at a fraction of the cost of all checks: what a soak does between its full windows.

Every leaf of every step is read after the replay and held against the oracle (or the planner's reference):
that covers the refresh and what a forward may have written. Storage, offset, shape, stride and type are
those of the capture. The declared spans ran as often as declared, on the declared path. Inputs hold what was
staged. Left out: sentinels (a value that happens to be right is not told from a fresh one), the write
ledger, what each step read and computed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from harness.driver import SystemFailure
from harness.errors import FreedStorageError, HarnessError
from harness.findings import Finding
from harness.fuzz.sequence import Replay
from harness.life import Life
from harness.probe.leaves import Look
from harness.probe.observers import place
from harness.probe.snapshot import Snapshot, Values, to_numpy
from harness.soak.counting import Counting
from harness.truth import RoundTruth
from harness.types import Path

CHECKS = {
    "equivalence": "every leaf of every step after the replay, against the oracle or the planner's reference",
    "address": "storage, offset, shape, stride and type of every leaf are those of the capture",
    "refresh": "spans of the refresh are as declared (how often each part ran)",
    "routing": "the path that ran is the declared one",
    "readonly": "staged inputs are unchanged; leaves are read after the replay, so a forward's writes show",
}
"""What is judged of every replay."""
LEFT_OUT = (
    "sentinels, write ledger, what each step read and computed (judged in full windows only); golden; the "
    "ordinary path"
)

Places = dict[tuple[int, str], tuple[object, ...]]


@dataclass(frozen=True)
class Seen:
    """What one replay left, as far as ranks have to agree on it."""

    number: int
    """Number of the operation in its life."""
    bucket: int
    live: int
    route: str
    refreshes: int
    """Spans that ran."""
    digests: Mapping[tuple[int, str], str]
    """By step and leaf: digest of the defined elements."""
    elements: int
    findings: tuple[Finding, ...]


class Lean:
    """Replays of a life, judged leanly."""

    def __init__(self, life: Life, counting: Counting) -> None:
        """Judge replays of `life`, whose system was made by `counting.factory`."""
        self._life, self._counting = life, counting
        self._places: dict[int, Places] = {}
        self._forgiven: frozenset[tuple[int, str]] = frozenset()

    def captured(self) -> None:
        """Remember where everything lies: after the captures, and after each one that is made anew."""
        look = Look(self._life.run.sut.roots())
        self._forgiven = self._life.forgiven()
        self._places = {
            bucket: {
                (step, name): place(tensor)
                for step, leaves in enumerate(look.leaves(bucket))
                for name, tensor in leaves.items()
            }
            for bucket in self._life.run.graphs
        }

    def replay(self, operation: Replay) -> Seen:
        """Stage, refresh, replay, judge. Raises SystemFailure where the system raises."""
        life, run = self._life, self._life.run
        truth = life.next_round(operation)
        bucket, sut, engine = operation.bucket, run.sut, run.engine
        try:
            sut.stage(truth.inputs)
            self._counting.taken()
            sut.refresh(bucket)
            engine.launch(run.graphs[bucket])
            engine.synchronize()
        except FreedStorageError as error:
            return self._freed(truth, str(error))
        except HarnessError:
            raise
        except Exception as error:  # the boundary to code under test: its exception is what we observe
            text = (str(error).strip().splitlines() or [""])[0]
            raise SystemFailure(f"replay {life.operations}: {type(error).__name__}: {text}") from error
        spans = self._counting.taken()
        look = Look(sut.roots())
        digests, elements, wrong = self._values(truth, look)
        findings = (
            *wrong,
            *self._moved(bucket, look),
            *self._path(bucket, spans),
            *self._inputs(truth, sut.inputs()),
        )
        return Seen(
            number=life.operations,
            bucket=bucket,
            live=truth.inputs.live,
            route=sut.route(),
            refreshes=sum(spans.values()),
            digests=digests,
            elements=elements,
            findings=findings,
        )

    def all_in_place(self) -> tuple[Finding, ...]:
        """Return what moved in any bucket, of those that were not replayed lately, too."""
        look = Look(self._life.run.sut.roots())
        return tuple(finding for bucket in self._places for finding in self._moved(bucket, look))

    def _values(
        self, truth: RoundTruth, look: Look
    ) -> tuple[dict[tuple[int, str], str], int, tuple[Finding, ...]]:
        values = Values()
        snapshot = Snapshot(truth, values)
        digests: dict[tuple[int, str], str] = {}
        findings, elements = [], 0
        references: dict[str, str] = {}
        for step, leaves in enumerate(look.leaves(truth.dims.bucket)):
            for name, tensor in leaves.items():
                cell = snapshot.cell(step, name, tensor)
                if cell is None:
                    continue
                digests[step, name] = cell.value
                right = self._right(name, truth, references)
                if right is None:
                    continue
                got = values.by_digest[cell.value]
                elements += got.size
                if cell.value != right and (step, name) not in self._forgiven:
                    findings.append(
                        self._finding(
                            "equivalence", "wrong_value", truth, name, (step,),
                            f"{name} of step {step} is not the right value after the replay",
                        )
                    )  # fmt: skip
        missing = truth.expected.keys() - {name for _, name in digests}
        findings += [
            self._finding("equivalence", "field_missing", truth, name, (), f"{name} is missing")
            for name in sorted(missing)
            if truth.judged(name) and (0, name) not in self._forgiven
        ]
        return digests, elements, tuple(findings)

    def _right(self, name: str, truth: RoundTruth, references: dict[str, str]) -> str | None:
        """Return the digest of a leaf's right value; None where nothing is known of it."""
        if name in truth.expected:
            return truth.expected[name].digest
        if name not in truth.fields:
            return None
        if name not in references:
            value = self._life.run.sut.reference(name, truth.inputs)
            references[name] = "" if value is None else Values().add(to_numpy(value.reshape(-1)))
        return references[name] or None

    def _moved(self, bucket: int, look: Look) -> Iterator[Finding]:
        known = self._places.get(bucket, {})
        now = {
            (step, name): place(tensor)
            for step, leaves in enumerate(look.leaves(bucket))
            for name, tensor in leaves.items()
        }
        for key in known.keys() | now.keys():
            if known.get(key) != now.get(key):
                step, name = key
                yield Finding(
                    check="address", kind="moved", case=self._life.case.id, field=name, bucket=bucket,
                    steps=(step,), rounds=(self._round(bucket),),
                    message=f"{name} of step {step}, bucket {bucket}, is not where it was captured",
                )  # fmt: skip

    def _path(self, bucket: int, spans: Counter[str]) -> Iterator[Finding]:
        sut, case = self._life.run.sut, self._life.case
        declared = sut.expectation(bucket)

        def finding(check: str, kind: str, message: str) -> Finding:
            rounds = (self._round(bucket),)
            return Finding(
                check=check, kind=kind, case=case.id, field="", bucket=bucket, steps=(), rounds=rounds,
                message=message,
            )  # fmt: skip

        if (route := sut.route()) != declared.route:
            yield finding("routing", "other_path", f"{route or 'no path'} ran, {declared.route} is declared")
        wanted = {name: count for name, count in declared.spans.items() if count}
        ran = {name: count for name, count in spans.items() if name not in ("refresh", "forward")}
        if case.path is not Path.SHARED_IN_GRAPH and ran != wanted:
            message = f"parts of the refresh ran {ran} times, declared are {wanted}"
            yield finding("refresh", "span_count", message)

    def _inputs(self, truth: RoundTruth, tensors: Mapping[str, torch.Tensor]) -> Iterator[Finding]:
        staged: dict[str, NDArray[Any]] = {
            "seq_lens": truth.inputs.lengths,
            "req_pool_indices": truth.inputs.requests,
            "req_to_token": truth.inputs.table,
        }
        for name, value in staged.items():
            tensor = tensors.get(name)
            if tensor is None:
                continue
            part = tensor[: value.shape[0]]
            there = part.detach().numpy() if part.device.type == "cpu" else to_numpy(part)
            if not np.array_equal(there, value):
                message = f"the input {name} holds something else after the replay than was staged"
                yield self._finding("readonly", "input_changed", truth, name, (), message)

    def _freed(self, truth: RoundTruth, text: str) -> Seen:
        finding = self._finding("address", "freed", truth, "", (), text)
        return Seen(self._life.operations, truth.dims.bucket, truth.inputs.live, "", 0, {}, 0, (finding,))

    def _round(self, bucket: int) -> str:
        return f"b{bucket}.{self._life.operations:02d}"

    def _finding(
        self, check: str, kind: str, truth: RoundTruth, field: str, steps: tuple[int, ...], message: str
    ) -> Finding:
        bucket = truth.dims.bucket
        return Finding(
            check=check, kind=kind, case=self._life.case.id, field=field, bucket=bucket, steps=steps,
            rounds=(self._round(bucket),), message=message,
        )  # fmt: skip
