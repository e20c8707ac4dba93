"""Spreads, ratios, the document and the table."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console

from harness.bench.figures import Spread
from harness.bench.meter import Activities, count_activities
from harness.bench.table import render
from tests.bench.support import measured, report


def test_a_spread_is_median_and_quartiles() -> None:
    assert Spread.of([5.0, 1.0, 2.0, 4.0, 3.0]) == Spread(3.0, 2.0, 4.0, 5)
    assert Spread.of([7.0]) == Spread(7.0, 7.0, 7.0, 1)


def test_ratios_are_to_ordinary_paths_and_bare_launches_of_the_same_point() -> None:
    one = measured()
    ratios = one.ratios(one.figures[1])
    assert ratios["host / embedded independent"] == pytest.approx(0.2)
    assert ratios["span / sglang released"] == pytest.approx(0.1)
    assert ratios["bytes owned / sglang released"] == pytest.approx(0.125)
    assert ratios["span / floor one small kernel"] == pytest.approx(2.0)
    assert "span / floor nothing" not in ratios
    assert ratios["gap / floor nothing"] == pytest.approx(10.0)
    assert not any("shared" in name for name in ratios)


def test_the_document_is_json_and_says_what_where_and_when() -> None:
    document = json.loads(json.dumps(report(measured()).document()))
    assert (document["schema"], document["date"], document["device"]) == (
        1,
        "2026-11-29",
        {"name": "a device"},
    )
    (at,) = document["points"]
    assert (at["steps"], at["bucket"], at["width"], at["pool"]) == (5, 4, 131072, 4)
    fused = at["subjects"][1]
    assert fused["host"] == {"median": 20.0, "low": 19.0, "high": 21.0, "count": 10}
    assert fused["activities"] == {"kernels": 1, "memcpys": 2, "memsets": 0, "fused_copies": 0}
    assert fused["ratios"]["host / embedded independent"] == 0.2
    assert at["subjects"][0]["wrong"] == ["topk_v2_plan"]


def test_the_table_names_what_is_not_right() -> None:
    console = Console(width=140, record=True, file=io.StringIO())
    render(console, report(measured()))
    text = console.export_text()
    assert "P=4 fusion on, S=5, bs 4, W=131072" in text
    assert "not right after embedded independent: topk_v2_plan" in text
    row = next(line for line in text.splitlines() if "embedded-fused shared" in line)
    assert "20.0 +-1.0" in row
    assert row.split()[-3:] == ["0.20", "0.20", "2.00"]


def test_activities_are_told_apart_by_their_names() -> None:
    names = ["void at::native::add", "Memcpy DtoD (Device -> Device)", "Memset (Device)", "refresh"]
    names += ["fused_metadata_copy_kernel<true>", "void multi_tensor_apply_kernel<...>"]
    assert count_activities(names) == Activities(kernels=4, memcpys=1, memsets=1, fused_copies=2)
    assert count_activities([]) == Activities()
