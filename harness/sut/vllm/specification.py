"""The metadata of vLLM's draft decode steps: fields, host values, and how a batch advances from step to step.

Source: the builders and the runner of vLLM 0.33.0. S drafted tokens take S - 1 decode steps of one token per
request; lengths and positions count up in the graph, those of padded rows too, and everything else follows.
One metadata object serves all steps. Names are those of the metadata objects, below the KV-cache group's own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from harness.case import PHYSICAL_PAGE, Case, Model
from harness.fields import Dims, FieldSpec, Live, Padding, Sharing
from harness.rounds import Inputs
from harness.specification import Constraint, HostSpec, Specification
from harness.sut.vllm import oracle
from harness.types import Drill, Kernel, Mode, Path, Role

STATE_GROUPS = 2
"""KV-cache groups of the reuse path."""
STATE_PATHS = (Path.INDEPENDENT, Path.BLOCK_TABLE_REUSE)
"""Paths on state-space layers: one step, two KV-cache groups of equal specification."""
NATIVE_QUERIES = (1, 2, 4)
"""Query rows per request that the logits kernel takes as they are on Hopper; others are flattened."""


def native(dims: Dims) -> bool:
    """Whether a verified request's 1 + S tokens stay together, as the indexer's builder decides once."""
    return 1 + dims.steps in NATIVE_QUERIES


def ring_slots(pool: int, drafts: int) -> int:
    """Slots of a request's tail ring: whole pools, a power of two of them, over the drafts."""
    pools = 1
    while pools * pool < pool + drafts:
        pools *= 2
    return pools * pool


def updates(dims: Dims) -> bool:
    """Whether the builders' update refreshes, and not a build."""
    return dims.path is not None and dims.path.in_graph


def _bucket(dims: Dims) -> tuple[int, ...]:
    return (dims.bucket,)


def _offsets(dims: Dims) -> tuple[int, ...]:
    return (dims.bucket + 1,)


def _column(dims: Dims) -> tuple[int, ...]:
    return (dims.bucket, 1)


def _table(dims: Dims) -> tuple[int, ...]:
    return dims.bucket, dims.width // (PHYSICAL_PAGE * dims.pool)


def _schedule(dims: Dims) -> tuple[int, ...]:
    return dims.num_sms + 1, 2


def _own(dims: Dims) -> Sharing:
    return Sharing.BUCKET_SLICE


def _view(dims: Dims) -> Sharing:
    return Sharing.RUNNER_VIEW


def _always(dims: Dims) -> bool:
    return True


def _spec(
    name: str,
    dtype: str,
    shape: Callable[[Dims], tuple[int, ...]],
    *,
    view: str = "",
    staged: bool = False,
    live: Live = Live.ALL,
    padding: Padding = Padding.BUILT,
    top: int = 0,
    constant: bool = False,
) -> FieldSpec:
    """Describe a leaf: the runner's where `view` names its buffer, else a slice of one of the builder's."""
    return FieldSpec(
        name, dtype, shape, Role.STAGED if staged else Role.REFRESHED, live, _always, _view if view else _own,
        derived=not view, padding=padding, view_of=view, top=top, constant=constant,
    )  # fmt: skip


def draft_fields(dims: Dims) -> tuple[FieldSpec, ...]:
    """Return the fields of a drafter's groups: sparse indexer, main attention and, with P > 1, the tail
    ring."""
    pooled, fused = dims.pool > 1, updates(dims)
    together = native(dims)
    counted = Padding.CAPTURED if fused else Padding.BUILT
    lengths = Padding.ADVANCES if fused or together else Padding.BUILT
    rows = max(dims.bucket - 1, 1)
    table: dict[str, Any] = {"live": Live.POOLED_PAGES, "padding": Padding.ADVANCES}
    fields = [
        _spec("indexer.seq_lens", "int32", _bucket, view="seq_lens", staged=True, padding=Padding.ADVANCES),
        _spec(
            "indexer.slot_mapping",
            "int64",
            _bucket,
            view="" if pooled else "slot_mappings[0]",
            padding=Padding.ADVANCES if pooled and fused else Padding.BUILT,
        ),
        _spec("indexer.block_table", "int32", _table, view="block_tables[0]", staged=True, **table),
        _spec(
            "indexer.decode.block_table",
            "int32",
            _table,
            view="block_tables[0]" if together else "",
            staged=together,
            **table,
        ),
        _spec("indexer.decode.seq_lens", "int32", _column, padding=lengths),
        _spec(
            "indexer.decode.decode_lens",
            "int32",
            _bucket,
            padding=counted if together else Padding.CAPTURED,
            constant=True,
        ),
        _spec("indexer.decode.schedule_metadata", "int32", _schedule, padding=lengths, top=dims.bucket),
        _spec("indexer.decode.per_req_decode_lens", "int32", _bucket, padding=counted, constant=True),
        _spec("main.query_start_loc", "int32", _offsets, view="query_start_loc", staged=True),
        _spec("main.slot_mapping", "int64", _bucket, view="slot_mappings[0]"),
        _spec("main.block_table", "int32", _table, view="block_tables[0]", staged=True, **table),
        _spec(
            "main.req_id_per_token",
            "int32",
            _bucket,
            padding=Padding.OWN if fused else Padding.BUILT,
            top=rows,
            constant=True,
        ),
        _spec("main.seq_lens", "int32", _bucket, view="seq_lens", staged=True, padding=Padding.ADVANCES),
    ]
    if pooled:
        fields += [
            _spec("tail.seq_lens", "int32", _bucket, view="seq_lens", staged=True, padding=Padding.ADVANCES),
            _spec("tail.slot_mapping", "int64", _bucket),
            _spec("tail.positions", "int64", _bucket, view="positions", staged=True, padding=Padding.FREE),
        ]
    return tuple(fields)


def state_fields(dims: Dims) -> tuple[FieldSpec, ...]:
    """Return the fields of two KV-cache groups of state-space layers."""
    fields = []
    for group in range(STATE_GROUPS):
        fields += [
            _spec(f"state{group}.state_indices_tensor_d", "int32", _column, top=1),
            _spec(f"state{group}.seq_lens", "int32", _bucket, view="seq_lens", staged=True),
            _spec(f"state{group}.state_indices_tensor_p", "int32", lambda dims: (0,), staged=True),
        ]
    return tuple(fields)


def _given(value: object) -> Callable[[Dims, Inputs, bool], object]:
    return lambda dims, inputs, captured: value


def _rows(dims: Dims, inputs: Inputs, captured: bool) -> object:
    return dims.bucket


def _uniform(dims: Dims, inputs: Inputs, captured: bool) -> object:
    return captured or inputs.live in (0, dims.bucket)


def _packed(dims: Dims, inputs: Inputs, captured: bool) -> object:
    return native(dims) and not _uniform(dims, inputs, captured)


def _longest_query(dims: Dims, inputs: Inputs, captured: bool) -> object:
    return 1 if captured or inputs.live else 0


DRAFT_HOSTS = (
    HostSpec("indexer.num_decodes", _rows),
    HostSpec("indexer.num_decode_tokens", _rows),
    HostSpec("indexer.num_prefills", _given(0)),
    HostSpec("indexer.num_prefill_tokens", _given(0)),
    # A build of a batch with padded rows says so; the graph keeps what capture said of a full one.
    HostSpec("indexer.decode.decode_is_uniform", _uniform, frozen=True),
    HostSpec("indexer.decode.requires_padding", _packed, frozen=True),
    HostSpec("indexer.decode.write_max_decode_len", _longest_query, frozen=True),
    HostSpec("main.num_reqs", _rows),
    HostSpec("main.num_actual_tokens", _rows),
    HostSpec("main.num_decodes", _rows),
    HostSpec("main.num_decode_tokens", _rows),
    HostSpec("main.num_prefills", _given(0)),
    HostSpec("main.max_query_len", _longest_query, frozen=True),
    HostSpec("main.decode_max_query_len", _longest_query, frozen=True),
    *(HostSpec(f"{group}.max_seq_len", oracle.longest, frozen=True) for group in ("indexer", "main", "tail")),
    HostSpec("tail.num_decodes", _rows),
    HostSpec("tail.num_decode_tokens", _rows),
    HostSpec("tail.num_prefills", _given(0)),
)
"""Host values of a drafter's metadata; upper bounds of lengths are the longest that a model takes."""


def fields(dims: Dims) -> tuple[FieldSpec, ...]:
    """Return the fields that exist with these dimensions."""
    return state_fields(dims) if dims.path in STATE_PATHS else draft_fields(dims)


def hosts(dims: Dims) -> tuple[HostSpec, ...]:
    """Return the host values that are judged."""
    if dims.path in STATE_PATHS:
        return tuple(HostSpec(f"state{group}.num_decodes", _rows) for group in range(STATE_GROUPS))
    return DRAFT_HOSTS


def expected(dims: Dims, inputs: Inputs) -> dict[str, Any]:
    """Return the right value of every field at the draft step that `inputs` are at."""
    known = {field.name: field for field in fields(dims)}
    values = oracle.values(dims, inputs, ring_slots(dims.pool, dims.steps), known)
    return {name: values[name]() for name in known}


def advance(dims: Dims, inputs: Inputs, steps: int) -> Inputs:
    """Return the inputs after `steps` draft steps: every row one token longer each, up to the limit."""
    lengths = np.minimum(inputs.lengths + steps, dims.width)
    return replace(inputs, lengths=lengths, advanced=inputs.advanced + steps)


def _ahead(model: Model) -> int:
    return max(variant.steps for variant in model.variants) - 2


def _matters(case: Case) -> dict[str, Any]:
    return {"steps": case.variant.steps, "path": case.path}


def _several_steps(combination: Mapping[str, object], models: Mapping[str, Model]) -> bool:
    return combination["path"] in STATE_PATHS and combination["steps"] != 2


def _held_back(combination: Mapping[str, object], models: Mapping[str, Model]) -> bool:
    return combination["drill"] is Drill.DELAYED and combination["path"] is Path.MULTI_STEP


SPECIFICATION = Specification(
    fields=fields,
    expected=expected,
    axes={"fusion": (False,), "mode": (Mode.DECODE,), "kernel": (Kernel.FA3,)},
    ordinary={
        Path.MULTI_STEP: Path.MULTI_STEP,
        Path.FUSED_MULTI_STEP: Path.MULTI_STEP,
        Path.FUSED_REPAIRED: Path.MULTI_STEP,
        Path.INDEPENDENT: Path.INDEPENDENT,
        Path.BLOCK_TABLE_REUSE: Path.INDEPENDENT,
    },
    constraints=(
        Constraint("state-space layers have no draft steps: one step is all", _several_steps),
        Constraint("between the builds of `multi_step` no replay is held back", _held_back),
    ),
    advance=advance,
    ahead=_ahead,
    hosts=hosts,
    matters=_matters,
    padded_length=0,
    idle=False,
    goldens=False,
)
"""What `verify --sut vllm` plans and judges by."""
