"""Claim: values, outputs and structure equal the stored, accepted ones."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from harness.case import Case
from harness.checks.subject import Findings
from harness.compare import Mismatch, decode
from harness.fields import FieldSpec, fields_for, position
from harness.findings import Difference, Finding
from harness.golden.collect import (
    Keyed,
    config_of,
    entry_key,
    group_of,
    keyed_rounds,
    label,
    output_key,
    round_of,
    stored_output,
    structure_key,
    structures,
)
from harness.golden.model import Array, Entry, Golden, Stored, difference, output_difference
from harness.golden.structure import facts, words
from harness.observation import OUT_OF_RANGE, Cell, Observation, Refresh, RoundRecord
from harness.rounds import pad_round
from harness.types import Drill, EngineKind

Stated = Collection[tuple[int, int, int, str]]
"""Cells whose fault another check states: (round index, refresh index, step, leaf)."""

_MEANT = (
    "if the change is meant: replay-harness golden propose, golden diff, golden accept NAME --reason TEXT"
)
_LINES = 3
"""Differences of a structure that a message spells out."""


def _update(mode: str, case: Case) -> str:
    """Return the command that writes a case's golden; the reason is the user's."""
    engine = f" --engine {case.engine.value}" if case.engine is not EngineKind.TAPE else ""
    sut = f" --sut {case.sut}" if case.sut != "embedded" else ""
    return f'replay-harness golden update {mode} --model {case.model.name}{sut}{engine} --reason "..."'


def check(
    observation: Observation, golden: Golden | None, stated: Stated = frozenset()
) -> tuple[list[Finding], int]:
    """Compare a run with its golden; return the findings and how many elements (or facts) were compared.

    Cells that still hold a sentinel, and those in `stated`, are left out. Rounds that the golden does
    not keep are not compared and do not count; they are a finding only where the golden keeps rounds
    of this program and none of them was compared.
    """
    case = observation.case
    found = Findings("golden", case.id)
    if golden is None:
        message = f"there is no golden for {case.model.name} on {case.engine.value}"
        found.add("missing", message, hint=f"make it: {_update('new', case)}")
        return list(found.result()), 0
    if golden.config != config_of(case):
        message = f"golden {golden.name} was made for another model or geometry than this case has"
        hint = "a golden belongs to one geometry: remove its files and update with mode new"
        found.add("other_configuration", message, hint=hint)
        return list(found.result()), 0
    run = _Run(observation, golden, keyed_rounds(case, observation.program), frozenset(stated), found)
    elements = _values(run) + _structures(run)
    return list(found.result()), elements


@dataclass(frozen=True, eq=False)
class _Run:
    """What one comparison works on."""

    observation: Observation
    golden: Golden
    rounds: dict[str, Keyed]
    stated: frozenset[tuple[int, int, int, str]]
    found: Findings

    @property
    def program(self) -> str:
        """Labels of this program's rounds, without the round."""
        return label(self.observation.case, "", "").rpartition("/")[0]


@dataclass(frozen=True, eq=False)
class _Stored:
    """What the golden keeps of one round, by field, and the fields that it should keep."""

    keyed: Keyed
    entries: dict[str, Entry]
    """By field: the entry that the field belongs into."""


def _values(run: _Run) -> int:
    """Compare the rounds that the golden keeps."""
    _keys(run)
    elements = covered = 0
    for record in run.observation.rounds:
        stored = _stored(run, round_of(run.rounds, record))
        covered += bool(stored.entries)
        for index, refresh in enumerate(record.refreshes):
            if stored.entries:
                elements += _refresh(run, record, index, refresh, stored)
        elements += _outputs(run, record, stored.keyed)
    if not covered and run.observation.rounds and run.program in run.golden.programs:
        message = f"golden {run.golden.name} keeps rounds of this program, none of them was compared"
        run.found.add("not_covered", message, hint=f"names or inputs of the rounds changed; {_MEANT}")
    return elements


def _keys(run: _Run) -> None:
    """Hold the golden's rounds of this program against the program's own."""
    case, golden = run.observation.case, run.golden
    labels = {label(case, name, ""): keyed for name, keyed in run.rounds.items()}
    for stored, key in golden.by_label.items():
        program, _, name = stored.rpartition("/")
        if program != run.program:
            continue
        keyed = labels.get(stored)
        if keyed is None:
            if case.drill is not Drill.PLAIN:
                continue  # other drills run part of their rounds
            message = f"golden {golden.name} keeps a round {name} that the program no longer has"
            run.found.add("round_gone", message, round_name=name, hint="prune the golden after a full run")
            continue
        now = entry_key(case, keyed, "")
        if now != key and now not in golden.entries:
            message = f"round {name} has other inputs than golden {golden.name} keeps of it"
            run.found.add(
                "inputs_changed", message, bucket=keyed.round.bucket, round_name=name,
                hint=f"the traffic changed; {_MEANT}",
            )  # fmt: skip


def _stored(run: _Run, keyed: Keyed) -> _Stored:
    entries = {}
    for name, spec in fields_for(keyed.dims).items():
        key = entry_key(run.observation.case, keyed, group_of(spec, run.observation.case))
        if key in run.golden.entries:
            entries[name] = run.golden.entries[key]
    return _Stored(keyed, entries)


def _refresh(run: _Run, record: RoundRecord, index: int, refresh: Refresh, stored: _Stored) -> int:
    """Compare the cells of all steps; fields are held against each other both ways."""
    bucket, fields = stored.keyed.round.bucket, fields_for(stored.keyed.dims)
    elements = 0
    for cell in refresh.cells:
        entry = stored.entries.get(cell.name)
        if entry is None or cell.poisoned or (record.index, index, cell.step, cell.name) in run.stated:
            continue
        accepted = entry.values.get(cell.name)
        if accepted is None:
            message = f"{cell.name} was observed in round {record.name} but has no accepted value"
            run.found.add(
                "field_new", message, subject=cell.name, bucket=bucket, step=cell.step,
                round_name=record.name, hint=_update("new", run.observation.case),
            )  # fmt: skip
            continue
        elements += _cell(run, record, cell, accepted, stored.keyed, fields[cell.name])
    observed = {cell.name for cell in refresh.cells}
    for name, entry in stored.entries.items():
        if name in entry.values and name not in observed:
            message = f"{name} has an accepted value but was not observed in round {record.name}"
            run.found.add(
                "field_gone", message, subject=name, bucket=bucket, round_name=record.name,
                hint="the leaf is no longer judged, or no longer exists",
            )  # fmt: skip
    return elements


def _cell(run: _Run, record: RoundRecord, cell: Cell, accepted: Stored, keyed: Keyed, spec: FieldSpec) -> int:
    got = run.observation.values[cell.value]
    if cell.value == accepted.digest and got.dtype.kind != "f":
        return got.size
    mismatch = _dimensions(accepted, got) or difference(accepted, _whole(got))
    if mismatch is not None:
        note = _equals(run, cell, keyed)
        run.found.add(
            "value_differs",
            f"{cell.name} of step {cell.step} differs from the golden in round {record.name}",
            subject=cell.name, bucket=keyed.round.bucket, step=cell.step, round_name=record.name,
            hint=_MEANT, elements=mismatch.count, first=_difference(run, mismatch, keyed, spec, note),
        )  # fmt: skip
    return got.size


def _whole(got: Array) -> Stored:
    return Stored.of(got.reshape(-1), full=True, samples=0)


def _dimensions(accepted: Stored, got: Array) -> Mismatch | None:
    """A leaf of unexpected shape is observed whole, not as the vector of its defined elements."""
    if got.ndim == 1:
        return None
    return Mismatch("shape", max(got.size, accepted.size), -1, f"[{accepted.size}]", str([*got.shape]))


def _equals(run: _Run, cell: Cell, keyed: Keyed) -> str:
    """Say which other accepted round of this mode and bucket has the value, if one has."""
    context = entry_key(run.observation.case, keyed, "").rpartition("/")[0] + "/"
    for key, entry in run.golden.entries.items():
        other = entry.values.get(cell.name) if key.startswith(context) else None
        if other is not None and other.digest == cell.value:
            name = entry.labels[0].rpartition("/")[2] if entry.labels else "that no program has any more"
            return f"equals the accepted value of round {name}"
    return ""


def _difference(run: _Run, mismatch: Mismatch, keyed: Keyed, spec: FieldSpec, note: str) -> Difference:
    if mismatch.index < 0:
        return Difference(0, 0, mismatch.expected, mismatch.got, note or f"{mismatch.kind} as a whole")
    no_table = np.zeros((0, 0), np.int32)  # positions depend on lengths only
    dims = keyed.dims
    inputs = pad_round(keyed.round, no_table, dims.mode, dims.pool, dims.draft_tokens)
    row, column = position(spec, dims, inputs, mismatch.index)
    return Difference(row, column, mismatch.expected, mismatch.got, note)


def _outputs(run: _Run, record: RoundRecord, keyed: Keyed) -> int:
    """Compare what each step computed; a delayed replay is the ordering check's."""
    case, replay = run.observation.case, record.replay
    stored = run.golden.outputs.get(output_key(case, record.name))
    if stored is None or stored.inputs != keyed.inputs or replay is None or replay.delayed:
        return 0
    accepted = {(step, name): one for step, row in enumerate(stored.steps) for name, one in row.items()}
    observed = {(cell.step, cell.name): cell for cell in replay.outputs if cell.name != OUT_OF_RANGE}
    elements = 0
    for step, name in sorted(accepted.keys() | observed.keys()):
        if (step, name) not in observed or (step, name) not in accepted:
            gone = (step, name) in accepted
            message = f"output {name} of step {step} in round {record.name} " + (
                "has an accepted value but was not computed" if gone else "has no accepted value"
            )
            kind = "output_gone" if gone else "output_new"
            run.found.add(kind, message, subject=name, step=step, round_name=record.name, hint=_MEANT)
            continue
        got = run.observation.values[observed[step, name].value]
        one = accepted[step, name]
        elements += one.size if one.full is not None else one.samples.size
        found = stored_output(got, run.golden.policy)
        mismatch = output_difference(one, found, stored.precision) or _not_a_number(got, stored.precision)
        if mismatch is not None:
            run.found.add(
                "output_differs",
                f"output {name} of step {step} differs from the golden in round {record.name}",
                subject=name, bucket=keyed.round.bucket, step=step, round_name=record.name,
                elements=mismatch.count, hint="the step worked on other metadata, or the weights changed",
                first=_first_output(mismatch, got),
            )  # fmt: skip
    return elements


def _first_output(mismatch: Mismatch, got: Array) -> Difference:
    """Return the first difference by the output's own row and the element of that row."""
    row, column = divmod(max(mismatch.index, 0), max(got.size // max(got.shape[0], 1), 1))
    note = f"{mismatch.kind} as a whole" if mismatch.index < 0 else ""
    return Difference(row, column, mismatch.expected, mismatch.got, note)


def _not_a_number(got: Array, precision: str) -> Mismatch | None:
    """Find a NaN beside the elements that a golden samples."""
    raw = got.dtype == np.uint16 and precision == "bf16"
    if not raw and got.dtype.kind != "f":
        return None
    nan = np.isnan(decode(got, "bfloat16") if raw else got).reshape(-1)
    count = int(np.count_nonzero(nan))
    return Mismatch("value", count, int(np.argmax(nan)), "a number", "nan") if count else None


def _structures(run: _Run) -> int:
    """Compare ledger, spans and alias map of every refresh whose structure the golden keeps."""
    case, elements = run.observation.case, 0
    for record, bucket, got in structures(run.observation):
        accepted = run.golden.structures.get(structure_key(case, bucket))
        if accepted is None:
            continue
        elements += facts(accepted)
        for part, lines in words(accepted, got).items():
            more = f" (and {len(lines) - _LINES} more)" if len(lines) > _LINES else ""
            run.found.add(
                "structure_differs",
                f"the {part} of bucket {bucket} is not the accepted one: {'; '.join(lines[:_LINES])}{more}",
                subject=part, bucket=bucket, round_name=record.name, elements=len(lines), hint=_MEANT,
            )  # fmt: skip
    return elements
