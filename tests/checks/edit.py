"""Edits of healthy runs, one cause each, and what they are put together from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from harness.golden.collect import collect, default_policy
from harness.observation import Capture, HostFact, LeafFact, LedgerEntry, RoundRecord, Walk
from tests.checks.sheet import Sheet, accepted, leaves, plus

Edit = Callable[[Sheet], None]
LAST = "rounds.2.refreshes.0"
REPLAY = "rounds.2.replay"


def doing(*edits: Edit) -> Edit:
    """Return one edit that does several."""

    def edit(sheet: Sheet) -> None:
        for one in edits:
            one(sheet)

    return edit


def put(path: str, change: Any) -> Edit:
    """Return an edit of one place."""
    return lambda sheet: sheet.put(path, change)


def walked(path: str, *changes: Callable[[Walk], Walk]) -> Edit:
    """Return an edit that gives a refresh, replay or capture a walk of its own."""

    def change(walk: Walk) -> Walk:
        for one in changes:
            walk = one(walk)
        return walk

    return lambda sheet: sheet.walked(f"{path}.walk", change)


def everywhere(*changes: Callable[[Walk], Walk]) -> Edit:
    """Return an edit of every walk."""
    return doing(*(_everywhere(one) for one in changes))


def _everywhere(change: Callable[[Walk], Walk]) -> Edit:
    return lambda sheet: sheet.everywhere(change)


def cells(path: str, name: str, step: int | None = None, /, **changes: Any) -> Edit:
    """Return an edit of a leaf's cells."""
    return lambda sheet: sheet.cells(path, name, step, **changes)


def hosts(*facts: HostFact) -> Callable[[Walk], Walk]:
    """Return a change that adds host values to a walk."""
    return lambda walk: replace(walk, hosts=(*walk.hosts, *facts))


def freed(*facts: tuple[int, int, str]) -> Callable[[Walk], Walk]:
    """Return a change that says that storages were freed."""
    return lambda walk: replace(walk, freed=facts)


def host(name: str, value: str, step: int | None = None) -> Callable[[Walk], Walk]:
    """Return a change of a host value."""

    def change(walk: Walk) -> Walk:
        return replace(walk, hosts=tuple(
            replace(fact, value=value) if fact.name == name and step in (None, fact.step) else fact
            for fact in walk.hosts
        ))  # fmt: skip

    return change


def old_value(round_: int, name: str) -> Edit:
    """Return an edit after which the last round's leaf holds the value of an earlier round."""

    def edit(sheet: Sheet) -> None:
        all_ = sheet.observation.rounds[round_].refreshes[0].cells
        value = next(cell.value for cell in all_ if cell.name == name)
        sheet.cells(f"{LAST}.cells", name, value=value)

    return edit


def recaptured(sheet: Sheet) -> None:
    """Capture the bucket anew before the last round, its plan elsewhere; let an unrelated capture fail."""
    first = sheet.observation.captures[0]
    second = replace(first, before_round=2, walk=len(sheet.observation.walks))
    failed = Capture(8, 0, (), (), error="no memory", before_round=1)
    sheet.put("captures", (first, failed, second))
    moved = leaves("topk_v2_plan", region=77)(sheet.observation.walks[0])
    sheet.put("walks", (*sheet.observation.walks, moved))
    sheet.put(f"{LAST}.walk", 1)
    sheet.put(f"{REPLAY}.walk", 1)


def recaptured_at_once(sheet: Sheet) -> None:
    """Capture the bucket twice before the last round, with nothing between the captures."""
    recaptured(sheet)
    first, _, second = sheet.observation.captures
    sheet.put("captures", (first, second))


def ordinary_of_steps(steps: int) -> Edit:
    """Return an edit after which the ordinary reference has so many speculative steps."""

    def edit(sheet: Sheet) -> None:
        assert sheet.ordinary is not None
        variants = sheet.ordinary.case.model.variants
        variant = next(one for one in variants if one.steps == steps)
        sheet.ordinary_put("case", lambda case: replace(case, variant=variant))

    return edit


def like_ordinary(round_: int, name: str) -> Edit:
    """Return an edit after which the last replay computed what the ordinary path did in another round."""

    def edit(sheet: Sheet) -> None:
        assert sheet.ordinary is not None
        replay = sheet.ordinary.rounds[round_].replay
        assert replay is not None
        cell = next(cell for cell in replay.outputs if (cell.step, cell.name) == (1, name))
        sheet.observation.values[cell.value]  # the same digest is there: step 1 computed it, too
        sheet.cells(f"{REPLAY}.outputs", name, 1, value=cell.value)

    return edit


def raw_outputs(sheet: Sheet) -> None:
    """Both paths computed raw bf16 bits in the last round; one of them differs."""
    assert sheet.ordinary is not None
    replay = sheet.ordinary.rounds[2].replay
    assert replay is not None
    old = next(cell.value for cell in replay.outputs if (cell.step, cell.name) == (1, "attention"))
    values = (sheet.ordinary.values[old].astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    right = sheet.ordinary_value(values)
    sheet.ordinary_put(
        f"{REPLAY}.outputs",
        lambda all_: tuple(replace(one, value=right) if one.name == "attention" else one for one in all_),
    )
    sheet.cells(f"{REPLAY}.outputs", "attention", value=right)
    sheet.value(values)
    sheet.cells(f"{REPLAY}.outputs", "attention", 1, array=plus(1, 20))


def ordinary_without(path: str, name: str) -> Edit:
    """Return an edit that takes cells out of the ordinary reference."""
    return lambda sheet: sheet.ordinary_put(path, lambda all_: tuple(one for one in all_ if one.name != name))


def ordinary_put(path: str, change: Any) -> Edit:
    """Return an edit of the ordinary reference."""
    return lambda sheet: sheet.ordinary_put(path, change)


def with_golden(name: str, *edits: Edit) -> Edit:
    """Return edits of a run that is held against the golden of the healthy one."""

    def edit(sheet: Sheet) -> None:
        sheet.golden, sheet.golden_checked = accepted(name), True
        for one in edits:
            one(sheet)

    return edit


def against(name: str, *edits: Edit) -> Edit:
    """Return an edit that holds a run against the golden of a run that was edited."""

    def edit(sheet: Sheet) -> None:
        other = Sheet.of(name)
        for one in edits:
            one(other)
        case = other.observation.case
        sheet.golden, sheet.golden_checked = collect(other.observation, default_policy(case), "edited"), True

    return edit


def everywhere_dropped(name: str) -> Edit:
    """Return an edit that takes a leaf out of every refresh."""

    def edit(sheet: Sheet) -> None:
        for index, record in enumerate(sheet.observation.rounds):
            for refresh in range(len(record.refreshes)):
                sheet.drop(f"rounds.{index}.refreshes.{refresh}.cells", name)

    return edit


def alone(sheet: Sheet) -> None:
    """Hold the run against no other path."""
    sheet.ordinary = None


def next_value(name: str, step: int, path: str = "rounds.0.replay.read", of: int = 1) -> Edit:
    """Return an edit after which a delayed replay read the next round's value."""

    def edit(sheet: Sheet) -> None:
        all_ = sheet.observation.rounds[of].refreshes[0].cells
        value = next(cell.value for cell in all_ if cell.name == name)
        sheet.cells(path, name, step, value=value)

    return edit


def late_by_a_round(sheet: Sheet) -> None:
    """A replay that is held back computes what belongs to the next round."""
    replay = sheet.observation.rounds[1].replay
    assert replay is not None
    value = next(cell.value for cell in replay.outputs if (cell.step, cell.name) == (1, "attention"))
    sheet.cells("rounds.0.replay.outputs", "attention", 1, value=value)


def reference_changes(sheet: Sheet) -> None:
    """One of two references is another in the last round."""
    old = sheet.observation.references["b4.02/flashmla_metadata.num_splits"]
    new = sheet.value(sheet.observation.values[old] + 1)
    sheet.put("references", {**sheet.observation.references, "b4.02/flashmla_metadata.num_splits": new})


def full_batches(sheet: Sheet) -> None:
    """Drop the padded round."""
    sheet.put(
        "rounds", lambda rounds: tuple(replace(one, index=i) for i, one in enumerate((rounds[0], rounds[2])))
    )
    program = sheet.observation.program
    sheet.put("program", replace(program, rounds=(program.rounds[0], program.rounds[2])))


def stray(step: int, bucket: int, name: str, region: int, start: int, stop: int) -> LeafFact:
    """Return one more leaf."""
    return LeafFact(step, bucket, name, "int32", ((stop - start) // 4,), (1,), region, start, stop)


def nan(array: Any) -> Any:
    """Put a NaN into an output."""
    array.reshape(-1)[5] = np.nan if array.dtype.kind == "f" else 0x7FC0
    return array


OFTEN = LedgerEntry(1, "cu_seqlens_k", 1)


def with_first_outputs(record: RoundRecord, first: RoundRecord) -> RoundRecord:
    """Return a round whose step 0 computed what it did in another round."""
    assert record.replay is not None
    assert first.replay is not None
    old = tuple(cell for cell in first.replay.outputs if cell.step == 0)
    others = tuple(cell for cell in record.replay.outputs if cell.step != 0)
    return replace(record, replay=replace(record.replay, outputs=(*old, *others)))
