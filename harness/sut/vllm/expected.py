"""What vLLM's paths declare of themselves: route, ledger and spans of one round.

Argued from the released code, per draft step and leaf; a leaf counts once for every operation that touches
its bytes.
"""

from __future__ import annotations

from harness.case import Case
from harness.fields import Dims, fields_for
from harness.observation import Expectation, LedgerEntry
from harness.sut.vllm.specification import STATE_GROUPS, STATE_PATHS, native
from harness.types import Path, Role


def expectation(case: Case, bucket: int) -> Expectation:
    """Return the declaration of one bucket's refresh."""
    dims, steps = Dims.of(case, bucket), case.backends
    padded: dict[str, int] = {}
    if case.path in STATE_PATHS:
        reuses = case.path is Path.BLOCK_TABLE_REUSE
        writes = _once(dims)
        spans = {"build": 1, "reuse": STATE_GROUPS - 1} if reuses else {"build": STATE_GROUPS}
    elif case.path.in_graph:  # one ledger of the whole capture
        writes = {name: steps * count for name, count in _updated(dims).items()}
        spans = {"slots": steps, "update": steps}
        return Expectation(case.path.value, _entries(writes, 1), spans, case.sharing_applies, ())
    else:
        writes, padded = _built(dims, full=True), _built(dims, full=False)
        spans = {"slots": steps, "build": steps}
    return Expectation(
        case.path.value, _entries(writes, steps), spans, case.sharing_applies, (),
        padded_writes=_entries(padded, steps),
    )  # fmt: skip


def _entries(counts: dict[str, int], steps: int) -> tuple[LedgerEntry, ...]:
    return tuple(LedgerEntry(step, name, count) for step in range(steps) for name, count in counts.items())


def _once(dims: Dims) -> dict[str, int]:
    return {name: 1 for name, field in fields_for(dims).items() if field.role is Role.REFRESHED}


def _built(dims: Dims, *, full: bool) -> dict[str, int]:
    """Return the writes of slot mappings and builds.

    Flattened, decode lengths are derived and then set to one; a batch with padded rows is expanded by torch
    operations, which set the padded part by one of their own. Pooled lengths are divided in place, pooled
    slots filled with padding before they are mapped.
    """
    counts, pooled = _once(dims), dims.pool > 1
    if not native(dims):
        counts["indexer.decode.decode_lens"] = 2
        counts["indexer.decode.block_table"] = 1 if full else 2
        counts["indexer.decode.seq_lens"] = 1 if full else 2
    if pooled:
        counts["indexer.decode.seq_lens"] += 1
        counts["indexer.slot_mapping"] = 2
    return counts


def _updated(dims: Dims) -> dict[str, int]:
    """Return the writes of slot mappings and updates.

    Decoded natively, the indexer's block table is the runner's, which the update copies onto itself. The
    released tail update divides, multiplies and adds in place; the repaired one copies.
    """
    counts, pooled = _once(dims), dims.pool > 1
    if native(dims):
        for name in ("indexer.decode.block_table", "indexer.block_table", "main.block_table"):
            counts[name] = 1
    if pooled:
        counts["indexer.slot_mapping"] = 2
        counts["tail.slot_mapping"] = 1 if dims.path is Path.FUSED_REPAIRED else 3
    return counts
