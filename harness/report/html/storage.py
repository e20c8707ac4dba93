"""A storage map as a picture: a row per step, a column per allocation; shared bytes stand in one column."""

from __future__ import annotations

import math
from collections.abc import Sequence

from markupsafe import Markup

from harness.picture import StorageMap, Strip
from harness.report.html.svg import boxes, drawing, label, title
from harness.report.words import of_bytes

LEFT, ROW, GAP, TOP = 52.0, 20.0, 2.0, 4.0
WIDTH = 620.0


def storage_svg(map_: StorageMap, whose: str) -> Markup:
    """Draw one bucket's storage; `whose` names the path for the accessible name."""
    widths = [3.0 + math.log2(1 + size) for size in map_.sizes]
    scale = (WIDTH - LEFT) / (sum(widths) + GAP * len(widths)) if widths else 1.0
    edges = [LEFT]
    for width in widths:
        edges.append(edges[-1] + (width + GAP) * scale)

    def place(strip: Strip) -> tuple[float, float, float, float]:
        across = widths[strip.region] * scale / map_.sizes[strip.region]
        wide = max((strip.stop - strip.start) * across, 1.0)
        return edges[strip.region] + strip.start * across, TOP + ROW * strip.step, wide, ROW - 4

    children = [label(0, TOP + ROW * step + 12, f"step {step}") for step in range(map_.steps)]
    for region, size in enumerate(map_.sizes):
        strips = [strip for strip in map_.strips if strip.region == region]
        classes: dict[str, list[Strip]] = {"own": [], "shared": []}
        for strip in strips:
            classes["shared" if shared(strip, strips) else "own"].append(strip)
        name = title(_region_words(size, strips))
        children += [boxes(map(place, found), class_, name) for class_, found in classes.items() if found]
    height = TOP + ROW * max(map_.steps, 1)
    return drawing(WIDTH, height, f"Storage of bucket {map_.bucket}, {whose}. {sharing(map_)}", *children)


def shared(strip: Strip, strips: Sequence[Strip]) -> bool:
    """Whether leaves of another step occupy some of a strip's bytes."""
    return any(
        other.step != strip.step and other.start < strip.stop and strip.start < other.stop
        for other in strips
        if other.region == strip.region
    )


def sharing(map_: StorageMap) -> str:
    """Say in a sentence what the steps after the first share with it."""
    later = range(1, map_.steps)
    if not later:
        return f"One step, {of_bytes(map_.bytes_of(0))}."
    parts: dict[str, list[int]] = {}
    for step in later:
        total, common = map_.bytes_of(step), map_.shared_with_first(step)
        if common == 0:
            words = "nothing with step 0"
        elif common == total:
            words = "all bytes with step 0"
        else:
            words = f"{of_bytes(common)} of {of_bytes(total)} with step 0"
        parts.setdefault(words, []).append(step)
    texts = [
        f"Step{'s' if len(steps) > 1 else ''} {_runs(steps)} share{'' if len(steps) > 1 else 's'} {words}"
        for words, steps in parts.items()
    ]
    return "; ".join(texts) + "."


def _runs(steps: Sequence[int]) -> str:
    contiguous = len(steps) > 2 and list(steps) == list(range(steps[0], steps[-1] + 1))
    return f"{steps[0]}-{steps[-1]}" if contiguous else ", ".join(map(str, steps))


def _region_words(size: int, strips: Sequence[Strip]) -> str:
    """Say which steps' leaves lie where in an allocation."""
    said: dict[tuple[int, int, tuple[str, ...]], list[int]] = {}
    for strip in strips:
        said.setdefault((strip.start, strip.stop, strip.leaves), []).append(strip.step)
    lines = []
    for (start, stop, leaves), steps in said.items():
        where = of_bytes(size) if (start, stop) == (0, size) else f"bytes {start}-{stop} of {size}"
        lines.append(f"step{'s' if len(steps) > 1 else ''} {_runs(steps)}, {where}: {', '.join(leaves)}")
    return "\n".join(lines)
