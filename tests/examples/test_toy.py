"""The tutorial's toy: right as it is, and its planted fault is named by check, field, step and cause."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.cli import main
from tests.examples.support import EXAMPLES, installed

CASES = ("--sut", "toy", "--cases-dir", str(EXAMPLES / "toy" / "cases"), "--jobs", "1")


@pytest.fixture(autouse=True, scope="module")
def _toy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with installed("toy", tmp_path_factory.mktemp("site")):
        yield


def verified(folder: Path, *flags: str, golden: bool = False) -> tuple[int, dict[str, Any]]:
    """Run the toy's matrix; return the status and the JSON report."""
    report = folder / "report.json"
    places = ["--golden-dir", str(folder / "golden")] if golden else ["--no-golden"]
    status = main(["verify", *CASES, *places, "--json", str(report), *flags])
    return status, json.loads(report.read_text())


def test_the_right_toy_passes_and_every_case_of_its_own_axes_is_driven(tmp_path: Path) -> None:
    status, report = verified(tmp_path)
    assert status == 0
    assert {case["skipped"] for case in report["cases"]} == {""}
    assert {case["axes"]["path"] for case in report["cases"]} == {"released", "shared"}
    assert {case["axes"]["mode"] for case in report["cases"]} == {"decode"}
    assert report["summary"]["elements"] > 50_000


def test_the_planted_fault_is_the_plan_s_and_nothing_else_s(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, report = verified(tmp_path, "--sut-option", "plan=cached", "--bucket", "4")
    assert status == 1
    assert {finding["field"] for finding in report["findings"]} == {"plan"}
    assert {finding["check"] for finding in report["findings"]} >= {"freshness", "refresh"}
    said = capsys.readouterr().out
    assert "derived once and kept under a key that did not change" in said


def test_goldens_are_made_of_own_fields_as_of_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("CI", "PYTEST_XDIST_WORKER"):
        monkeypatch.delenv(variable, raising=False)
    few = ("--path", "released", "--drill", "plain", "--bucket", "2")
    places = ("--golden-dir", str(tmp_path / "golden"))
    assert main(["golden", "update", "new", "--reason", "first", *CASES[:4], *places, *few]) == 0
    status, report = verified(tmp_path, *few, golden=True)
    assert status == 0
    compared = [check for case in report["cases"] for check in case["checks"] if check["check"] == "golden"]
    assert {check["verdict"] for check in compared} == {"passed"}
    assert sum(check["elements"] for check in compared) > 100
