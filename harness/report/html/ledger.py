"""The ledger as a timeline: a column per capture or refresh, a row per leaf and per span."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from markupsafe import Markup, escape

from harness.picture import Moment, Timeline, Track
from harness.report.html.svg import boxes, drawing, element, label, title
from harness.report.words import count, steps

LEFT, CELL, ROW, HEAD = 290.0, 24.0, 15.0, 64.0
MANY = 9
"""Writes from which on a cell shows a plus sign instead of the number."""


def moments_svg(timeline: Timeline) -> Markup:
    """Draw the heads of the columns; cases that run the same rounds share them."""
    heads = [_head(index, moment) for index, moment in enumerate(timeline.moments)]
    return drawing(_width(timeline), HEAD, "Captures and refreshes in order", *heads)


def timeline_svg(timeline: Timeline) -> Markup:
    """Draw a run's ledger below its heads: red is what the path does not declare, a dot each replay."""
    number = len(timeline.moments)
    y = 0.0
    children = []
    for track in timeline.leaves:
        children.append(_row(track, number, y))
        y += ROW
    if timeline.spans:
        y += 6
        children.append(label(0, y + 11, "parts of the refresh", "strong"))
        y += ROW
    for track in timeline.spans:
        children.append(_row(track, number, y))
        y += ROW
    between = "".join(f"M{LEFT + CELL * index - 1:.0f} 0v{y:.0f}" for index in range(number + 1))
    children.append(element("path", class_="between", d=between))
    children.append(label(0, y + 15, "replayed after it", "strong"))
    children.append(
        _glyphs(
            [(index, "●") for index, moment in enumerate(timeline.moments) if moment.replayed], y + 15, "dot"
        )
    )
    return drawing(_width(timeline), y + 22, summary(timeline), *children)


def _width(timeline: Timeline) -> float:
    return LEFT + CELL * max(len(timeline.moments), 1) + 40


def summary(timeline: Timeline) -> str:
    """Say in a sentence what the timeline shows."""
    refreshes = sum(moment.kind == "refresh" for moment in timeline.moments)
    replays = sum(moment.replayed for moment in timeline.moments)
    writes = sum(sum(track.counts) * max(len(track.steps), 1) for track in timeline.leaves)
    odd = sum(
        bool(marked(track, index)) for track in timeline.leaves for index in range(len(timeline.moments))
    )
    beyond = f"; {count(odd, 'place')} not as declared" if odd else "; all as declared"
    return f"{refreshes} refreshes, {replays} replays, {count(writes, 'write')} into leaves{beyond}"


def marked(track: Track, index: int) -> bool:
    """Whether a track's count at a moment is not what the path declares."""
    return bool(track.declared) and track.declared[index] not in (-1, track.counts[index])


def _head(index: int, moment: Moment) -> Markup:
    x, y = LEFT + CELL * index + 14, HEAD - 6
    words = f"{moment.kind} {moment.name}, bucket {moment.bucket}"
    return element(
        "g",
        title(f"{words}: {moment.note}" if moment.note else words),
        label(x, y, moment.name, transform=f"rotate(-60 {x:.0f} {y:.0f})"),
    )


def _row(track: Track, number: int, y: float) -> Markup:
    name = f"{track.name} · {steps(track.steps)}" if track.steps else track.name
    classes = [_class(track, index) for index in range(number)]
    children = [label(0, y + 11, name)]
    for class_ in ("once", "more", "odd"):
        places = [
            (LEFT + CELL * start, y + 1, CELL * (stop - start), ROW - 2)
            for start, stop in _runs(classes, class_)
        ]
        children.append(boxes(places, class_))
    texts = [
        (index, f"{count}" if count <= MANY else "+")
        for index, count in enumerate(track.counts)
        if count > 1 or classes[index] == "odd"
    ]
    return Markup("".join([*children, _glyphs(texts, y + 11, "in")]))


def _glyphs(texts: Sequence[tuple[int, str]], y: float, class_: str) -> Markup:
    """Return single characters, each in its column, as one text."""
    if not texts:
        return Markup("")
    places = " ".join(f"{LEFT + CELL * index + 8:.0f}" for index, _ in texts)
    return element("text", escape("".join(text for _, text in texts)), x=places, y=y, class_=class_)


def _class(track: Track, index: int) -> str:
    if marked(track, index):
        return "odd"
    number = track.counts[index]
    return "more" if number > 1 else "once" if number else ""


def _runs(classes: Sequence[str], wanted: str) -> Iterator[tuple[int, int]]:
    """Yield the stretches of columns that have a class."""
    start = 0
    for class_, stretch in groupby(classes):
        stop = start + len(list(stretch))
        if class_ == wanted:
            yield start, stop
        start = stop
