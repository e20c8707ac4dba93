"""`replay-harness fuzz`: what it prints, keeps and returns."""

from __future__ import annotations

import json
import shlex
from pathlib import Path as FilePath

import pytest

from harness.cli import FOUND, PASSED, USAGE, main
from harness.fuzz.planted import reachable, unreachable
from harness.fuzz.session import Progress
from harness.fuzz.store import dump_sequence
from harness.fuzz.trial import LEFT_OUT
from tests.fuzz.samples import captured, replayed, sequence_of

NARROW = "--model tiny --path shared --steps 3 --mode decode --fusion off --kernel fa3"


def fuzz(arguments: str, folder: FilePath) -> int:
    return main(["fuzz", "--database", str(folder), *shlex.split(arguments)])


def test_a_clean_run_says_what_was_judged_and_what_was_not(
    tmp_path: FilePath, capsys: pytest.CaptureFixture[str]
) -> None:
    report = tmp_path / "report.json"
    assert fuzz(f"--seconds 0.5 --seed 1 {NARROW} --json {report}", tmp_path) == PASSED
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1].startswith("OK: nothing found; ")
    assert lines[-1].endswith("seed 1")
    assert any(line.startswith("judged    ") and "freshness" in line for line in lines)
    assert {name for name in LEFT_OUT if any(line.startswith(f"left out  {name}: ") for line in lines)} == {
        "golden",
        "evidence",
    }
    data = json.loads(report.read_text())
    assert data["found"] is None
    assert data["sequences"] >= 1
    assert data["checks"]["freshness"] == data["sequences"]


def test_a_planted_fault_is_printed_as_a_file_and_a_command_that_shows_it_again(
    tmp_path: FilePath, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fuzz("--plant A9b --seconds 600 --seed 1 --shrinking 4", tmp_path) == FOUND
    output = capsys.readouterr().out
    assert output.splitlines()[-1].startswith("FAILED: ")
    assert "freshness: " in output
    (again,) = (line.removeprefix("again     ") for line in output.splitlines() if line.startswith("again"))
    program, *arguments = shlex.split(again)
    assert program == "replay-harness"
    (file,) = tmp_path.glob("found/*.toml")
    assert file.read_text().rstrip() in output

    assert main(arguments) == FOUND
    assert f"{file}: " in capsys.readouterr().out
    assert fuzz(f"--replay {tmp_path}/found", tmp_path) == PASSED
    assert "nothing found" in capsys.readouterr().out


def test_the_catalogue_gives_a_table(tmp_path: FilePath, capsys: pytest.CaptureFixture[str]) -> None:
    report = tmp_path / "table.json"
    status = fuzz(f"--catalogue --plant A9b --seconds 600 --seed 1 --shrinking 12 --json {report}", tmp_path)
    assert status == PASSED
    assert "1 of 1 found (100.0%, wanted 95%)" in capsys.readouterr().out
    data = json.loads(report.read_text())
    (row,) = data["faults"]
    assert row["id"] == "A9b"
    assert row["found"]
    assert row["as_expected"]
    assert 1 <= row["operations"] <= 4
    assert row["operations"] <= row["drawn"]
    assert set(data["left_out"]).isdisjoint(fault.id for fault in reachable("embedded"))


USAGE_ERRORS = [
    ("--plant Z99", "--plant Z99: no such fault of embedded"),
    ("--plant A9 --plant A6", "several --plant are for --catalogue"),
    ("--catalogue --plant Z99", "--plant Z99: no such fault"),
    ("--model other", "--model other: no such model"),
    ("--path released", "no setting of embedded is selected"),
    ("--sut other", "no system under test is called 'other'"),
    ("--replay {folder}/empty", "holds no sequences"),
    ("--replay {folder}/broken.toml", "broken.toml: setting.steps: 9 is no variant"),
]


@pytest.mark.parametrize(("arguments", "said"), USAGE_ERRORS)
def test_what_cannot_be_done_ends_in_one_line(
    arguments: str, said: str, tmp_path: FilePath, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty").mkdir()
    text = dump_sequence(sequence_of(captured(), replayed(5))).replace("unit-p4", "tiny")
    (tmp_path / "broken.toml").write_text(text.replace("steps = 3", "steps = 9"))
    assert fuzz(arguments.format(folder=tmp_path), tmp_path) == USAGE
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line


def test_every_fault_is_reachable_or_says_why_not() -> None:
    from harness.faults.catalogue import entries

    reached = {fault.id for fault in reachable("embedded")}
    assert reached
    assert all(bool(unreachable(entry)) == (entry.id not in reached) for entry in entries("embedded"))


def test_progress_is_said_every_ten_seconds() -> None:
    from harness.fuzz.campaign import Tally

    said: list[str] = []
    moments = iter((0.0, 4.0, 11.0, 12.0, 22.0))
    progress = Progress(said.append, lambda: next(moments))
    for second in (4, 11, 12, 22):
        progress(Tally(sequences=second), float(second))
    assert [line.split()[0] for line in said] == ["11", "22"]
    assert progress.last.startswith("22 sequences")
