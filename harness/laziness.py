"""Which rounds would catch a refresh that is skipped or shortened while some key stays equal.

A programmer skips work when "nothing changed" and judges that by something cheap: the batch size,
the lengths' sum, the request ids, the page counts (`keys.KEYS`). For every refreshed field and every
such key a program must hold two consecutive rounds of one bucket that agree in the key and differ
in the field. Where the field is a function of the key there can be no such pair: those are `RULES`,
each with its argument.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from harness.fields import FIELDS, Dims, FieldSpec, Live, fields_for, plan_is_written
from harness.keys import KEYS, SEGMENT
from harness.rounds import Inputs
from harness.types import Mode, Role

_TABLES = frozenset(
    {"page_table_1", "real_page_table", "pooled_real_page_table", "kpool_write_plan.write_loc"}
)
_REQUESTS = frozenset({"kpool_write_plan.req"})
_ACCEPTED = frozenset({"kpool_write_plan.effective_n_per_batch"})
_SCHEDULE = frozenset({"paged_mqa_schedule_metadata"})
_SPARSE = frozenset({"dsa_cache_seqlens_int32", "dsa_cu_seqlens_k"})
_POOLED_DECODE = frozenset(
    {"pooled_cache_seqlens_int32", "pooled_paged_mqa_schedule_metadata", "pooled_topk_v2_plan"}
)
_TAIL = frozenset({"kpool_write_plan.tail_logical_start"})

_PLANS = frozenset(field.name for field in FIELDS if field.live is Live.PLAN)

_ONE_ROW = {
    "max_length": "lengths",
    "min_length": "lengths",
    "sum_length": "lengths",
    "first_length": "lengths",
    "last_length": "lengths",
    "live_and_max": "lengths",
    "sorted_lengths": "lengths",
    "request_set": "requests",
    "requests_and_sum": "lengths_and_requests",
    "total_pages": "pages",
    "max_pages": "pages",
    "total_segments": "segments",
}
"""Bucket 1: keys that say as much as another key."""
_ONE_POOL = {
    "pooled_lengths": "lengths",
    "pooled_pages": "pages",
    "pooled_segments": "host_segments",
}
"""P = 1: the same."""


def same_as(key: str, dims: Dims) -> str:
    """Return the key that `key` comes to with one row or without pools (itself in general)."""
    if dims.bucket == 1:
        key = _ONE_ROW.get(key, key)
    if dims.pool == 1:
        key = _ONE_POOL.get(key, key)
    return "pages" if key == "host_pages" and dims.mode is not Mode.TARGET_VERIFY else key


@dataclass(frozen=True)
class Rule:
    """Why no two rounds can agree in a key and differ in a field."""

    keys: frozenset[str]
    covers: Callable[[str, Dims], bool]
    """Whether it speaks about a field (by name)."""
    reason: str


def _decode(dims: Dims) -> bool:
    return dims.mode is Mode.DECODE


def _of_lengths(field: str, dims: Dims) -> bool:
    return field not in _TABLES | _REQUESTS | _ACCEPTED


RULES: tuple[Rule, ...] = (
    Rule(
        frozenset({"lengths", "lengths_and_requests"}),
        _of_lengths,
        "the field is computed from the lengths alone",
    ),
    Rule(
        frozenset(
            {
                "requests",
                "lengths_and_requests",
                "requests_and_sum",
                "requests_and_pages",
                "table_and_requests",
            }
        ),
        lambda field, dims: field in _REQUESTS,
        "the field is the request rows",
    ),
    Rule(
        frozenset({"batch_and_page_set"}),
        lambda field, dims: field not in _TABLES - {"kpool_write_plan.write_loc"},
        "the field is computed from the batch and the pages that it writes",
    ),
    Rule(
        frozenset({"accepted"}),
        lambda field, dims: field in _ACCEPTED,
        "the field is the accepted tokens",
    ),
    Rule(
        frozenset({"segments"}),
        lambda field, dims: field in _SCHEDULE,
        "the schedule is computed from the segments per row",
    ),
    Rule(
        frozenset({"host_segments", "pages", "requests_and_pages", "pooled_pages"}),
        lambda field, dims: field in _SCHEDULE and _decode(dims),
        "in decode ceil(L/256) follows from ceil(L/64), and from ceil(L/64P) where P is 1 or 4",
    ),
    Rule(
        frozenset({"table_width"}),
        lambda field, dims: field in _SCHEDULE and _decode(dims) and dims.bucket == 1,
        "one row in decode: ceil(L/256) follows from ceil(L/128)",
    ),
    Rule(
        frozenset({"pooled_lengths"}),
        lambda field, dims: field in _POOLED_DECODE,
        "the field is computed from L // P",
    ),
    Rule(
        frozenset({"pooled_segments"}),
        lambda field, dims: field == "pooled_paged_mqa_schedule_metadata",
        "the schedule is computed from the pooled segments per row",
    ),
    Rule(
        frozenset({"pooled_lengths"}),
        lambda field, dims: (
            field in _TAIL
            and dims.mode is not Mode.DECODE
            and (dims.mode is Mode.TARGET_VERIFY or dims.draft_tokens % dims.pool == 0)
        ),
        "(write_start // P) * P follows from L // P where write_start is L less a multiple of P",
    ),
    Rule(
        frozenset({"capped_lengths"}),
        lambda field, dims: field in _SPARSE and dims.pool == 1 and dims.mode is not Mode.DRAFT_EXTEND,
        "P = 1: sparse lengths are capped at K themselves, and no row sees less than L",
    ),
    Rule(
        frozenset({"first_table_row"}),
        lambda field, dims: field not in _REQUESTS | _ACCEPTED and dims.bucket == 1,
        "the live part of the only row holds its length and pages",
    ),
    Rule(
        frozenset(KEYS),
        lambda field, dims: field in _PLANS and not plan_is_written(dims),
        "no plan is written for so few or so many rows: its content is undefined",
    ),
    Rule(
        frozenset(KEYS),
        lambda field, dims: (
            field in _PLANS and "pool" in field and dims.width // dims.pool <= dims.plan.candidates[0][0]
        ),
        "no pooled length can exceed the smallest threshold: the plan is always (threshold, 0)",
    ),
    Rule(
        frozenset(KEYS),
        lambda field, dims: (
            field.endswith("schedule_metadata")
            and field not in _SCHEDULE
            and dims.width // dims.pool <= SEGMENT
        ),
        "every row has one pooled segment at this width",
    ),
)
"""Pairs that logic rules out. A test looks for counterexamples to each."""


def judged_fields(dims: Dims) -> dict[str, FieldSpec]:
    """Return the fields that rounds must expose: refreshed, and with a formula to tell their values."""
    return {
        name: field
        for name, field in fields_for(dims).items()
        if field.role is Role.REFRESHED and field.live is not Live.ELSEWHERE
    }


def excluded(field: str, key: str, dims: Dims) -> str:
    """Return why the field cannot change while the key stays equal; empty if it can."""
    meant = same_as(key, dims)
    return next((r.reason for r in RULES if meant in r.keys and r.covers(field, dims)), "")


def required_pairs(dims: Dims) -> set[tuple[str, str]]:
    """Return the (field, key) pairs that a program has to expose."""
    return {(field, key) for field in judged_fields(dims) for key in KEYS if not excluded(field, key, dims)}


@dataclass(frozen=True)
class Seen:
    """A round reduced to what pairs of rounds are compared by."""

    values: Mapping[str, bytes]
    """By field: its defined elements."""
    keys: Mapping[str, Hashable]


def see(inputs: Inputs, dims: Dims, values: Mapping[str, NDArray[np.generic]]) -> Seen:
    """Reduce a round; `values` are its defined elements by field, as `fields.canonical` orders them."""
    kept = {name: values[name].tobytes() for name in judged_fields(dims)}
    return Seen(kept, {name: key(inputs, dims) for name, key in KEYS.items()})


def exposed(before: Seen, after: Seen) -> Iterator[tuple[str, str]]:
    """Yield the (field, key) pairs whose laziness a step from one round to another exposes."""
    changed = [name for name, value in before.values.items() if after.values[name] != value]
    equal = [name for name, key in before.keys.items() if after.keys[name] == key]
    return ((field, key) for field in changed for key in equal)


def uncovered(rounds: Sequence[Seen], dims: Dims) -> set[tuple[str, str]]:
    """Return the required pairs that no two consecutive rounds (all of one bucket) expose."""
    found = {pair for a, b in pairwise(rounds) for pair in exposed(a, b)}
    return required_pairs(dims) - found
