"""The program on the tiny model, nothing replaced: run, save, judge again, accept, compare, tamper."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from harness import locate
from harness.cli import main

CASES = ("--model", "tiny", "--path", "independent", "--drill", "plain", "--mode", "decode")
ONE = (*CASES, "--bucket", "1")


def copy_cases(folder: Path) -> None:
    (folder / "cases").mkdir()
    for name in ("tiny.toml", "known_findings.toml"):
        shutil.copy(locate.CHECKOUT / "cases" / name, folder / "cases")


def timeless(file: Path) -> dict[str, Any]:
    """A report without what may differ between two runs."""
    report: dict[str, Any] = json.loads(file.read_text())
    for entry in (report["summary"], *report["cases"]):
        entry["seconds"] = 0
    return {**report, "environment": {}}


@pytest.fixture(scope="module")
def run_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with case files, a run's JSON report and its observations."""
    folder = tmp_path_factory.mktemp("run")
    copy_cases(folder)
    status = main(
        ["verify", *CASES, "--bucket", "1", "--bucket", "2", "--jobs", "1", *written(folder, "first")]
    )
    assert status == 0
    return folder


def written(folder: Path, name: str) -> list[str]:
    places = ["--cases-dir", str(folder / "cases"), "--no-golden"]
    return [*places, "--save", str(folder / name), "--json", str(folder / f"{name}.json")]


def test_the_report_counts_what_ran(run_once: Path) -> None:
    report = json.loads((run_once / "first.json").read_text())
    summary = report["summary"]
    assert summary["cases"] == len(report["cases"]) >= 2
    assert summary["replays"] == sum(case["replays"] for case in report["cases"]) > 0
    assert summary["elements"] > 10_000
    assert report["environment"]["facts"]["embedded"]


def test_judging_the_saved_observations_gives_the_same_report(run_once: Path) -> None:
    judged = run_once / "judged.json"
    places = ["--cases-dir", str(run_once / "cases"), "--no-golden", "--json", str(judged)]
    assert main(["judge", str(run_once / "first"), *places]) == 0
    assert timeless(judged) == timeless(run_once / "first.json")


def test_two_runs_agree_to_the_byte_whatever_the_number_of_workers(run_once: Path) -> None:
    flags = [*CASES, "--bucket", "1", "--bucket", "2", "--jobs", "2", *written(run_once, "second")]
    assert main(["verify", *flags]) == 0
    one, two = timeless(run_once / "first.json"), timeless(run_once / "second.json")
    assert json.dumps(one) == json.dumps(two)


def test_a_damaged_observation_is_one_line(run_once: Path, capsys: pytest.CaptureFixture[str]) -> None:
    damaged = run_once / "damaged"
    shutil.copytree(run_once / "first", damaged)
    file = min(damaged.glob("*.safetensors"))
    file.write_bytes(file.read_bytes()[:100])
    assert main(["judge", str(damaged), "--cases-dir", str(run_once / "cases"), "--no-golden"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "not a saved observation" in line


def test_goldens_are_accepted_compared_and_guarded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for variable in ("CI", "PYTEST_XDIST_WORKER"):
        monkeypatch.delenv(variable, raising=False)
    copy_cases(tmp_path)
    monkeypatch.chdir(tmp_path)

    assert main(["verify", *ONE, "--jobs", "1"]) == 1
    assert "golden: " in capsys.readouterr().out

    assert main(["golden", "update", "new", "--reason", "the first one", *ONE]) == 0
    assert "why: the first one" in capsys.readouterr().out
    assert main(["golden", "check"]) == 0
    assert main(["verify", *ONE, "--jobs", "1", "--json", "report.json"]) == 0
    checks = json.loads(Path("report.json").read_text())["cases"][0]["checks"]
    assert {check["check"]: check["verdict"] for check in checks}["golden"] == "passed"

    stored = Path("golden/tiny.tape.safetensors")
    whole = stored.read_bytes()
    stored.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    capsys.readouterr()
    assert main(["verify", *ONE, "--jobs", "1"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "golden/tiny.tape.safetensors" in err
    stored.write_bytes(whole)

    for suffix in ("safetensors", "manifest.json"):
        shutil.copy(f"golden/tiny.tape.{suffix}", f"golden/gone.tape.{suffix}")
    assert main(["golden", "check"]) == 1
    assert "gone.tape.manifest.json: an orphan" in capsys.readouterr().out


def test_goldens_are_not_accepted_in_ci(
    run_once: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CI", "true")
    flags = [*ONE, "--cases-dir", str(run_once / "cases")]
    assert main(["golden", "update", "all", "--reason", "none", *flags]) == 2
    assert "never updated in CI" in capsys.readouterr().err
    assert not (run_once / "golden").exists()
