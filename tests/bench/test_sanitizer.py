"""compute-sanitizer's runner, over a tool made of a few lines; what it runs, by its cases."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness.bench import sanitized, sanitizer
from harness.fields import Dims, plan_is_written
from harness.types import Mode

CLEAN = "echo 'a/b longest 9: right'; echo '========= ERROR SUMMARY: 0 errors'"


def tool(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Put a compute-sanitizer on the PATH that runs a shell script."""
    program = folder / sanitizer.PROGRAM
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


@pytest.mark.parametrize(
    ("script", "status", "errors", "right"),
    [
        (CLEAN, 0, 0, True),
        ("echo 'a/b longest 9: right'; echo '= RACECHECK SUMMARY: 0 hazards displayed'", 0, 0, True),
        ("echo 'a/b longest 9: right'; echo '========= ERROR SUMMARY: 3 errors'", 1, 3, True),
        ("echo 'a/b longest 9: topk_v2_plan'; echo '========= ERROR SUMMARY: 0 errors'; exit 1", 1, 0, False),
        ("echo 'a/b longest 9: right'", 1, -1, True),
    ],
)
def test_errors_and_wrong_leaves_end_with_status_one(
    script: str, status: int, errors: int, right: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool(tmp_path, monkeypatch, script)
    file = tmp_path / "summary.json"
    assert sanitizer.main(["--json", str(file)]) == status
    tools = json.loads(file.read_text())["tools"]
    assert [one["tool"] for one in tools] == ["memcheck", "initcheck", "racecheck"]
    assert {(one["errors"], one["right"]) for one in tools} == {(errors, right)}


def test_every_tool_gets_allocations_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool(tmp_path, monkeypatch, f'echo "$2 $PYTORCH_NO_CUDA_MEMORY_CACHING" >> {tmp_path}/called; {CLEAN}')
    assert sanitizer.main([]) == 0
    called = sorted((tmp_path / "called").read_text().splitlines())
    assert called == ["initcheck 1", "memcheck 1", "racecheck 1"]


def test_without_the_tool_it_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert sanitizer.main([]) == 2
    assert capsys.readouterr().err == (
        "sanitizer: compute-sanitizer is not on the PATH: it comes with the CUDA toolkit\n"
    )


def test_what_is_run_has_every_mode_and_writes_plans() -> None:
    cases = list(sanitized.cases())
    assert {(case.mode, case.model.index_kpool) for case in cases} == {(m, p) for m in Mode for p in (1, 4)}
    assert any(plan_is_written(Dims.of(case, sanitized.BUCKET)) for case in cases)
    assert len({case.id for case in cases}) == len(cases)
