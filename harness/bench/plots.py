"""Plots of a `bench gpu` document: how host time, device span and owned bytes grow with S, bs and W."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.bench.figures import ONE
from harness.errors import UsageError

SWEEPS = {"steps": "speculative steps S", "bucket": "batch size", "width": "request table width W, tokens"}
"""What a point may vary in, by its key, with the axis label."""
LEAST = 3
"""Points of a plot, at least."""
PANELS = (
    ("span", "GPU span, us"),
    ("host", "host time, launches of one small kernel"),
    ("bytes_owned", "bytes owned, MiB"),
)
"""Figures, with their axis labels. Host times are told in launches of the same point: machines drift."""
FIXED = ("model", "fusion", "steps", "bucket", "width")

Document = Mapping[str, Any]


def draw(document: Document, folder: Path) -> tuple[Path, ...]:
    """Draw one SVG per sweep into `folder` and return their paths; none where nothing was swept.

    Raises UsageError where matplotlib is not installed.
    """
    try:
        import matplotlib
    except ModuleNotFoundError as error:
        raise UsageError("plots need matplotlib: pip install 'replay-harness[plots]'") from error
    folder.mkdir(parents=True, exist_ok=True)
    drawn = []
    with matplotlib.rc_context({"svg.hashsalt": "replay-harness", "svg.fonttype": "none"}):
        for key, label in SWEEPS.items():
            points = sweep(document["points"], key)
            if len(points) >= LEAST:
                drawn.append(_draw(document, points, key, label, folder / f"growth-{key}.svg"))
    return tuple(drawn)


def sweep(points: Sequence[Document], key: str) -> list[Document]:
    """Return the most points that differ in nothing but `key`, ascending."""
    groups: dict[tuple[object, ...], list[Document]] = {}
    for point in points:
        groups.setdefault(tuple(point[name] for name in FIXED if name != key), []).append(point)
    ascending = sorted(groups.values(), key=len)
    return sorted(ascending[-1], key=lambda point: int(point[key])) if ascending else []


def curves(points: Sequence[Document], key: str, what: str) -> Iterator[tuple[str, list[float], list[float]]]:
    """Yield (subject, x, y) of one figure for subjects at enough points, in the order of their first."""
    found: dict[str, tuple[list[float], list[float]]] = {}
    for point in points:
        launch = next(floor["host"]["median"] for floor in point["floors"] if floor["path"] == ONE)
        unit = {"host": launch, "bytes_owned": 1 << 20}.get(what, 1)
        for subject in point["subjects"]:
            value = subject[what]
            xs, ys = found.setdefault(f"{subject['system']} {subject['path']}", ([], []))
            xs.append(point[key])
            ys.append((value["median"] if isinstance(value, Mapping) else value) / unit)
    for name, (xs, ys) in found.items():
        if len(xs) >= LEAST:
            yield name, xs, ys


def _draw(document: Document, points: Sequence[Document], key: str, label: str, file: Path) -> Path:
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    figure = Figure(figsize=(14, 4.6), layout="constrained")
    panels = figure.subplots(1, len(PANELS))
    for panel, (what, title) in zip(panels, PANELS, strict=True):
        for name, xs, ys in curves(points, key, what):
            style = "--" if name.startswith("sglang") else "-" if "fused" not in name else "-."
            panel.plot(xs, ys, style, marker="o", markersize=3, label=name)
        panel.set(xlabel=label, ylabel=title, yscale="log", xscale="linear" if key == "steps" else "log")
        panel.set_xticks([point[key] for point in points], [str(point[key]) for point in points], rotation=30)
        panel.set_xticks([], minor=True)
        panel.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        panel.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        panel.yaxis.set_minor_formatter(NullFormatter())
        panel.grid(alpha=0.3)
    first = points[0]
    others = ", ".join(f"{name} {first[name]}" for name in FIXED if name != key)
    figure.suptitle(f"{document['device']['name']}, {document['date']}: {others}", fontsize=10)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=5, fontsize=8)
    figure.savefig(file, metadata={"Date": None})
    return file
