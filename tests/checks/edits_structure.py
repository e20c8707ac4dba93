"""Edits of where memory lies and who writes it."""

from __future__ import annotations

from dataclasses import replace

from harness.fields import COUNTER
from harness.observation import Change, HostFact, LedgerEntry, Span
from tests.checks.edit import (
    LAST,
    OFTEN,
    REPLAY,
    Edit,
    doing,
    everywhere,
    freed,
    host,
    hosts,
    put,
    recaptured,
    recaptured_at_once,
    stray,
    walked,
)
from tests.checks.sheet import leaves, more

EDITS: dict[str, tuple[str, Edit]] = {
    # address
    "host wrong": ("shared", put("expectation.host_values", {"max_seq_len_k": "2048"})),
    "host wrong twice": ("shared", put("expectation.host_values", {"max_seq_len_k": "8", "nothing": "0"})),
    "host wrong in failed capture": (
        "shared",
        doing(put("expectation.host_values", {"max_seq_len_k": "2048"}), put("captures.0.error", "broken")),
    ),
    "host wrong in one bucket": (
        "switched",
        doing(
            put(
                "other_buckets",
                lambda other: {b: replace(e, host_values={"page_size": "32"}) for b, e in other.items()},
            )
        ),
    ),
    "leaf gone": ("shared", walked(LAST, leaves("cu_seqlens_k", 1))),
    "state leaf gone": ("shared", walked(LAST, leaves("page_table", 0))),
    "leaf of other bucket gone": ("switched", walked(LAST, leaves("cu_seqlens_k", bucket=2))),
    "leaf moved": ("shared", walked(LAST, leaves("cu_seqlens_k", 0, region=99))),
    "leaf shifted": ("shared", walked(REPLAY, leaves("cu_seqlens_k", 0, start=4, stop=24))),
    "leaf reshaped": (
        "shared",
        walked("rounds.1.replay", leaves("cu_seqlens_k", shape=(6,), stride=(2,), dtype="int64")),
    ),
    "state leaf moved": ("shared", walked(LAST, leaves("cu_seqlens_q", 0, 0, region=98))),
    "recaptured": ("shared", recaptured),
    "recaptured at once": ("shared", recaptured_at_once),
    "empty leaf elsewhere": (
        "shared",
        doing(
            everywhere(more(*(stray(step, 4, "aaa", 4, 8, 8) for step in range(3)))),
            walked(LAST, leaves("aaa", region=50), leaves("cu_seqlens_k", 0, region=99)),
        ),
    ),
    "empty leaf of another shape": (
        "shared",
        doing(
            everywhere(more(*(stray(step, 4, "aaa", 4, 8, 8) for step in range(3)))),
            walked(LAST, leaves("aaa", region=50, shape=(0, 2))),
        ),
    ),
    "empty leaf freed": (
        "shared",
        doing(
            everywhere(more(*(stray(step, 4, "aaa", 4, 8, 8) for step in range(3)))),
            walked(LAST, freed((1, 4, "aaa"), (1, 4, "nobody knows"), (2, 4, "cu_seqlens_k"))),
        ),
    ),
    "freed": (
        "shared",
        walked(LAST, freed((1, 4, "topk_v2_plan"), (0, 0, "page_table"), (2, 2, "cu_seqlens_k"))),
    ),
    "host late": ("shared", walked(LAST, hosts(HostFact(1, 4, "late", "7"), HostFact(1, 2, "other", "7")))),
    "host changed": ("shared", walked(LAST, host("max_seq_len_k", "2048", 1))),
    "leaf became host": (
        "shared",
        walked(LAST, leaves("topk_v2_plan", 1), hosts(HostFact(1, 4, "topk_v2_plan", "None"))),
    ),
    "walk missing": ("shared", doing(put(f"{LAST}.walk", 9), put("rounds.1.refreshes.0.walk", 1))),
    # aliasing
    "own leaf": ("shared", everywhere(leaves("topk_v2_plan", 1, region=50))),
    "own leaf by stride": ("shared", everywhere(leaves("real_page_table", 2, stride=(17, 1)))),
    "own leaf by dtype": ("shared", everywhere(leaves("cu_seqlens_k", 2, dtype="uint32"))),
    "missing in step 1": ("shared", everywhere(leaves("topk_v2_plan", 1))),
    "missing in step 0": ("shared", everywhere(leaves("topk_v2_plan", 0))),
    "owns state": (
        "shared",
        everywhere(
            more(
                stray(1, 0, "page_table", 60, 8, 24),
                stray(2, 0, "empty", 61, 8, 8),
                stray(0, 0, "first", 62, 0, 8),
            )
        ),
    ),
    "owns allowed state": ("counted", everywhere(more(stray(1, 0, COUNTER, 60, 8, 24)))),
    "steps overlap": ("copied", everywhere(leaves("topk_v2_plan", 1, region=3, start=8, stop=20))),
    "steps touch": ("copied", everywhere(leaves("topk_v2_plan", 1, region=3, start=16, stop=20))),
    "counter in leaf": ("counted", everywhere(leaves(COUNTER, 1, region=3))),
    "counter of state": ("counted", everywhere(leaves(COUNTER, 0, region=1, start=4, stop=8))),
    "counter small": ("counted", everywhere(leaves(COUNTER, 1, shape=(2, 8)), leaves(COUNTER, 2))),
    "counter just large": (
        "counted",
        doing(
            put("expectation.counter_elements", 16),
            everywhere(leaves(COUNTER, 1, shape=(2, 8))),
            everywhere(leaves(COUNTER, 2, shape=(15,))),
        ),
    ),
    "counter of a bucket": (
        "counted",
        everywhere(leaves(COUNTER, 1), more(stray(1, 4, COUNTER, 60, 0, 1 << 16))),
    ),
    "counter missing where one element is enough": (
        "counted",
        doing(put("expectation.counter_elements", 1), everywhere(leaves(COUNTER, 2))),
    ),
    "empty leaf inside another": (
        "shared",
        everywhere(more(*(stray(step, 4, "empty", 4, 8, 8) for step in range(3)))),
    ),
    "wrong active after a missing walk": (
        "shared",
        doing(
            put("rounds.0.refreshes.0.walk", 99),
            walked("rounds.0.refreshes.1", lambda walk: replace(walk, active=(4, -1, 4))),
        ),
    ),
    "leaves overlap": ("shared", everywhere(leaves("topk_v2_plan", region=8, start=68, stop=108))),
    "undeclared view": ("shared", everywhere(leaves("cu_seqlens_k", region=3))),
    "view of the wrong base": (
        "verify",
        everywhere(leaves("paged_mqa_ctx_lens_2d", region=3, start=0, stop=16)),
    ),
    "buckets overlap": ("switched", everywhere(leaves("topk_v2_plan", bucket=2, region=3))),
    "buckets share": ("switched", everywhere(leaves("real_page_table", region=5, start=0, stop=64))),
    "buckets share across": (
        "switched",
        everywhere(leaves("cu_seqlens_q", bucket=2, region=0, start=0, stop=12)),
    ),
    "wrong active": ("switched", walked(LAST, lambda walk: replace(walk, active=(4, 2, -1)))),
    "active overtaken": (
        "in_graph",
        doing(
            put("rounds.1.replay.delayed", True),
            walked("rounds.1.refreshes.0", lambda walk: replace(walk, active=(2, 2, 2))),
            walked("rounds.2.refreshes.0", lambda walk: replace(walk, active=(2, 4, 4))),
        ),
    ),
    "active of delayed": (
        "delayed",
        walked("rounds.1.refreshes.0", lambda walk: replace(walk, active=(2, 4, 4))),
    ),
    "nothing to share but wrong": ("verify", everywhere(leaves("topk_v2_plan", region=3))),
    # refresh
    "written again": (
        "shared",
        put(f"{LAST}.ledger", lambda all_: (replace(all_[1], writes=3), *all_[2:], OFTEN)),
    ),
    "written again in graph": ("in_graph", put("captures.0.refresh_writes", lambda all_: (*all_[2:], OFTEN))),
    "written in graph after all": ("in_graph", put(f"{LAST}.ledger", ())),
    "healthy in graph, two buckets": ("in_graph_switched", doing()),
    "written in another bucket": (
        "switched",
        put(
            "other_buckets",
            lambda other: {bucket: replace(one, writes=one.writes[1:]) for bucket, one in other.items()},
        ),
    ),
    "written in another bucket in graph": (
        "in_graph_switched",
        put(
            "other_buckets",
            lambda other: {bucket: replace(one, writes=one.writes[1:]) for bucket, one in other.items()},
        ),
    ),
    "written where there is padding": (
        "shared",
        put("expectation.padded_writes", (LedgerEntry(0, "padding", 1), LedgerEntry(1, "cu_seqlens_k", 2))),
    ),
    "span empty, of no path": ("shared", put(f"{LAST}.spans", lambda all_: (*all_, Span("own", 1, 0)))),
    "span twice": ("shared", put(f"{LAST}.spans", lambda all_: (*all_, *all_[:1], Span("own", 1, 3)))),
    "span missing": ("shared", put(f"{LAST}.spans", lambda all_: all_[1:])),
    "span empty": (
        "shared",
        put(f"{LAST}.spans", (Span("direct_build", 1, 0), Span("derived_refresh", 0, 1))),
    ),
    "span empty, undeclared": (
        "shared",
        put(f"{LAST}.spans", lambda all_: (*all_, Span("precompute", 0, 0))),
    ),
    "spans of no path": (
        "shared",
        put(f"{LAST}.spans", lambda all_: (*all_, Span("refresh", 0, 1), Span("forward", 0, 1))),
    ),
    "span empty in graph": ("in_graph", put("captures.0.refresh_spans", (Span("direct_build", 2, 0),))),
    "staged": ("shared", put(f"{LAST}.staging", (OFTEN, LedgerEntry(2, "req", 2)))),
    "refresh wrote input": ("shared", put(f"{LAST}.inputs_changed", ("seq_lens", "out_cache_loc"))),
    "unattributed": ("in_graph", put(f"{LAST}.unattributed", ((1, "topk_v2_plan", 12),))),
    # readonly
    "forward wrote": (
        "shared",
        put(
            "captures.0.forward_writes",
            (
                LedgerEntry(0, COUNTER, 1),
                LedgerEntry(0, f"nested/{COUNTER}", 1),
                LedgerEntry(1, "real_page_table", 2),
            ),
        ),
    ),
    "forward bound": (
        "shared",
        doing(
            put(
                "walks",
                lambda walks: (
                    *walks,
                    replace(
                        walks[0],
                        leaves=(
                            *leaves("topk_v2_plan", 1, region=44)(leaves("cu_seqlens_k", 2)(walks[0])).leaves,
                            stray(0, 4, "brand_new", 45, 0, 8),
                        ),
                        hosts=(
                            *host("page_size", "1", 1)(walks[0]).hosts,
                            HostFact(0, 4, "fresh", "3"),
                            HostFact(2, 4, "req", "1"),
                        ),
                    ),
                ),
            ),
            put("captures.0.walk", 1),
        ),
    ),
    "forward replaced a leaf by a value": (
        "shared",
        doing(
            put(
                "walks",
                lambda walks: (
                    *walks,
                    leaves("topk_v2_plan", 1)(hosts(HostFact(1, 4, "topk_v2_plan", "None"))(walks[0])),
                ),
            ),
            put("captures.0.walk", 1),
        ),
    ),
    "failed capture": (
        "shared",
        doing(put("captures.0.error", "broken"), walked("captures.0", leaves("topk_v2_plan"))),
    ),
    "replay wrote input": ("shared", put(f"{REPLAY}.inputs_changed", ("req_pool_indices",))),
    "replay wrote bytes": (
        "shared",
        put(f"{REPLAY}.changed", (Change(1, "real_page_table", 12, 3), Change(2, "cu_seqlens_k", 4, 0))),
    ),
    "replay wrote bytes after a round without one": (
        "shared",
        doing(put("rounds.0.replay", None), put(f"{REPLAY}.changed", (Change(1, "real_page_table", 12, 3),))),
    ),
    "counter dirty": ("counted", put("rounds.1.replay.counter_nonzero", ((1, 0, 5), (2, 1, 1)))),
}
