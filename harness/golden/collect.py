"""What a golden would keep of an observation, and the keys under which it keeps it.

Pure: an observation in, a golden's content out. Whether it may be accepted is `update`'s business.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

import harness
from harness.case import Case
from harness.errors import HarnessError
from harness.fields import Dims, FieldSpec, Live, fields_for
from harness.golden.model import Array, Config, Entry, Golden, Outputs, Policy, Stored, Structure
from harness.golden.structure import Sharing, structure
from harness.observation import OUT_OF_RANGE, Capture, Observation, Refresh, RoundRecord
from harness.rounds import Program, Round, length_fill, rounds_key
from harness.types import EngineKind, Mode

TOOLS = ("numpy", "safetensors", "torch")
"""Distributions whose versions a golden records."""


@dataclass(frozen=True)
class Keyed:
    """A round of a program, with what keys its golden entries."""

    round: Round
    index: int
    """Position in the program."""
    dims: Dims
    inputs: str
    """Digest of the padded inputs."""


def golden_key(case: Case) -> tuple[str, str]:
    """Return (model, geometry key) of the golden that a case belongs to.

    The key is the engine kind, or `<system>_<engine>` where the system has a geometry of its own.
    """
    own = f"{case.sut}_{case.engine.value}"
    return case.model.name, own if own in case.model.geometries else case.engine.value


def config_of(case: Case) -> Config:
    """Return what a case's values depend on besides its rounds."""
    model, engine = golden_key(case)
    return Config(
        model=model,
        engine=engine,
        index_kpool=case.model.index_kpool,
        page_size=case.model.page_size,
        heads=case.model.heads,
        geometry=case.geometry,
    )


def default_policy(case: Case) -> Policy:
    """Return the policy of a golden made for the first time: digests only where the geometry is large."""
    return Policy(
        tier="digests" if case.engine is EngineKind.CUDA_GRAPH else "tensors",
        full_draft_tokens=case.model.default_variant.draft_tokens,
    )


def keyed_rounds(case: Case, program: Program) -> dict[str, Keyed]:
    """Return a program's rounds by name."""
    return {
        round_.name: Keyed(round_, index, Dims.of(case, round_.bucket), inputs_digest(case, program, round_))
        for index, round_ in enumerate(program.rounds)
    }


def inputs_digest(case: Case, program: Program, round_: Round) -> str:
    """Return the SHA-256 (hex) of a round's padded inputs: lengths, requests, accepted, live table.

    The table enters as the model pages of each live row up to the row's last live column, which
    decide `req_to_token` there; what lies beyond is dead and may hold anything.
    """
    model, tokens = case.model, case.metadata_tokens
    padded = round_.bucket - len(round_.lengths)
    lengths = [*round_.lengths, *[length_fill(case.mode, model.index_kpool, tokens)] * padded]
    requests = [*round_.requests, *[0] * padded]
    accepted = [*round_.accepted, *[tokens] * (round_.bucket - len(round_.accepted))]
    sha = hashlib.sha256(repr((case.mode.value, lengths, requests, accepted)).encode())
    written = tokens if case.mode is Mode.TARGET_VERIFY else 0
    pages = program.tables[round_.table]
    for request, length in zip(round_.requests, round_.lengths, strict=True):
        columns = -(-(length + written) // model.page_tokens)
        sha.update(pages[request, :columns].astype("<i4").tobytes())
    return sha.hexdigest()


def group_of(spec: FieldSpec, case: Case) -> str:
    """Return the decode kernel where a field's value depends on it, else nothing."""
    return case.kernel.value if spec.live is Live.ELSEWHERE else ""


def entry_key(case: Case, keyed: Keyed, group: str) -> str:
    """Return an entry's key, e.g. `decode/N6/bs4/<inputs>`; `group` as in `group_of`."""
    context = (case.mode.value, f"N{case.metadata_tokens}", f"bs{keyed.round.bucket}")
    return "/".join((*filter(None, (*context, group)), keyed.inputs))


def label(case: Case, round_name: str, group: str) -> str:
    """Return where a round occurs: its program (`rounds.rounds_key`) and its name, `/` between the parts."""
    program = (str(part) for part in rounds_key(case))
    return "/".join((*filter(None, (*program, group)), round_name.replace("/", "-")))


def output_key(case: Case, round_name: str) -> str:
    """Return the key of a round's outputs, which depend on the system's weights and on earlier rounds too."""
    names = (case.sut, case.precision.value, case.kernel.value, f"S{case.variant.steps}")
    return "/".join((*names, label(case, round_name, "")))


def structure_key(case: Case, bucket: int) -> str:
    """Return the key of a structure, e.g. `embedded/shared/fusion-on/5-1-6/decode/fa3/bs4`."""
    fusion = "fusion-on" if case.fusion else "fusion-off"
    variant = str(case.variant).replace("/", "-")
    names = (case.sut, case.path.value, fusion, variant, case.mode.value, case.kernel.value)
    return "/".join((*names, f"bs{bucket}"))


def round_of(rounds: Mapping[str, Keyed], record: RoundRecord) -> Keyed:
    """Return the round of a record. Raises HarnessError where the program does not have it."""
    if record.name not in rounds:
        raise HarnessError(f"the observation has a round {record.name} that its program does not have")
    return rounds[record.name]


def structures(observation: Observation) -> Iterator[tuple[RoundRecord, int, Structure]]:
    """Yield (record, bucket, structure) of every refresh that was probed and raised nothing."""
    case = observation.case
    buckets = {round_.name: round_.bucket for round_ in observation.program.rounds}
    known: dict[int, Sharing] = {}
    for record in observation.rounds:
        bucket = buckets[record.name]
        capture = _capture_in_force(observation, bucket, record.index)
        for refresh in record.refreshes:
            if not 0 <= refresh.walk < len(observation.walks):
                continue
            walk = observation.walks[refresh.walk]
            known[bucket] = Sharing.of(walk, bucket, case.backends, known.get(bucket))
            yield record, bucket, structure(refresh, known[bucket], capture, bucket, case.backends)


def _capture_in_force(observation: Observation, bucket: int, index: int) -> Capture | None:
    captures = [c for c in observation.captures if c.bucket == bucket and c.before_round <= index]
    return captures[-1] if captures else None


def stored_output(value: Array, policy: Policy) -> Stored:
    """Keep an output, flattened: in full if it is small, else evenly spaced elements of it."""
    flat = value.reshape(-1)
    return Stored.of(flat, full=flat.size <= policy.output_samples, samples=policy.output_samples)


def collect(
    observation: Observation,
    policy: Policy,
    reason: str,
    *,
    tools: Mapping[str, str] | None = None,
    values: bool = True,
) -> Golden:
    """Return a golden of this observation alone: the rounds that the policy keeps, and structure.

    tools: versions to record, `tool_versions`. values: False leaves entries and outputs out, for a
    path whose values are known to be wrong. Leaves are taken from step 0 after the last refresh of a
    round.
    """
    case = observation.case
    entries: dict[str, Entry] = {}
    outputs: dict[str, Outputs] = {}
    if values:
        rounds = keyed_rounds(case, observation.program)
        kept = policy.kept(len(rounds), case.metadata_tokens)
        with_outputs = policy.kept_outputs(len(rounds), case.metadata_tokens)
        for record in observation.rounds:
            keyed = round_of(rounds, record)
            if keyed.index in kept:
                _add_entries(observation, record, keyed, policy, entries)
            if keyed.index in with_outputs and keyed.round.bucket <= policy.full_bucket:
                kept_outputs = _outputs(observation, record, keyed, policy)
                if kept_outputs.steps:
                    outputs[output_key(case, record.name)] = kept_outputs
    found: dict[str, Structure] = {}
    for _, bucket, one in structures(observation):
        found.setdefault(structure_key(case, bucket), one)
    device = observation.facts.get("device", "")
    return Golden(config_of(case), policy, entries, outputs, found, reason, tools or {}, device)


def _add_entries(
    observation: Observation, record: RoundRecord, keyed: Keyed, policy: Policy, entries: dict[str, Entry]
) -> None:
    case, fields = observation.case, fields_for(keyed.dims)
    refresh = last_refresh(record)
    grouped: dict[str, dict[str, Stored]] = {}
    for cell in refresh.cells if refresh else ():
        if cell.step != 0 or cell.name not in fields:
            continue
        spec, value = fields[cell.name], observation.values[cell.value]
        full = policy.full(spec, value, case.metadata_tokens, keyed.round.bucket)
        stored = Stored.of(value.reshape(-1), full=full, samples=policy.sampled(spec))
        grouped.setdefault(group_of(spec, case), {})[cell.name] = stored
    for group, values in grouped.items():
        key, name = entry_key(case, keyed, group), label(case, record.name, group)
        labels = tuple(sorted({name, *(entries[key].labels if key in entries else ())}))
        entries[key] = Entry(labels, f"{case.sut}/{case.path.value}", values)


def last_refresh(record: RoundRecord) -> Refresh | None:
    """Return the last refresh of a round, None where it has none."""
    return record.refreshes[-1] if record.refreshes else None


def _outputs(observation: Observation, record: RoundRecord, keyed: Keyed, policy: Policy) -> Outputs:
    replay = record.replay
    steps: list[dict[str, Stored]] = []
    if replay is not None and not replay.delayed:
        steps = [{} for _ in range(observation.case.backends)]
        for cell in replay.outputs:
            if cell.name != OUT_OF_RANGE:
                steps[cell.step][cell.name] = stored_output(observation.values[cell.value], policy)
    return Outputs(keyed.inputs, observation.case.precision.value, tuple(steps) if any(steps) else ())


def tool_versions() -> dict[str, str]:
    """Return the versions of this package and of the tools that made the values."""
    versions = {"replay-harness": harness.__version__}
    for name in TOOLS:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            versions[name] = "none"
    return versions
