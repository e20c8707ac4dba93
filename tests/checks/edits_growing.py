"""Edits of runs whose metadata grows from step to step, on a buffer of the runner's."""

from __future__ import annotations

from dataclasses import replace

from harness.observation import HostFact, LedgerEntry
from tests.checks.edit import (
    LAST,
    REPLAY,
    Edit,
    cells,
    doing,
    everywhere,
    host,
    hosts,
    ordinary_put,
    put,
    stray,
    walked,
)
from tests.checks.sheet import Sheet, leaves, more, plus


def of_step(step: int, name: str, path: str, at: int, round_: int = 2) -> Edit:
    """Return an edit after which a step's leaf holds what another step's should, or should have."""

    def edit(sheet: Sheet) -> None:
        all_ = sheet.observation.rounds[round_].refreshes[0].cells
        value = next(cell.value for cell in all_ if (cell.step, cell.name) == (step, name))
        sheet.cells(path, name, at, value=value)

    return edit


EDITS: dict[str, tuple[str, Edit]] = {
    "growing, healthy": ("growing", doing()),
    "growing, fused, healthy": ("fused_growing", doing()),
    "padded rows that are free on this path": ("padded_growing", doing()),
    "padded rows that are free, another wrong": (
        "padded_growing",
        cells("rounds.1.refreshes.0.cells", "twice", 1, array=plus(7, 1)),
    ),
    "padded rows that are free, ordinary differs": (
        "padded_growing",
        ordinary_put(
            f"{LAST}.cells",
            lambda all_: tuple(
                replace(one, value="0" * 64) if one.name == "lengths" else one for one in all_
            ),
        ),
    ),
    "padded rows that are free, ordinary differs in a full round": (
        "padded_growing",
        ordinary_put(
            f"{LAST}.cells",
            lambda all_: tuple(replace(x, value="0" * 64) if x.name == "twice" else x for x in all_),
        ),
    ),
    "padded rows that are free, ordinary differs elsewhere": (
        "padded_growing",
        ordinary_put(
            "rounds.1.refreshes.0.cells",
            lambda all_: tuple(replace(x, value="0" * 64) if x.name == "lengths" else x for x in all_),
        ),
    ),
    # the runner's buffer
    "views, healthy": ("views_growing", doing()),
    "views, on one buffer": (
        "views_growing",
        doing(everywhere(leaves("twice", region=0)), everywhere(more(stray(1, 4, "zzz", 0, 0, 16)))),
    ),
    "views, fused, healthy": ("views_fused", doing()),
    "views, a host value that nobody declares": (
        "views_growing",
        doing(
            everywhere(lambda walk: replace(walk, hosts=(HostFact(0, 4, "aaa", "1"), *walk.hosts))),
            everywhere(host("rows", "3", 2)),
        ),
    ),
    "views, written by the forward": (
        "views_growing",
        put("captures.0.forward_writes", (LedgerEntry(0, "lengths", 1), LedgerEntry(0, "twice", 1))),
    ),
    "growing, goldens": ("growing", lambda sheet: setattr(sheet, "golden_checked", True)),
    "growing, held back": ("fused_growing", put("rounds.0.replay.delayed", True)),
    "growing, held back, the next round": (
        "fused_growing",
        doing(put("rounds.0.replay.delayed", True), of_step(2, "twice", "rounds.0.replay.read", 2, 1)),
    ),
    "views, staged": (
        "views_growing",
        put(f"{LAST}.staging", (LedgerEntry(1, "@2/twice", 1), LedgerEntry(1, "@4/twice", 1))),
    ),
    "views, rows that a later build may change": ("views_growing", walked(LAST, host("rows", "3", 1))),
    "growing, a copy": ("growing", everywhere(leaves("lengths", 1, region=70))),
    "growing, before the buffer": ("growing", everywhere(leaves("runner.lengths", start=4))),
    "growing, past the buffer": ("growing", everywhere(leaves("runner.lengths", stop=12))),
    "growing, just the buffer": ("growing", everywhere(leaves("runner.lengths", stop=16))),
    "growing, no buffer": ("growing", everywhere(leaves("runner.lengths"))),
    "growing, an empty view": ("growing", everywhere(leaves("lengths", 2, region=70, start=8, stop=8))),
    "growing, another leaf on the buffer": ("growing", everywhere(leaves("twice", region=0))),
    "growing, staged": (
        "growing",
        put(
            f"{LAST}.staging",
            (
                LedgerEntry(0, "lengths", 1),
                LedgerEntry(0, "@0/runner.lengths", 1),
                LedgerEntry(0, "@0/runner.lengths.deep", 1),
                LedgerEntry(0, "@0/lengths.runner", 1),
                LedgerEntry(1, "@2/lengths", 1),
                LedgerEntry(1, "@2/twice", 1),
                LedgerEntry(2, "twice", 3),
            ),
        ),
    ),
    # host values
    "growing, other rows": ("growing", everywhere(host("rows", "3", 1))),
    "growing, rows of one walk": ("growing", walked(LAST, host("rows", "3", 1))),
    "growing, late rows": ("growing", walked(LAST, hosts(HostFact(0, 4, "late", "1")))),
    "growing, fused, other rows": ("fused_growing", everywhere(host("rows", "3"))),
    # values of steps
    "growing, stale by a step": ("growing", of_step(1, "twice", f"{LAST}.cells", 2)),
    "growing, stale by two steps": ("growing", of_step(0, "twice", f"{LAST}.cells", 2)),
    "growing, stale by a round": ("growing", of_step(2, "twice", f"{LAST}.cells", 1, 1)),
    "growing, a step ahead": ("growing", of_step(2, "twice", f"{LAST}.cells", 1)),
    "growing, fused, stale by a step": ("fused_growing", of_step(1, "twice", f"{LAST}.cells", 2)),
    "growing, wrong": ("growing", cells(f"{LAST}.cells", "twice", 2, array=plus(7, 1))),
    "growing, fused, wrong": ("fused_growing", cells(f"{LAST}.cells", "twice", 1, array=plus(7, 1))),
    "growing, sentinel": ("growing", cells(f"{LAST}.cells", "twice", 1, array=plus(7, 1), poisoned=1)),
    "growing, read another": ("growing", cells(f"{REPLAY}.read", "twice", 2, array=plus(7, 1))),
    "growing, fused, read of a step before": ("fused_growing", of_step(1, "twice", f"{REPLAY}.read", 2)),
    "growing, fused, computed": ("fused_growing", cells(f"{REPLAY}.outputs", "sum", 2, array=plus(1, 1))),
    "growing, ordinary differs": (
        "fused_growing",
        ordinary_put(
            f"{LAST}.cells",
            lambda all_: tuple(
                one if (one.step, one.name) != (2, "twice") else type(one)(2, "twice", "0" * 64)
                for one in all_
            ),
        ),
    ),
    "growing, written again": (
        "growing",
        put(f"{LAST}.ledger", lambda all_: (*all_[1:], LedgerEntry(0, "lengths", 1))),
    ),
}
