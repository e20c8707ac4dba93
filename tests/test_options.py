"""What the command that runs a case again needs."""

import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from harness import locate
from harness.cli import cli
from harness.options import RunOptions, flags_of

DEFAULT = RunOptions(locate.CHECKOUT / "cases", locate.CHECKOUT / "golden")


def test_the_default_run_needs_nothing() -> None:
    assert flags_of(DEFAULT) == ""
    assert flags_of(replace(DEFAULT, sut_options={"version": "0.5.20"})) == ""  # the report says it itself


def test_what_was_given_is_given_again(tmp_path: Path) -> None:
    own = tmp_path / "my cases"
    options = replace(
        DEFAULT,
        cases_dir=own,
        golden_dir=tmp_path / "kept",
        golden="off",
        sut_options={"plan": "a b"},
        full=True,
    )
    words = shlex.split(flags_of(options))
    assert words == [
        "--full", "--cases-dir", str(own), "--golden-dir", str(tmp_path / "kept"), "--no-golden",
        "--sut-option", "plan=a b",
    ]  # fmt: skip
    own.mkdir()
    context = cli.commands["verify"].make_context("verify", [*words, "--case", "x"])
    assert context.params["sut_option"] == {"plan": "a b"}


def test_goldens_beside_given_cases_are_found_again(tmp_path: Path) -> None:
    options = replace(DEFAULT, cases_dir=tmp_path / "cases", golden_dir=tmp_path / "golden")
    assert shlex.split(flags_of(options)) == ["--cases-dir", str(tmp_path / "cases")]


def test_cases_of_the_working_folder_are_the_default_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cases").mkdir()
    (tmp_path / "cases" / "a.toml").touch()
    monkeypatch.chdir(tmp_path)
    assert flags_of(RunOptions(Path("cases"), Path("golden"))) == ""
