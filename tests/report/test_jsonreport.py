import json
import os
from pathlib import Path
from typing import Any

import pytest

from harness.errors import UsageError
from harness.findings import CaseResult
from harness.report import jsonreport
from tests.report.sample import finding, result


def results() -> list[CaseResult]:
    return [result("b", finding("b", known="K1")), result("a", finding("a")), result("c", skipped="no GPU")]


def timeless(report: dict[str, Any]) -> str:
    """The report's text without what may differ between two runs."""
    for entry in (report["summary"], *report["cases"]):
        entry["seconds"] = 0
    return json.dumps({**report, "environment": {}})


def test_the_schema_is_as_documented() -> None:
    report = jsonreport.document(results(), 12.3456)
    assert list(report) == ["schema", "environment", "summary", "cases", "findings"]
    assert report["schema"] == 1
    assert report["summary"] == {
        "cases": 2,
        "replays": 16,
        "checks": 4,
        "elements": 2080,
        "findings": 2,
        "known_findings": 1,
        "unexpected": 1,
        "seconds": 12.346,
    }


def test_reports_of_two_runs_differ_in_times_and_environment_only() -> None:
    again = [result(r.case, *r.findings, skipped=r.skipped, seconds=9.0) for r in reversed(results())]
    one, two = jsonreport.document(results(), 1.0), jsonreport.document(again, 2.0)
    assert one != two
    assert timeless(one) == timeless(two)


def test_a_finding_keeps_everything_that_a_reader_needs() -> None:
    report = jsonreport.document(results(), 1.0)
    first, second = report["findings"]
    assert (first["case"], first["known"]) == ("a", "")
    assert first["first"] == {
        "row": 7,
        "column": 1,
        "expected": "3",
        "got": "2",
        "note": "the value of round b4.02",
    }
    assert list(first["rounds"]) == ["b4.03", "b4.05"]
    assert (second["case"], second["known"]) == ("b", "K1")


def test_a_case_lists_each_check_with_its_verdict_and_skipped_cases_say_why() -> None:
    cases = {case["case"]: case for case in jsonreport.document(results(), 1.0)["cases"]}
    assert [check["verdict"] for check in cases["a"]["checks"]] == ["passed", "failed", "not_applicable"]
    assert cases["a"]["verdict"] == "failed"
    assert cases["b"]["verdict"] == "known"
    assert (cases["c"]["verdict"], cases["c"]["skipped"]) == ("not_applicable", "no GPU")


def test_facts_of_systems_are_environment_with_all_values() -> None:
    facts = jsonreport.document(results(), 1.0)["environment"]["facts"]
    assert facts == {"embedded": {"device": ["cpu"]}}


def test_a_report_is_written_as_json_that_reads_back(tmp_path: Path) -> None:
    report = jsonreport.document(results(), 1.0)
    jsonreport.write(tmp_path / "report.json", report)
    assert json.loads((tmp_path / "report.json").read_text())["summary"] == report["summary"]
    assert [path.name for path in tmp_path.iterdir()] == ["report.json"]


def test_a_failed_write_leaves_the_old_report_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "report.json"
    target.write_text("old")

    def no_space(source: str, destination: str) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", no_space)
    with pytest.raises(UsageError, match=r"report\.json: No space left on device"):
        jsonreport.write(target, jsonreport.document(results(), 1.0))
    assert target.read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["report.json"]


def test_an_unwritable_place_is_reported_before_the_run(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot make folder"):
        jsonreport.check_writable(tmp_path / "file" / "report.json")
    with pytest.raises(UsageError, match="is a folder"):
        jsonreport.check_writable(tmp_path)
    jsonreport.check_writable(tmp_path / "new" / "report.json")
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == ["new"]
