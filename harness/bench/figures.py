"""What was measured, as data: spreads, a subject's figures at a point, ratios; one JSON document."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from harness.bench.meter import Activities
from harness.bench.settings import Effort, Point

SCHEMA = 1
FLOOR = "floor"
"""System of the figures that belong to no system: bare launches."""
ONE = "one small kernel"
NOTHING = "nothing"
"""Of those, no launch at all: only its gap means something."""
ORDINARY = ("independent", "released")
"""Paths that others are held against."""


_TIMES = ("host", "span", "gap")
_MEANT = {NOTHING: ("gap",), ONE: ("host", "span")}
"""What bare launches are a floor of; the others are one of host time."""


@dataclass(frozen=True)
class Spread:
    """Repetitions of one figure."""

    median: float
    low: float
    """First quartile."""
    high: float
    """Third quartile."""
    count: int

    @classmethod
    def of(cls, samples: Sequence[float]) -> Spread:
        """Return the spread of at least one sample."""
        if len(samples) == 1:
            return cls(samples[0], samples[0], samples[0], 1)
        low, median, high = statistics.quantiles(samples, n=4, method="inclusive")
        return cls(round(median, 2), round(low, 2), round(high, 2), len(samples))


@dataclass(frozen=True)
class Figures:
    """One subject at one point; times in microseconds."""

    system: str
    path: str
    host: Spread
    span: Spread
    gap: Spread
    activities: Activities
    """Of the call: for a refresh inside a graph, of the graph's replay."""
    eager: Activities
    """What is launched outside graphs before the replay."""
    bytes_owned: int = 0
    """By all steps, KV counters apart."""
    bytes_written: int = 0
    """Distinct bytes of them that a refresh writes."""
    bytes_temporary: int = 0
    """Most bytes that it allocates and gives back."""
    wrong: tuple[str, ...] = ()
    """Fields that are not the oracle's after the refresh, in any step."""

    @property
    def name(self) -> str:
        """System and path."""
        return f"{self.system} {self.path}"


@dataclass(frozen=True)
class Measured:
    """All subjects at one point."""

    point: Point
    lengths: tuple[int, ...]
    floors: tuple[Figures, ...]
    """Bare launches: none, one small kernel, and one with as many arguments as the fused refresh has."""
    figures: tuple[Figures, ...]

    def ratios(self, figures: Figures) -> dict[str, float]:
        """Return a subject's ratios: to every ordinary path measured here, and to every bare launch."""
        ratios: dict[str, float] = {}
        for other in (*self.figures, *self.floors):
            if other.system != FLOOR and other.path not in ORDINARY:
                continue
            for what in _MEANT.get(other.path, ("host",)) if other.system == FLOOR else _TIMES:
                mine, theirs = getattr(figures, what).median, getattr(other, what).median
                if theirs:
                    ratios[f"{what} / {other.name}"] = round(mine / theirs, 3)
            if other.bytes_owned:
                ratios[f"bytes owned / {other.name}"] = round(figures.bytes_owned / other.bytes_owned, 4)
        return ratios


@dataclass(frozen=True)
class Report:
    """One run of `bench gpu`."""

    what: str
    date: str
    device: Mapping[str, object]
    software: Mapping[str, str]
    effort: Effort
    measured: tuple[Measured, ...]
    notes: tuple[str, ...] = field(default=())
    """What could not be measured, and why."""

    def document(self) -> dict[str, Any]:
        """Return everything as plain data, ratios included."""
        return {
            "schema": SCHEMA,
            "what": self.what,
            "date": self.date,
            "device": dict(self.device),
            "software": dict(self.software),
            "effort": asdict(self.effort),
            "notes": list(self.notes),
            "points": [_point(measured) for measured in self.measured],
        }


def _point(measured: Measured) -> dict[str, Any]:
    return {
        **asdict(measured.point),
        "lengths": list(measured.lengths),
        "floors": [asdict(floor) for floor in measured.floors],
        "subjects": [
            {**asdict(figures), "wrong": list(figures.wrong), "ratios": measured.ratios(figures)}
            for figures in measured.figures
        ],
    }
