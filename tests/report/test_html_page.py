import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from subprocess import run

import pytest

from harness.errors import UsageError
from harness.findings import CaseResult
from harness.picture import CasePicture, Moment, StorageMap, Strip, Timeline, Track
from harness.report import jsonreport
from harness.report.html.command import check_asked, write
from harness.report.html.kept import load_run
from harness.report.html.kills import load_kills
from harness.report.html.page import Run, render
from harness.report.tally import Coverage
from tests.report.sample import AROUND, finding, result

ENVIRONMENT = {"harness": "1", "python": "3", "platform": "p", "cpus": 2, "packages": {}, "facts": {}}
LIMIT = 3_000_000
KILLS = {
    "schema": "replay-harness.faults/1", "sut": "embedded", "engine": "tape",
    "summary": "faults: 1 of 2 killed",
    "trials": [
        {"id": "A1", "text": "kept", "case": "c", "fate": "killed", "first": "freshness", "operations": 3,
         "spoke": {"freshness": 2, "output": 1}},
        {"id": "A2", "text": "lost", "case": "c", "fate": "survived", "first": "", "operations": 0,
         "spoke": {}},
    ],
}  # fmt: skip


def picture(steps: int, *, shared: bool, seed: int = 0) -> CasePicture:
    """Return a picture as large as a real case's: 20 leaves a step, 24 rounds, two buckets."""
    maps = []
    for bucket in (8, 4):
        regions = 20 if shared else 20 * steps
        strips = [
            Strip(
                step, leaf if shared else 20 * step + leaf, 0, 32 + seed, (f"kpool_write_plan.leaf_{leaf}",)
            )
            for step in range(steps)
            for leaf in range(20)
        ]
        maps.append(StorageMap(bucket, (32 + seed,) * regions, tuple(strips)))
    moments = tuple(
        Moment("refresh", f"b8.{n:02}", 8, replayed=True, note=f"grown by accepted tokens, one moved {seed}")
        for n in range(24)
    )
    tracks = tuple(
        Track(
            f"kpool_write_plan.leaf_{leaf}", tuple(range(steps)), (1 + seed % 2,) * 24, (1 + seed % 2,) * 24
        )
        for leaf in range(20)
    )
    return CasePicture(tuple(maps), Timeline(moments, tracks, ()))


def page(*results: CaseResult, coverage: Coverage | None = None) -> str:
    return render(Run(results, coverage, 1.0, ENVIRONMENT))


def test_the_page_loads_nothing_from_anywhere() -> None:
    text = page(replace(result("m/a", finding("m/a")), picture=picture(3, shared=True)))
    assert not re.findall(r"""(?:src|href)=["'](?!#|data:,)""", text)
    assert "url(" not in text
    assert "@import" not in text
    assert "default-src 'none'" in text


def test_the_matrix_says_how_each_check_ended() -> None:
    text = page(result("m/a", finding("m/a")), result("m/b"), result("m/c", path="independent"))
    assert "freshness on tiny, shared: 1 failed, 1 passed; 2,000 elements compared" in text
    assert "freshness on tiny, independent: 1 passed; 1,000 elements compared" in text
    assert "FAILED: 1 unexpected finding" in text


def test_a_finding_is_shown_with_the_lines_around_it() -> None:
    text = page(replace(result("m/a", finding("m/a")), around=(AROUND,)))
    assert '<td class="wrong first"><span class="got">2</span> <span class="want">3</span></td>' in text
    assert "the value of round b4.02" in text
    assert "request 7" in text
    assert "round b4.03, again in b4.05" in text


def test_cases_lead_from_their_cause_and_carry_what_filters_need() -> None:
    text = page(result("m/a", finding("m/a")), result("m/b", skipped="no GPU"))
    assert 'id="case-0" data-verdict="failed"' in text
    assert 'data-checks="freshness"' in text
    assert '<a href="#case-0">m/a</a>' in text
    assert "Skipped: no GPU" in text


def test_names_and_messages_are_text_and_no_markup() -> None:
    hostile = "<script>alert(1)</script>"
    text = page(result(hostile, finding(hostile, message=hostile, hint=hostile)))
    assert hostile not in text
    assert "&lt;script&gt;alert(1)" in text


def test_what_was_left_out_is_said() -> None:
    text = page(result("m/a"), coverage=Coverage(2, {"no <such> thing": 7}, {"no GPU": 1}))
    assert "Planned 2 cases, run 1, skipped 1." in text
    assert "7 combinations of the cross product: no &lt;such&gt; thing" in text


def test_equal_drawings_are_in_the_page_once() -> None:
    one = replace(result("m/a"), picture=picture(3, shared=True))
    text = page(one, replace(one, case="m/b"))
    drawings = re.findall(r'<template id="(\w+)"', text)
    assert len(drawings) == len(set(drawings)) == 4
    assert text.count(f'data-drawing="{drawings[0]}"') == 2


def test_the_ordinary_path_stands_beside_the_shared_one() -> None:
    shared = replace(result("m/a"), picture=picture(2, shared=True))
    apart = replace(result("m/b", path="independent"), picture=picture(3, shared=False))
    text = page(shared, apart)
    assert text.count("path independent, the ordinary one: Step 1 shares nothing with step 0.") == 2
    assert "path shared: Step 1 shares all bytes with step 0." in text


def test_a_full_matrix_stays_small() -> None:
    results = []
    for n in range(200):
        shared = n % 2 == 0
        one = result(
            f"m/{n}", *([finding(f"m/{n}")] if n < 40 else []), path="shared" if shared else "independent"
        )
        results.append(replace(one, picture=picture(2 + n % 5, shared=shared, seed=n % 20)))
    assert len(page(*results).encode()) < LIMIT


def test_a_kept_json_report_gives_the_same_page_without_drawings(tmp_path: Path) -> None:
    results = (
        result("m/a", finding("m/a"), finding("m/a", known="declared", steps=(2,))),
        result("m/a", finding("m/a", kind="poison_left"), sut="other"),
        result("m/b", skipped="no GPU"),
    )
    kept = tmp_path / "report.json"
    jsonreport.write(kept, jsonreport.document(results, 2.0))
    run_ = load_run(kept)
    assert [one.axes["sut"] for one in run_.results] == ["embedded", "embedded", "other"]
    assert run_.results[0].findings[0] == results[0].findings[0]
    assert run_.results[2].findings[0].kind == "poison_left"
    text = render(run_)
    assert "2 unexpected findings, 1 known finding" in text
    assert "No drawings" in text
    assert "<template" not in text


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "not a JSON report"),
        ('{"schema": 1}', "not a JSON report"),
        (json.dumps(jsonreport.document([], 0) | {"schema": 99}), "schema 99"),
        (json.dumps(jsonreport.document([result("a", finding("a"))], 0) | {"findings": []}), "do not belong"),
    ],
)
def test_another_file_is_refused_in_one_line(tmp_path: Path, text: str, says: str) -> None:
    kept = tmp_path / "report.json"
    kept.write_text(text)
    with pytest.raises(UsageError, match=says) as error:
        load_run(kept)
    assert "\n" not in str(error.value)


def test_a_kill_matrix_shows_who_spoke_and_what_survived(tmp_path: Path) -> None:
    file = tmp_path / "kills.json"
    file.write_text(json.dumps(KILLS))
    text = render(Run((result("m/a"),), None, 1.0, ENVIRONMENT), load_kills(file))
    assert "faults: 1 of 2 killed" in text
    assert '<tr class="bad"><th scope="row">A2</th>' in text
    assert '<td class="mark">●</td><td class="mark">○</td>' in text


def test_what_is_no_kill_matrix_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "kills.json"
    file.write_text(json.dumps(KILLS | {"schema": "else/1"}))
    with pytest.raises(UsageError, match="is not that of a kill matrix"):
        load_kills(file)
    with pytest.raises(UsageError, match="not a kill matrix"):
        load_kills(tmp_path / "none.json")
    with pytest.raises(UsageError, match="give --report FILE, too"):
        check_asked(None, file)


def test_a_page_that_cannot_be_written_is_refused_before_the_run(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is a folder"):
        check_asked(tmp_path, None)
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot make folder"):
        check_asked(tmp_path / "file" / "page.html", None)
    write(tmp_path / "page.html", "text")
    assert [one.name for one in sorted(tmp_path.iterdir())] == ["file", "page.html"]


def test_the_command_line_loads_no_template_engine_until_a_page_is_asked_for() -> None:
    code = "import sys, harness.cli, harness.plugin; print([m for m in ('jinja2',) if m in sys.modules])"
    done = run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
