"""`replay-harness plant`: one fault, reported so that field, step, round and cause can be read off."""

from pathlib import Path

import pytest

from harness.cli import main


def test_a_planted_fault_is_told_by_field_step_round_and_cause(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    page = tmp_path / "page.html"
    assert main(["plant", "A6c", "--report", str(page)]) == 1
    said = capsys.readouterr().out
    assert said.startswith(
        "planted: The top-k plan is kept as long as the longest request has the same length."
    )
    for text in (
        "freshness: stale, topk_v2_plan, steps 0, 1, path independent (1 case)",
        "topk_v2_plan of step 0 holds the value of round ",
        "derived once and kept under a key that did not change",
        "around ",
        "again    replay-harness plant A6c",
    ):
        assert text in said
    assert "<code>replay-harness plant A6c</code>" in page.read_text()


def test_an_id_that_there_is_not_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plant", "Z99"]) == 2
    assert capsys.readouterr().err == (
        "replay-harness: --id Z99: no such entry for embedded; docs/faults.md lists them\n"
    )
