"""Bytes that all steps own, as bars: one drawing a model, a row per path and S."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from markupsafe import Markup

from harness.findings import CaseResult
from harness.report.html.svg import boxes, drawing, element, label, title
from harness.report.words import of_bytes

LEFT, ROW, BAR, RIGHT = 210.0, 17.0, 420.0, 170.0


@dataclass(frozen=True)
class Bars:
    """One model's drawing."""

    model: str
    what: str
    """Which cases are compared."""
    svg: Markup


def bars(results: Iterable[CaseResult]) -> tuple[Bars, ...]:
    """Draw the decode cases of each system and model."""
    groups: dict[tuple[str, str], list[CaseResult]] = {}
    for result in results:
        if not result.skipped and result.axes.get("mode", "decode") == "decode":
            key = (result.axes.get("model", ""), result.axes.get("sut", ""))
            groups.setdefault(key, []).append(result)
    return tuple(_bars(model, sut, group) for (model, sut), group in sorted(groups.items()))


def _bars(model: str, sut: str, group: list[CaseResult]) -> Bars:
    rows: dict[tuple[str, int], list[int]] = {}
    for result in group:
        key = (result.axes.get("path", ""), int(result.axes.get("steps", "0")))
        rows.setdefault(key, []).append(result.bytes_owned)
    most = max((max(sizes) for sizes in rows.values()), default=0) or 1
    children: list[Markup] = []
    for index, ((path, steps), sizes) in enumerate(sorted(rows.items())):
        y, low, high = ROW * index, min(sizes), max(sizes)
        text = of_bytes(low) if low == high else f"{of_bytes(low)} - {of_bytes(high)}"
        name = f"{path}, S {steps}"
        children.append(
            element(
                "g",
                title(f"{name}: {text} in {len(sizes)} cases, smallest and largest bucket"),
                label(0, y + 12, name),
                boxes([(LEFT, y + 2, max(BAR * high / most, 1.0), ROW - 5)], "range"),
                boxes([(LEFT, y + 2, max(BAR * low / most, 1.0), ROW - 5)], "own"),
                label(LEFT + BAR * high / most + 6, y + 12, text),
            )
        )
    width, height = LEFT + BAR + RIGHT, ROW * max(len(rows), 1) + 4
    what = f"{sut}, decode, all buckets, drills and fusion settings"
    return Bars(
        model, what, drawing(width, height, f"Bytes owned by all steps of {model} by path", *children)
    )
