"""`replay-harness faults`: what it prints, writes and returns."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.cli import main
from harness.faults import catalogue

Run = Callable[..., int]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    systems = {**catalogue.SYSTEMS, "sample": "tests.faults.sample", "absent": "tests.faults.no_such_module"}
    monkeypatch.setattr(catalogue, "SYSTEMS", systems)
    return lambda *arguments: main(["faults", "--sut", "sample", "--jobs", "1", *arguments])


def test_killed_faults_and_clean_changes_are_success(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "new" / "faults.json"
    assert run("--id", "A1", "--id", "A2", "--id", "Y1", "--json", str(file)) == 0
    assert "faults: 2 of 2 killed; harmless: 0 of 1 runs flagged" in capsys.readouterr().out
    document = json.loads(file.read_text())
    assert [one["id"] for one in document["trials"]] == ["A1", "A2", "Y1"]
    assert document["trials"][0]["first"] == "freshness"
    assert document["trials"][1]["operations"] > 0


def test_anything_else_is_a_failure(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--id", "A3", "--id", "B1", "--id", "B2", "--id", "B3", "--id", "Y2") == 1
    text = capsys.readouterr().out
    for line in ("elsewhere A3", "survived B1", "unreached B2", "unreached B3", "flagged Y2"):
        assert f"{line} on tiny-p1/" in text


def test_a_class_is_chosen_by_its_letter(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--class", "B", "--list") == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["B1", "B2", "B3"]
    assert run("--class", "harmless", "--id", "A1", "--list") == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["A1", "Y1", "Y2"]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--id", "Z9"), "--id Z9: no such entry for sample"),
        (("--class", "Q"), "--class Q: there is A, B, harmless"),
        (("--reverse", "--id", "A1"), "leave --class and --id out"),
        (("--sut", "absent"), "--sut absent: no faults are known for it; there are some for embedded"),
        (("--sut", "nobody"), "--sut nobody: no faults are known for it"),
        (("--json", "."), "--json .: is a folder"),
    ],
)
def test_what_does_not_exist_is_a_usage_error(
    run: Run, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], text: str
) -> None:
    assert run(*arguments) == 2
    assert text in capsys.readouterr().err


def test_two_workers_try_what_one_does(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["faults", "--jobs", "2", "--id", "L1", "--id", "Y20"]) == 0
    assert "faults: 1 of 1 killed; harmless: 0 of 1 runs flagged" in capsys.readouterr().out


def test_the_reverse_gate_names_checks_that_nobody_needs(
    run: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from tests.faults import sample

    monkeypatch.setattr(sample, "ENTRIES", (sample.KILLED, sample.TWICE, sample.CLEAN))
    assert run("--reverse") == 1
    text = " ".join(capsys.readouterr().out.split())  # lines are as long as the terminal
    assert "superfluous ordering: switched off, every fault is still noticed by another check" in text
    assert "superfluous freshness" not in text
