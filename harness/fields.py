"""The specification as data: every metadata field's dtype, shape, role, live region and comparator.

Nothing here computes a value (that is `oracle`) and nothing imports torch. Source: the project's
specification, section 2; names are those of SGLang's `DSAMetadata` and `KPoolWritePlan`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from harness.case import PHYSICAL_PAGE, Case, PlanRule
from harness.rounds import Inputs
from harness.specification import Specification, specification_of
from harness.types import Kernel, Mode, Path, Role

IntArray = NDArray[np.int64]


@dataclass(frozen=True)
class Dims:
    """Everything that shapes and live regions depend on."""

    mode: Mode
    kernel: Kernel
    pool: int
    """`P`."""
    topk: int
    """`K`, tokens."""
    width: int
    """`W`, tokens."""
    bucket: int
    draft_tokens: int
    """`N`."""
    num_sms: int
    plan: PlanRule
    own: Specification | None = None
    """What the system's metadata is where it is not DSA's."""
    steps: int = 0
    """Speculative steps, where the metadata depends on them."""
    path: Path | None = None
    """How it is refreshed, where padded rows depend on it."""

    @classmethod
    def of(cls, case: Case, bucket: int) -> Dims:
        """Return the dimensions of a case's metadata in one bucket."""
        geometry, own = case.geometry, specification_of(case.sut)
        dims = cls(
            mode=case.mode,
            kernel=case.kernel,
            pool=case.model.index_kpool,
            topk=geometry.topk,
            width=geometry.width,
            bucket=bucket,
            draft_tokens=case.metadata_tokens,
            num_sms=geometry.num_sms,
            plan=geometry.plan,
            own=own,
        )
        return dims if own is None else replace(dims, **own.matters(case))

    @property
    def expanded(self) -> bool:
        """Whether leaves have a row per draft token (target-verify, draft-extend)."""
        return self.mode is not Mode.DECODE

    @property
    def rows(self) -> int:
        """Rows of expanded leaves: bs in decode, bs * N otherwise."""
        return self.bucket * (self.draft_tokens if self.expanded else 1)

    @property
    def written(self) -> int:
        """Tokens that a forward writes per request: 1 in decode, N otherwise."""
        return self.draft_tokens if self.expanded else 1

    @property
    def pages(self) -> int:
        """Columns of `real_page_table`: ceil(W / 64)."""
        return -(-self.width // PHYSICAL_PAGE)


class Live(Enum):
    """Which elements of a leaf are defined after a refresh."""

    ALL = "all"
    TOKENS = "tokens"
    """Row r, columns j with j * unit < the row's live length; unit 1."""
    PAGES = "pages"
    """As TOKENS with unit 64."""
    POOLED_PAGES = "pooled_pages"
    """As TOKENS with unit 64 * P."""
    CANDIDATES = "candidates"
    """Write candidates whose page column is live."""
    PLAN = "plan"
    """Header and `count` rows in any order; nothing at all where no plan is written."""
    ELSEWHERE = "elsewhere"
    """No formula: the reference is the same planner run on the oracle's lengths."""
    MASKED = "masked"
    """What the field's own `mask` says."""


class Sharing(Enum):
    """Where the specification lets a leaf's bytes overlap others of the same backend."""

    OWN = "own"
    VIEW_OF_LENGTHS = "view_of_lengths"
    """Within a step: a view of `cache_seqlens_int32` (decode)."""
    VIEW_OF_EXPANDED = "view_of_expanded"
    """Within a step: a view of `dsa_seqlens_expanded` (target-verify, draft-extend)."""
    BUCKET_SLICE = "bucket_slice"
    """Across buckets of one backend: a slice of one buffer."""
    RUNNER_VIEW = "runner_view"
    """A view of a buffer of the runner's (`FieldSpec.view_of`), as others may be, in every bucket."""


class Padding(Enum):
    """What a leaf's padded rows hold."""

    BUILT = "built"
    """What an ordinary build gives for a row that holds no request."""
    ADVANCES = "advances"
    """What it would give for a request on null blocks that has as many tokens as draft steps have passed."""
    CAPTURED = "captured"
    """What it gives for a captured row: as if the row held a request."""
    OWN = "own"
    """A value of their own, given by the oracle."""
    FREE = "free"
    """Anything: never compared."""


def _always(dims: Dims) -> bool:
    return True


def _own(dims: Dims) -> Sharing:
    return Sharing.OWN


@dataclass(frozen=True)
class FieldSpec:
    """One metadata field."""

    name: str
    dtype: str
    shape: Callable[[Dims], tuple[int, ...]]
    role: Role = Role.REFRESHED
    live: Live = Live.ALL
    exists: Callable[[Dims], bool] = _always
    sharing: Callable[[Dims], Sharing] = _own
    plan_lengths: str = ""
    """For plans: the field whose rows are planned."""
    init_once_first: bool = False
    """Element 0 is written when the buffer is made and by no copy path: never poison, always compare."""
    derived: bool = False
    """Derived from lengths or tables rather than copied from the precomputed base fields."""
    mask: Callable[[Dims, Inputs], NDArray[np.bool_]] | None = None
    """With `Live.MASKED`: which elements a refresh defines, bool of the leaf's shape."""
    padding: Padding = Padding.BUILT
    view_of: str = ""
    """The runner's buffer that the leaf is a view of: its name below `runner` in the backend's state."""
    constant: bool = False
    """Whether every refresh gives the same value: that it was left out shows by the sentinel alone."""
    top: int = 0
    """Highest value that is safe to read by mistake; 0: as the name says (`probe.sentinels`)."""


def _pooled(dims: Dims) -> bool:
    return dims.pool > 1


def _pooled_decode(dims: Dims) -> bool:
    return dims.pool > 1 and dims.mode is Mode.DECODE


def _pooled_table(dims: Dims) -> bool:
    return dims.pool > 1 and dims.mode is not Mode.DRAFT_EXTEND


def _pooled_expanded(dims: Dims) -> bool:
    return dims.pool > 1 and dims.expanded


def _pooled_extend(dims: Dims) -> bool:
    return dims.pool > 1 and dims.mode is Mode.DRAFT_EXTEND


def _flashmla(dims: Dims) -> bool:
    return dims.kernel is Kernel.FLASHMLA_KV and dims.pool == 1


def _slice(dims: Dims) -> Sharing:
    return Sharing.BUCKET_SLICE


def _slice_in_decode(dims: Dims) -> Sharing:
    return Sharing.BUCKET_SLICE if dims.mode is Mode.DECODE else Sharing.OWN


def _expanded_view(dims: Dims) -> Sharing:
    return Sharing.OWN if dims.expanded else Sharing.VIEW_OF_LENGTHS


def _ctx_view(dims: Dims) -> Sharing:
    return Sharing.VIEW_OF_EXPANDED if dims.expanded else Sharing.VIEW_OF_LENGTHS


def _bucket(dims: Dims) -> tuple[int, ...]:
    return (dims.bucket,)


def _bucket_offsets(dims: Dims) -> tuple[int, ...]:
    return (dims.bucket + 1,)


def _rows(dims: Dims) -> tuple[int, ...]:
    return (dims.rows,)


def _row_offsets(dims: Dims) -> tuple[int, ...]:
    return (dims.rows + 1,)


def _schedule(dims: Dims) -> tuple[int, ...]:
    return (dims.num_sms + 1, 2)


def _plan(dims: Dims) -> tuple[int, ...]:
    return (dims.rows + 1, 2)


FIELDS: tuple[FieldSpec, ...] = (
    FieldSpec("cache_seqlens_int32", "int32", _bucket),
    FieldSpec("cu_seqlens_q", "int32", _row_offsets, role=Role.INIT_ONCE, sharing=_slice_in_decode),
    FieldSpec("dsa_cu_seqlens_q", "int32", _row_offsets, role=Role.INIT_ONCE, sharing=_slice),
    FieldSpec("cu_seqlens_k", "int32", _bucket_offsets, init_once_first=True),
    FieldSpec("page_table_1", "int32", lambda d: (d.rows, d.width), live=Live.TOKENS, sharing=_slice),
    FieldSpec("real_page_table", "int32", lambda d: (d.rows, d.pages), live=Live.PAGES),
    FieldSpec("dsa_cache_seqlens_int32", "int32", _rows),
    FieldSpec("dsa_cu_seqlens_k", "int32", _row_offsets, init_once_first=True),
    FieldSpec("dsa_seqlens_expanded", "int32", _rows, sharing=_expanded_view),
    FieldSpec("paged_mqa_ctx_lens_2d", "int32", lambda d: (d.rows, 1), sharing=_ctx_view),
    FieldSpec("paged_mqa_schedule_metadata", "int32", _schedule, derived=True),
    FieldSpec(
        "topk_v2_plan", "int32", _plan,
        live=Live.PLAN, plan_lengths="dsa_seqlens_expanded", derived=True,
    ),
    FieldSpec(
        "flashmla_metadata.flashmla_metadata", "int32", lambda d: (d.num_sms, 8),
        live=Live.ELSEWHERE, exists=_flashmla, sharing=_slice, derived=True,
    ),
    FieldSpec(
        "flashmla_metadata.num_splits", "int32", _row_offsets,
        live=Live.ELSEWHERE, exists=_flashmla, sharing=_slice, derived=True,
    ),
    FieldSpec("pooled_cache_seqlens_int32", "int32", _bucket, exists=_pooled_decode, derived=True),
    FieldSpec(
        "pooled_real_page_table", "int32", lambda d: (d.rows, -(-d.pages // d.pool)),
        live=Live.POOLED_PAGES, exists=_pooled_table, derived=True,
    ),
    FieldSpec(
        "pooled_paged_mqa_schedule_metadata", "int32", _schedule,
        exists=_pooled_decode, derived=True,
    ),
    FieldSpec(
        "pooled_topk_v2_plan", "int32", _plan,
        live=Live.PLAN, exists=_pooled_decode, plan_lengths="pooled_cache_seqlens_int32", derived=True,
    ),
    FieldSpec("kpool_write_plan.req", "int64", _bucket, exists=_pooled, derived=True),
    FieldSpec("kpool_write_plan.write_start", "int32", _bucket, exists=_pooled, derived=True),
    FieldSpec("kpool_write_plan.tail_logical_start", "int32", _bucket, exists=_pooled, derived=True),
    FieldSpec(
        "kpool_write_plan.write_loc", "int64", lambda d: (d.bucket, -(-d.written // d.pool)),
        live=Live.CANDIDATES, exists=_pooled, derived=True,
    ),
    FieldSpec("kpool_write_plan.seqlens_per_q", "int32", _rows, exists=_pooled_expanded, derived=True),
    FieldSpec("kpool_write_plan.pool_seqlens_per_q", "int32", _rows, exists=_pooled_expanded, derived=True),
    FieldSpec(
        "kpool_write_plan.pool_schedule_metadata", "int32", _schedule,
        exists=_pooled_expanded, derived=True,
    ),
    FieldSpec(
        "kpool_write_plan.pool_topk_v2_plan", "int32", _plan,
        live=Live.PLAN, exists=_pooled_expanded,
        plan_lengths="kpool_write_plan.pool_seqlens_per_q", derived=True,
    ),
    FieldSpec(
        "kpool_write_plan.effective_n_per_batch", "int32", _bucket,
        exists=_pooled_extend, derived=True,
    ),
)  # fmt: skip

RUNNER = "runner"
"""Name, in a backend's state, below which the buffers hang that belong to the runner."""
COUNTER = "multi_ctas_kv_counter_buffer"
"""The KV counter's leaf name: per backend, never shared, zero before and after every launch."""


def fields_for(dims: Dims) -> dict[str, FieldSpec]:
    """Return the fields that exist with these dimensions, by name, in the specification's order."""
    known = FIELDS if dims.own is None else dims.own.fields
    if callable(known):
        known = known(dims)
    return {field.name: field for field in known if field.exists(dims)}


def plan_is_written(dims: Dims) -> bool:
    """Whether a refresh writes top-k plans at all with this many rows; else their content is undefined."""
    return dims.plan.min_rows <= dims.rows <= dims.plan.max_rows


def row_lengths(dims: Dims, inputs: Inputs) -> IntArray:
    """Live length of every leaf row, tokens, int64 `[rows]`: how far the row's page tables are defined."""
    lengths = inputs.lengths + (dims.draft_tokens if dims.mode is Mode.TARGET_VERIFY else 0)
    return np.repeat(lengths, dims.rows // dims.bucket).astype(np.int64)


def write_starts(dims: Dims, inputs: Inputs) -> IntArray:
    """First token position that the forward writes, int64 `[bs]`."""
    offset = {Mode.DECODE: -1, Mode.TARGET_VERIFY: 0, Mode.DRAFT_EXTEND: -dims.draft_tokens}
    return inputs.lengths + offset[dims.mode]


def live_mask(field: FieldSpec, dims: Dims, inputs: Inputs) -> NDArray[np.bool_] | None:
    """Return which elements of the leaf are defined, bool of the leaf's shape; None means all of them.

    Plans have no mask (`canonical_plan` picks their rows); ELSEWHERE leaves are wholly defined. Padded rows
    that may hold anything are not.
    """
    mask = _live_columns(field, dims, inputs)
    if field.padding is not Padding.FREE or inputs.live == dims.bucket:
        return mask
    shape = field.shape(dims)
    rows = np.arange(shape[0]) < inputs.live * (dims.rows // dims.bucket)
    live = np.broadcast_to(rows.reshape(-1, *[1] * (len(shape) - 1)), shape)
    return live if mask is None else live & mask


def _live_columns(field: FieldSpec, dims: Dims, inputs: Inputs) -> NDArray[np.bool_] | None:
    if field.live is Live.MASKED:
        return None if field.mask is None else field.mask(dims, inputs)
    unit = {Live.TOKENS: 1, Live.PAGES: PHYSICAL_PAGE, Live.POOLED_PAGES: PHYSICAL_PAGE * dims.pool}
    if field.live in unit:
        columns = np.arange(field.shape(dims)[1], dtype=np.int64) * unit[field.live]
        return np.asarray(columns[None, :] < row_lengths(dims, inputs)[:, None])
    if field.live is Live.CANDIDATES:
        lengths = row_lengths(dims, inputs)[:: dims.rows // dims.bucket]
        candidates = np.arange(field.shape(dims)[1], dtype=np.int64)
        pools = write_starts(dims, inputs)[:, None] // dims.pool + candidates[None, :]
        return np.asarray((pools // PHYSICAL_PAGE) * dims.pool * PHYSICAL_PAGE < lengths[:, None])
    return None


def canonical(
    field: FieldSpec, dims: Dims, inputs: Inputs, values: NDArray[np.generic]
) -> NDArray[np.generic]:
    """Return a leaf's defined elements as a vector in a fixed order, what snapshots keep and checks compare.

    `values` has the leaf's shape. A plan gives its header followed by its first `count` rows sorted
    by row number (flattened), `count` clipped to what the buffer can hold; nothing where none is
    written. The other fields give their live elements in row-major order.
    """
    if field.live is Live.PLAN:
        return _canonical_plan(values) if plan_is_written(dims) else values.reshape(-1)[:0]
    mask = live_mask(field, dims, inputs)
    return values.reshape(-1) if mask is None else values[mask]


def _canonical_plan(values: NDArray[np.generic]) -> NDArray[np.generic]:
    count = int(np.clip(int(values[0, 1]), 0, values.shape[0] - 1))
    rows = values[1 : count + 1]
    order = np.lexsort((rows[:, 1], rows[:, 0]))
    plan: NDArray[np.generic] = np.concatenate([values[:1], rows[order]]).reshape(-1)
    return plan


def position(field: FieldSpec, dims: Dims, inputs: Inputs, index: int) -> tuple[int, int]:
    """Return (row, column) of a canonical vector's element; for plans (canonical row, column)."""
    if field.live is Live.PLAN:
        return divmod(index, 2)
    mask = live_mask(field, dims, inputs)
    flat = index if mask is None else int(np.flatnonzero(mask)[index])
    shape = field.shape(dims)
    return divmod(flat, shape[1]) if len(shape) > 1 else (flat, 0)
