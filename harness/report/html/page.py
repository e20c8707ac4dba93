"""Putting the page together: what the template shows, each drawing once."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path as FilePath
from typing import Any

import jinja2
from markupsafe import Markup

from harness.checks.registry import CHECKS
from harness.findings import CaseResult, Finding
from harness.picture import StorageMap
from harness.report import terminal
from harness.report.again import VERIFY, Again
from harness.report.html.bars import bars
from harness.report.html.heat import check_names, group_of, heat, whose
from harness.report.html.kills import KillMatrix
from harness.report.html.ledger import moments_svg, summary, timeline_svg
from harness.report.html.storage import sharing, storage_svg
from harness.report.tally import Cause, Coverage, causes, gathered, ordered, tally
from harness.report.window import Window, window
from harness.report.words import count, listed, of_bytes, steps
from harness.types import Path

MARKS: Mapping[str, str] = {"passed": "✓", "failed": "✗", "known": "!", "not_applicable": "·"}
"""What stands beside the colour of a verdict."""
WINDOWS = 250
"""Findings that are drawn with the lines around them in their case; a run with more is broken throughout."""


ORDINARY = (Path.INDEPENDENT.value, Path.RELEASED.value)
"""Paths that others are drawn beside."""
Ordinary = Mapping[tuple[str, ...], tuple[str, StorageMap]]
"""By system, model, mode and bucket: an ordinary path and its storage."""


@dataclass
class Drawings:
    """Drawings by content: cases that look alike share one, and the page stays small."""

    by_id: dict[str, Markup] = field(default_factory=dict)
    _ids: dict[object, str] = field(default_factory=dict)

    def put(self, make: Callable[..., Markup], *subject: Hashable) -> str:
        """Keep the drawing that `make` makes of a subject, and return its id; a subject is drawn once."""
        key = (make, *subject)
        if key not in self._ids:
            drawing = make(*subject)
            self._ids[key] = f"d{hashlib.sha256(drawing.encode()).hexdigest()[:12]}"
            self.by_id.setdefault(self._ids[key], drawing)
        return self._ids[key]


@dataclass(frozen=True)
class Panel:
    """A drawing in a case."""

    heading: str
    text: str
    drawings: tuple[str, ...]
    """Ids of the drawings, one below the other."""


@dataclass(frozen=True)
class Shown:
    """One finding, or several of one cause of which the first is shown."""

    heading: str
    finding: Finding
    window: Window | None
    details: tuple[tuple[str, str], ...]
    cases: tuple[tuple[int, str], ...] = ()
    """Number and id of the cases that show it."""
    others: tuple[Finding, ...] = ()
    """The first finding of every other field that shows the same."""


@dataclass(frozen=True)
class CaseView:
    """One case as the page shows it."""

    number: int
    result: CaseResult
    whose: str
    group: str
    failing: str
    """Checks with findings, separated by blanks."""
    storage: tuple[tuple[int, tuple[Panel, ...]], ...]
    """By bucket: this case's map, and the ordinary path's beside it."""
    ledger: Panel | None
    findings: tuple[Shown, ...]


@dataclass(frozen=True)
class Run:
    """What a page is about."""

    results: tuple[CaseResult, ...]
    coverage: Coverage | None
    """None where it is not known any more."""
    seconds: float
    """Wall time."""
    environment: Mapping[str, Any]
    """As the JSON report has it."""
    again: Again = VERIFY


def render(run: Run, kills: KillMatrix | None = None) -> str:
    """Return the whole page as text."""
    done = ordered(run.results)
    checks = check_names(done, [check.name for check in CHECKS])
    drawings = Drawings()
    views = _views(done, drawings)
    total = tally(done, run.seconds)
    return str(
        _templates()
        .get_template("report.html.j2")
        .render(
            verdict="failed" if total.unexpected else "known" if total.known_findings else "passed",
            line=terminal.verdict_line(total).plain,
            total=total,
            coverage=run.coverage,
            environment=run.environment,
            checks=checks,
            explained={check.name: check for check in CHECKS},
            heat=heat(done, checks),
            unexpected=_causes(done, views, run.again, known=False),
            known=_causes(done, views, run.again, known=True),
            bars=bars(done),
            cases=views,
            drawings=drawings.by_id,
            kills=kills,
            marks=MARKS,
            models=sorted({one.axes.get("model", "") for one in done}),
            paths=sorted({one.axes.get("path", "") for one in done}),
            count=count,
            listed=listed,
            of_bytes=of_bytes,
            steps=steps,
        )
    )


def _templates() -> jinja2.Environment:
    folder = FilePath(str(files("harness.report.html") / "templates"))
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(folder),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _views(results: Sequence[CaseResult], drawings: Drawings) -> tuple[CaseView, ...]:
    left = WINDOWS
    ordinary = _ordinary(results)
    views = []
    for number, result in enumerate(results):
        findings = result.findings
        drawn = min(len(findings), left)
        left -= drawn
        failing = {check.check for check in result.checks if check.findings}
        picture = result.picture
        views.append(
            CaseView(
                number=number,
                result=result,
                whose=whose(result),
                group=group_of(result),
                failing=" ".join(sorted(failing)),
                storage=_storage(result, ordinary, drawings),
                ledger=None
                if picture is None
                else Panel(
                    "Refresh ledger",
                    summary(picture.timeline),
                    (
                        drawings.put(moments_svg, picture.timeline),
                        drawings.put(timeline_svg, picture.timeline),
                    ),
                ),
                findings=_own(result, drawn),
            )
        )
    return tuple(views)


def _own(result: CaseResult, drawn: int) -> tuple[Shown, ...]:
    """Return a case's own findings by cause; the first `drawn` with the lines around them."""
    groups = (*gathered(causes([result], known=False)), *gathered(causes([result], known=True)))
    return tuple(
        Shown(
            heading=terminal.heading(group),
            finding=(first := group.first.findings[0]),
            window=_window(result, result.findings.index(first)) if place < drawn else None,
            details=tuple(terminal.details(first)[1:]),
            others=tuple(other.findings[0] for other in group.causes[1:]),
        )
        for place, group in enumerate(groups)
    )


def _window(result: CaseResult, index: int) -> Window | None:
    found = next((one for one in result.around if one.finding == index), None)
    return None if found is None else window(found, result.findings[index])


def _storage(
    result: CaseResult, ordinary: Ordinary, drawings: Drawings
) -> tuple[tuple[int, tuple[Panel, ...]], ...]:
    if result.picture is None:
        return ()
    path = result.axes.get("path", "")

    def panel(heading: str, map_: StorageMap) -> Panel:
        return Panel(heading, sharing(map_), (drawings.put(storage_svg, map_, heading),))

    def panels(map_: StorageMap) -> Iterator[Panel]:
        beside = None if path in ORDINARY else ordinary.get(_batch(result, map_.bucket))
        if beside is not None:
            yield panel(f"path {beside[0]}, the ordinary one", beside[1].first_steps(map_.steps))
        yield panel(f"path {path}", map_)

    return tuple((one.bucket, tuple(panels(one))) for one in result.picture.maps)


def _ordinary(results: Sequence[CaseResult]) -> Ordinary:
    """Return the storage of ordinary paths, by what a case shares with them; those of most steps."""
    found: dict[tuple[str, ...], tuple[str, StorageMap]] = {}
    for result in results:
        path = result.axes.get("path", "")
        if path in ORDINARY and result.picture is not None:
            for map_ in result.picture.maps:
                key = _batch(result, map_.bucket)
                if key not in found or found[key][1].steps < map_.steps:
                    found[key] = path, map_
    return found


def _batch(result: CaseResult, bucket: int) -> tuple[str, ...]:
    axes = (result.axes.get(name, "") for name in ("model", "mode"))
    return whose(result), *axes, str(bucket)


def _causes(
    results: Sequence[CaseResult], views: Sequence[CaseView], again: Again, *, known: bool
) -> tuple[Shown, ...]:
    numbers = {_place(one.result): one.number for one in views}
    shown = []
    for group in gathered(causes(results, known=known)):
        cause = group.first
        first = cause.findings[0]
        result = results[numbers[_of_cause(cause, first.case)]]
        shown.append(
            Shown(
                heading=terminal.heading(group),
                finding=first,
                window=_window(result, result.findings.index(first)),
                details=(*terminal.details(first), ("again", again.command(cause))),
                cases=tuple((numbers[_of_cause(cause, case)], case) for case in cause.cases),
                others=tuple(other.findings[0] for other in group.causes[1:]),
            )
        )
    return tuple(shown)


def _place(result: CaseResult) -> tuple[str, str, str, str]:
    sut, version, engine = (result.axes.get(name, "") for name in ("sut", "version", "engine"))
    return result.case, sut, version, engine


def _of_cause(cause: Cause, case: str) -> tuple[str, str, str, str]:
    return case, cause.sut, cause.version, cause.engine
