"""Edits of the run as a whole: none, goldens, routes, too little evidence."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from harness.observation import Cell, PauseFact
from harness.types import Drill
from tests.checks.edit import (
    LAST,
    REPLAY,
    Edit,
    against,
    alone,
    cells,
    doing,
    everywhere,
    everywhere_dropped,
    full_batches,
    nan,
    old_value,
    put,
    reference_changes,
    with_first_outputs,
    with_golden,
)
from tests.checks.sheet import leaves, plus

EDITS: dict[str, tuple[str, Edit]] = {
    # nothing
    "healthy": ("shared", doing()),
    "healthy alone": ("shared", alone),
    "healthy ordinary": ("independent", doing()),
    "healthy copied": ("copied", doing()),
    "healthy counted": ("counted", doing()),
    "healthy in graph": ("in_graph", doing()),
    "healthy delayed": ("delayed", doing()),
    "healthy switched": ("switched", doing()),
    "healthy verify": ("verify", doing()),
    "healthy flash": ("flash", doing()),
    "healthy golden": ("shared", with_golden("shared")),
    "healthy switched golden": ("switched", with_golden("switched")),
    # golden
    "golden missing": ("shared", lambda sheet: setattr(sheet, "golden_checked", True)),
    "golden of another": ("flash", with_golden("shared")),
    "golden differs": (
        "shared",
        with_golden(
            "shared",
            cells(f"{LAST}.cells", "cu_seqlens_k", 1, name="x"),
            cells("rounds.1.refreshes.0.cells", "cu_seqlens_k", 1, array=plus(1)),
        ),
    ),
    "golden output": (
        "shared",
        with_golden("shared", cells("rounds.0.replay.outputs", "attention", 1, array=plus(1, 13))),
    ),
    "golden output nan": (
        "shared",
        with_golden("shared", cells("rounds.0.replay.outputs", "attention", 1, array=nan)),
    ),
    "golden output shape": (
        "shared",
        with_golden("shared", cells("rounds.0.replay.outputs", "attention", 1, array=lambda old: old[:-1])),
    ),
    "golden output gone": (
        "shared",
        with_golden("shared", cells("rounds.0.replay.outputs", "attention", 1, name="logits")),
    ),
    "golden output delayed": (
        "delayed",
        with_golden("delayed", cells("rounds.0.replay.outputs", "attention", 1, array=plus(1, 13))),
    ),
    "golden structure": (
        "shared",
        with_golden(
            "shared",
            put(f"{LAST}.ledger", lambda all_: all_[5:]),
            everywhere(leaves("topk_v2_plan", 1, region=44)),
        ),
    ),
    "golden, a value": (
        "shared",
        against("shared", cells("rounds.1.refreshes.0.cells", "cu_seqlens_k", array=plus(1, 2))),
    ),
    "golden, a value at its start": (
        "shared",
        against("shared", cells("rounds.1.refreshes.0.cells", "cache_seqlens_int32", array=plus(5))),
    ),
    "golden, a value within a row": (
        "shared",
        against("shared", cells("rounds.1.refreshes.0.cells", "pooled_real_page_table", array=plus(5, 4))),
    ),
    "golden, a wide value": (
        "shared",
        against("shared", cells("rounds.1.refreshes.0.cells", "page_table_1", array=plus(5, 3))),
    ),
    "golden, a value of another round": (
        "shared",
        against(
            "shared",
            old_value(1, "cu_seqlens_k"),
            lambda sheet: sheet.cells(
                "rounds.1.refreshes.0.cells", "cu_seqlens_k", array=lambda old: np.flip(old).copy()
            ),
        ),
    ),
    "golden, of a padded row": (
        "extend",
        against("extend", cells("rounds.1.refreshes.0.cells", "real_page_table", array=plus(5, -1))),
    ),
    "golden, a field that is new": ("shared", against("shared", everywhere_dropped("topk_v2_plan"))),
    "golden, a field that is gone": ("shared", with_golden("shared", everywhere_dropped("topk_v2_plan"))),
    "golden, other inputs": ("shared", against("short")),
    "golden, other inputs and fewer rounds": ("short", with_golden("shared")),
    "golden, another drill's rounds": ("switched_less", with_golden("switched")),
    "golden of flash": (
        "flash",
        against(
            "flash",
            cells("rounds.1.refreshes.0.cells", "flashmla_metadata.num_splits", array=plus(1)),
        ),
    ),
    "golden lost rounds": ("shared", with_golden("shared", full_batches)),
    # routing
    "other route": ("shared", put("route", "independent")),
    "no route": ("shared", put("route", "")),
    "no route and no round": ("shared", doing(put("route", ""), put("rounds", ()))),
    "raised": (
        "shared",
        doing(
            put("problems", ("ValueError: no kernel", "and more")), put("rounds", lambda rounds: rounds[:2])
        ),
    ),
    "printed": (
        "shared",
        doing(put("captures.0.printed", ("falling back",)), put(f"{LAST}.printed", ("slow path", "again"))),
    ),
    # evidence
    "rounds of the captured batch alone": ("captured_only", doing()),
    "rounds of equal lengths": ("equal", doing()),
    "rounds of short lengths": ("short", doing()),
    "rounds of one request": ("single", doing()),
    "rounds of full pairs": ("pair", doing()),
    "lengths below the reach of pools": ("pooled_below", doing()),
    "lengths far below the reach of pools": ("pooled_far_below", doing()),
    "a field that never changes in the case's bucket": ("constant_switched", doing()),
    "outputs of step 0 constant": (
        "shared",
        lambda sheet: sheet.put(
            "rounds", lambda rounds: tuple(with_first_outputs(one, rounds[0]) for one in rounds)
        ),
    ),
    "outputs constant in two replays": (
        "shared",
        lambda sheet: sheet.put(
            "rounds",
            lambda rounds: (
                rounds[0],
                replace(rounds[1], replay=replace(rounds[1].replay, outputs=rounds[0].replay.outputs)),
                replace(rounds[2], replay=None, skipped="poison"),
            ),
        ),
    ),
    "a field that never changes": ("constant_growing", doing()),
    "too few rounds": ("shared", put("rounds", lambda rounds: rounds[:1])),
    "rounds missing": ("shared", put("rounds", lambda rounds: rounds[:2])),
    "poison missed": (
        "shared",
        put(f"{LAST}.poison", lambda all_: (replace(all_[0], landed=False), *all_[1:])),
    ),
    "not poisoned": ("shared", cells(f"{LAST}.cells", "cu_seqlens_k", 1, poisoned=None)),
    "not poisoned, init once": ("shared", cells(f"{LAST}.cells", "cu_seqlens_q", 1, poisoned=None)),
    "not captured": (
        "switched",
        put("captures", lambda all_: (all_[0], replace(all_[1], error="no memory"))),
    ),
    "no replay at all": (
        "shared",
        put("rounds", lambda rounds: tuple(replace(one, replay=None, skipped="poison") for one in rounds)),
    ),
    "one replay": (
        "shared",
        put(
            "rounds",
            lambda rounds: (*(replace(one, replay=None, skipped="poison") for one in rounds[:2]), rounds[2]),
        ),
    ),
    "field missing": ("shared", lambda sheet: sheet.drop(f"{LAST}.cells", "topk_v2_plan", 1)),
    "no padding": ("shared", full_batches),
    "no switch": ("shared", put("case", lambda case: replace(case, drill=Drill.BUCKET_SWITCH))),
    "nothing delayed": ("shared", put("case", lambda case: replace(case, drill=Drill.DELAYED))),
    "outputs constant": (
        "shared",
        lambda sheet: sheet.put(
            "rounds",
            lambda rounds: tuple(
                replace(one, replay=replace(one.replay, outputs=rounds[0].replay.outputs)) for one in rounds
            ),
        ),
    ),
    "outputs constant but one": (
        "shared",
        lambda sheet: sheet.put(
            "rounds",
            lambda rounds: tuple(
                replace(
                    one,
                    replay=replace(
                        one.replay,
                        outputs=(
                            *(c for c in rounds[0].replay.outputs if c.name != "draft_token"),
                            *(c for c in one.replay.outputs if c.name == "draft_token"),
                        ),
                    ),
                )
                for one in rounds
            ),
        ),
    ),
    "step absent": ("shared", put(f"{REPLAY}.read", lambda all_: tuple(c for c in all_ if c.step != 1))),
    "pause missed": (
        "shared",
        put("pauses", (PauseFact(1, 4, 0, "cu_seqlens_k", True), PauseFact(2, 4, 1, "topk_v2_plan", False))),
    ),
    "a reference that changes": ("flash", reference_changes),
    "another cell": ("shared", put(f"{LAST}.cells", lambda all_: (*all_, Cell(0, "made_up", all_[0].value)))),
}
