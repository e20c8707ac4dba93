"""Edits of what leaves hold, and of what steps read and compute."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tests.checks.edit import (
    LAST,
    REPLAY,
    Edit,
    alone,
    cells,
    doing,
    late_by_a_round,
    like_ordinary,
    next_value,
    old_value,
    ordinary_of_steps,
    ordinary_put,
    ordinary_without,
    put,
    raw_outputs,
)
from tests.checks.sheet import plus

EDITS: dict[str, tuple[str, Edit]] = {
    # freshness
    "poison left": ("shared", cells(f"{LAST}.cells", "cu_seqlens_k", array=plus(7, 2), poisoned=1)),
    "poison left but right": ("shared", cells(f"{LAST}.cells", "cu_seqlens_k", poisoned=2)),
    "stale": ("shared", old_value(1, "paged_mqa_schedule_metadata")),
    "stale of the first": ("shared", old_value(0, "topk_v2_plan")),
    "stale of capture": (
        "shared",
        cells(f"{LAST}.cells", "cache_seqlens_int32", array=np.ones_like),
    ),
    "stale in one step": (
        "copied",
        doing(
            old_value(0, "cu_seqlens_k"),
            cells("rounds.1.refreshes.0.cells", "dsa_cu_seqlens_k", 2, array=plus(1)),
        ),
    ),
    # equivalence
    "wrong value": ("shared", cells(f"{LAST}.cells", "cu_seqlens_k", array=plus(1, 3))),
    "wrong in a table": ("shared", cells(f"{LAST}.cells", "real_page_table", 2, array=plus(5, 17))),
    "wrong in a plan": ("shared", cells(f"{LAST}.cells", "topk_v2_plan", array=plus(5, 3))),
    "wrong everywhere": ("shared", cells(f"{LAST}.cells", "cache_seqlens_int32", array=lambda old: old + 1)),
    "wrong dtype": ("shared", cells(f"{LAST}.cells", "cu_seqlens_k", array=lambda old: old.astype(np.int64))),
    "wrong shape": ("shared", cells(f"{LAST}.cells", "cu_seqlens_k", array=lambda old: old[:-1])),
    "wrong in two rounds": (
        "shared",
        doing(
            cells("rounds.1.refreshes.0.cells", "cu_seqlens_k", 1, array=plus(1)),
            cells(f"{LAST}.cells", "cu_seqlens_k", 2, array=plus(2, 1)),
            cells(f"{LAST}.cells", "topk_v2_plan", 1, array=plus(2, 1)),
        ),
    ),
    "wrong in the first of two refreshes": (
        "shared",
        cells("rounds.0.refreshes.0.cells", "cu_seqlens_k", 1, array=plus(1)),
    ),
    "wrong in the second of two refreshes": (
        "shared",
        cells("rounds.0.refreshes.1.cells", "cu_seqlens_k", 1, array=plus(1)),
    ),
    "wrong in another bucket": (
        "switched",
        cells("rounds.1.refreshes.0.cells", "cu_seqlens_k", 1, array=plus(1)),
    ),
    "unknown leaf": ("shared", cells(f"{LAST}.cells", "cu_seqlens_k", 2, name="cu_seqlens_v")),
    "reference differs": (
        "flash",
        cells(f"{LAST}.cells", "flashmla_metadata.num_splits", 1, array=plus(1, 2)),
    ),
    "reference missing": (
        "flash",
        put("references", lambda all_: {k: v for k, v in all_.items() if "num_splits" not in k}),
    ),
    "ordinary lost the first round": ("shared", ordinary_put("rounds", lambda rounds: rounds[1:])),
    "ordinary lost a round": ("shared", ordinary_put("rounds", lambda rounds: rounds[:2])),
    "ordinary differs": (
        "flash",
        doing(
            put("references", {}), cells(f"{LAST}.cells", "flashmla_metadata.num_splits", 1, array=plus(1, 2))
        ),
    ),
    "ordinary is wrong": (
        "shared",
        ordinary_put(
            f"{LAST}.cells",
            lambda all_: tuple(
                replace(c, value="0" * 64) if (c.name, c.step) == ("cu_seqlens_k", 0) else c for c in all_
            ),
        ),
    ),
    "ordinary has no leaf": ("shared", ordinary_without(f"{LAST}.cells", "cu_seqlens_k")),
    "ordinary has no leaf, which is wrong": (
        "shared",
        doing(
            ordinary_without(f"{LAST}.cells", "cu_seqlens_k"),
            cells(f"{LAST}.cells", "cu_seqlens_k", 1, array=plus(1)),
        ),
    ),
    # output
    "read another": ("shared", cells(f"{REPLAY}.read", "cu_seqlens_k", 1, array=plus(1, 2))),
    "read what was wrong": (
        "shared",
        doing(
            cells(f"{REPLAY}.read", "cu_seqlens_k", 1, array=plus(1, 2)),
            cells(f"{LAST}.cells", "cu_seqlens_k", 1, array=plus(1, 2)),
        ),
    ),
    "read what is unknown": ("shared", cells(f"{REPLAY}.read", "cu_seqlens_k", 1, name="cu_seqlens_v")),
    "read freed": ("shared", put(f"{REPLAY}.freed", ("step 1 read freed storage",))),
    "read freed while held back": ("delayed", put("rounds.0.replay.freed", ("step 1 read freed storage",))),
    "out of range": ("shared", cells("rounds.1.replay.outputs", "out_of_range", 1, array=plus(3))),
    "out of range by a wrong leaf": (
        "shared",
        doing(
            cells("rounds.1.replay.outputs", "out_of_range", array=plus(3)),
            cells("rounds.1.refreshes.0.cells", "cu_seqlens_k", 1, array=plus(1)),
        ),
    ),
    "computed another": ("shared", cells(f"{REPLAY}.outputs", "attention", 1, array=plus(1, 13))),
    "computed a token": ("shared", cells(f"{REPLAY}.outputs", "draft_token", 2, array=plus(1, 2))),
    "computed another dtype": (
        "shared",
        cells(f"{REPLAY}.outputs", "attention", 1, array=lambda old: old.astype(np.float64)),
    ),
    "computed nothing": ("shared", cells(f"{REPLAY}.outputs", "attention", 1, array=lambda old: old[:0])),
    "computed bf16": ("bf16", cells(f"{REPLAY}.outputs", "attention", 1, array=plus(1, 13))),
    "computed another, ordinary lost the first round": (
        "shared",
        doing(
            ordinary_put("rounds", lambda rounds: rounds[1:]),
            cells(f"{REPLAY}.outputs", "attention", 1, array=plus(1, 13)),
        ),
    ),
    "ordinary of one step": ("shared", ordinary_of_steps(2)),
    "ordinary of two steps": ("shared", ordinary_of_steps(3)),
    "late raw bits": ("bf16", doing(raw_outputs, put(f"{REPLAY}.delayed", True))),
    "torn read of what no refresh left": (
        "delayed",
        doing(
            lambda sheet: sheet.drop("rounds.0.refreshes.0.cells", "cu_seqlens_k", 2),
            lambda sheet: sheet.drop("rounds.0.refreshes.1.cells", "cu_seqlens_k", 2),
            cells("rounds.0.replay.read", "cu_seqlens_k", 2, array=plus(1, 2)),
        ),
    ),
    "refreshed too early, and nothing left": (
        "delayed",
        doing(
            lambda sheet: sheet.drop("rounds.1.refreshes.0.cells", "cu_seqlens_k", 1),
            cells("rounds.0.replay.after", "cu_seqlens_k", 1, array=plus(1, 2)),
        ),
    ),
    "late output, ordinary lost the round": (
        "delayed",
        doing(
            ordinary_put("rounds", lambda rounds: rounds[1:]),
            cells("rounds.0.replay.outputs", "attention", 1, array=plus(1, 13)),
        ),
    ),
    "computed raw bits": ("bf16", raw_outputs),
    "computed raw bits, of another precision": ("shared", raw_outputs),
    "read what no refresh left": (
        "shared",
        doing(
            lambda sheet: sheet.drop(f"{LAST}.cells", "cu_seqlens_k", 1),
            cells(f"{REPLAY}.read", "cu_seqlens_k", 1, array=plus(1, 2)),
        ),
    ),
    "computed an old round": ("shared", like_ordinary(0, "attention")),
    "computed something new": ("shared", cells(f"{REPLAY}.outputs", "attention", 1, name="logits")),
    "ordinary did not replay": (
        "shared",
        doing(
            ordinary_put("rounds.1.replay", None),
            cells("rounds.1.replay.outputs", "attention", 1, array=plus(1, 13)),
            cells(f"{REPLAY}.outputs", "attention", 1, array=plus(1, 13)),
        ),
    ),
    "verify computed another": ("verify", cells(f"{REPLAY}.outputs", "attention", 0, array=plus(1, 13))),
    # ordering
    "saw the next round": ("delayed", next_value("cache_seqlens_int32", 1)),
    "torn read": ("delayed", cells("rounds.0.replay.read", "cu_seqlens_k", 2, array=plus(1, 2))),
    "torn read of what was wrong": (
        "delayed",
        doing(
            cells("rounds.0.replay.read", "cu_seqlens_k", 2, array=plus(1, 2)),
            cells("rounds.0.refreshes.1.cells", "cu_seqlens_k", 2, array=plus(1, 2)),
        ),
    ),
    "torn read in the last round": (
        "delayed",
        doing(put(f"{REPLAY}.delayed", True), cells(f"{REPLAY}.read", "cu_seqlens_k", 2, array=plus(1, 2))),
    ),
    "race": ("delayed", put("rounds.0.replay.races", ("write of cu_seqlens_k is not ordered",))),
    "late output": ("delayed", cells("rounds.0.replay.outputs", "attention", 1, array=plus(1, 13))),
    "late output of the next": ("delayed", late_by_a_round),
    "late output, new": ("delayed", cells("rounds.0.replay.outputs", "attention", 1, name="logits")),
    "late output without an ordinary replay": (
        "delayed",
        doing(
            ordinary_put("rounds.0.replay", None),
            cells("rounds.0.replay.outputs", "attention", 1, array=plus(1, 13)),
        ),
    ),
    "late output alone": (
        "delayed",
        doing(alone, cells("rounds.0.replay.outputs", "attention", 1, array=plus(1, 13))),
    ),
    "refreshed too early": ("delayed", cells("rounds.0.replay.after", "cu_seqlens_k", 1, array=plus(1, 2))),
    "refreshed too early and wrong": (
        "delayed",
        doing(
            cells("rounds.0.replay.after", "cu_seqlens_k", 1, array=plus(1, 2)),
            cells("rounds.1.refreshes.0.cells", "cu_seqlens_k", 1, array=plus(1, 2)),
        ),
    ),
    "held back elsewhere": ("shared", put("rounds.1.replay.delayed", True)),
    "held back elsewhere, torn": (
        "shared",
        doing(
            put("rounds.1.replay.delayed", True),
            cells("rounds.1.replay.read", "cu_seqlens_k", 2, array=plus(1, 2)),
            cells("rounds.1.replay.outputs", "draft_token", 2, array=plus(1, 2)),
        ),
    ),
}
