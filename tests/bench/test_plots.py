"""Sweeps are found in a document and drawn."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from harness.bench.plots import curves, sweep
from harness.cli import main
from tests.bench.support import measured, point, report

POINTS = [point(), *(point(steps=S) for S in (4, 3, 8)), point(bucket=32), point(bucket=1), point(width=256)]


def document() -> dict[str, Any]:
    return report(*(measured(one, one.steps / 5) for one in POINTS)).document()


def test_a_sweep_is_what_differs_in_one_size_only() -> None:
    points = document()["points"]
    assert [one["steps"] for one in sweep(points, "steps")] == [3, 4, 5, 8]
    assert [one["bucket"] for one in sweep(points, "bucket")] == [1, 4, 32]
    assert [one["width"] for one in sweep(points, "width")] == [256, 131072]
    owned = {name: ys for name, _, ys in curves(sweep(points, "steps"), "steps", "bytes_owned")}
    assert owned["sglang released"] == [8000 / (1 << 20)] * 4
    host = {name: ys for name, _, ys in curves(sweep(points, "steps"), "steps", "host")}
    assert host["embedded-fused shared"] == [2.0] * 4  # launches of one small kernel, ten each
    assert list(curves(sweep(points, "width"), "width", "span")) == []  # two points are no curve
    drawn = {name: (xs, ys) for name, xs, ys in curves(sweep(points, "steps"), "steps", "span")}
    assert drawn.keys() == {"embedded independent", "embedded-fused shared", "sglang released"}
    assert all(xs == [3, 4, 5, 8] for xs, _ in drawn.values())
    assert drawn["embedded-fused shared"][1] == [20.0] * 4
    assert drawn["sglang released"][1] == [120.0, 160.0, 200.0, 320.0]


def test_plots_are_drawn_of_a_saved_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    file = tmp_path / "report.json"
    file.write_text(json.dumps(document()))
    for folder in ("one", "two"):
        assert main(["bench", "plot", str(file), str(tmp_path / folder)]) == 0
    drawn = sorted(path.name for path in (tmp_path / "one").iterdir())
    assert drawn == ["growth-bucket.svg", "growth-steps.svg"]
    assert f"drew {tmp_path / 'one' / drawn[0]}" in capsys.readouterr().out
    svg = (tmp_path / "one" / "growth-steps.svg").read_text()
    assert "speculative steps S" in svg
    assert "embedded-fused shared" in svg
    assert svg == (tmp_path / "two" / "growth-steps.svg").read_text()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{}", "is no report of bench gpu"),
        ("not json", "is no report of bench gpu"),
        (json.dumps(report(measured()).document()), "measure with --growth"),
    ],
)
def test_what_cannot_be_drawn_is_one_line(
    text: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    file = tmp_path / "report.json"
    file.write_text(text)
    assert main(["bench", "plot", str(file), str(tmp_path)]) == 2
    assert message in capsys.readouterr().err
