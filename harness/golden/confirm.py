"""Nothing enters a golden that the oracle contradicts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from harness.compare import compare
from harness.fields import Dims, FieldSpec, Live, canonical, fields_for, position
from harness.golden.collect import Keyed, entry_key, group_of, keyed_rounds, last_refresh, round_of
from harness.golden.model import Array, Policy
from harness.observation import Cell, Observation, RoundRecord
from harness.rounds import Inputs, padded_inputs

Oracle = Callable[[Dims, Inputs], Mapping[str, Array]]
"""Right value of every field that has a formula, in the leaf's shape: `harness.oracle.expected`."""


class Confirmation:
    """Holds what a golden would keep against the oracle, every round's inputs once."""

    def __init__(self, oracle: Oracle) -> None:
        """Confirm by this oracle."""
        self._oracle = oracle
        self._confirmed: dict[tuple[str, str], set[str]] = {}

    def contradictions(self, observation: Observation, policy: Policy) -> Iterator[str]:
        """Yield one line per value that the oracle contradicts or cannot confirm: round, field, both values.

        Fields without a formula are held against the observation's reference of them.
        """
        case = observation.case
        rounds = keyed_rounds(case, observation.program)
        kept = policy.kept(len(rounds), case.metadata_tokens)
        for record in observation.rounds:
            keyed = round_of(rounds, record)
            refresh = last_refresh(record)
            if keyed.index not in kept or refresh is None:
                continue
            fields = fields_for(keyed.dims)
            cells = [cell for cell in refresh.cells if cell.step == 0 and cell.name in fields]
            yield from self._round(observation, record, keyed, cells)

    def _round(
        self, observation: Observation, record: RoundRecord, keyed: Keyed, cells: list[Cell]
    ) -> Iterator[str]:
        case, fields = observation.case, fields_for(keyed.dims)
        open_cells = []
        for cell in cells:
            key = entry_key(case, keyed, group_of(fields[cell.name], case))
            confirmed = self._confirmed.setdefault((key, cell.name), set())
            if cell.value not in confirmed:
                open_cells.append(cell)
                confirmed.add(cell.value)
        if not open_cells:
            return
        inputs = padded_inputs(keyed.round, observation.program, case.model, case.mode, case.metadata_tokens)
        full = self._oracle(keyed.dims, inputs)
        for cell in open_cells:
            spec, got = fields[cell.name], observation.values[cell.value]
            expected = _expected(observation, record, spec, keyed.dims, inputs, full)
            where = f"{case.id}: round {record.name}, {cell.name}"
            if expected is None:
                yield f"{where}: neither the oracle nor a reference confirms it"
                continue
            mismatch = compare(expected, got)
            if mismatch is not None and mismatch.index >= 0:
                row, column = position(spec, keyed.dims, inputs, mismatch.index)
                where = f"{where}, row {row}, column {column}"
            if mismatch is not None:
                yield f"{where}: the oracle says {mismatch.expected}, the run has {mismatch.got}"


def _expected(
    observation: Observation,
    record: RoundRecord,
    spec: FieldSpec,
    dims: Dims,
    inputs: Inputs,
    full: Mapping[str, Array],
) -> Array | None:
    if spec.live is Live.ELSEWHERE:
        digest = observation.references.get(f"{record.name}/{spec.name}")
        return None if digest is None else observation.values[digest].reshape(-1).copy()
    value = full.get(spec.name)
    return None if value is None else canonical(spec, dims, inputs, value).copy()
