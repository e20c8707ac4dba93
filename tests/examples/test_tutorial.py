"""The tutorial says what is so: snippets are in the example files, output is what the commands print."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.cli import main
from harness.locate import CHECKOUT
from tests.examples.support import EXAMPLES, installed

TUTORIAL = (CHECKOUT / "docs" / "tutorial.md").read_text()
SOURCES = {file: file.read_text() for file in EXAMPLES.rglob("*") if file.suffix in (".py", ".toml")}


def blocks(tag: str) -> list[str]:
    return re.findall(rf"^```{tag}\n(.*?)^```$", TUTORIAL, flags=re.M | re.S)


@pytest.fixture(autouse=True, scope="module")
def _examples(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    folders = tmp_path_factory.mktemp("toy"), tmp_path_factory.mktemp("planrun")
    with installed("toy", folders[0]), installed("planrun", folders[1]):
        yield


@pytest.mark.parametrize(
    "block", [*blocks("python"), *blocks("toml")], ids=lambda block: block.split("\n")[0]
)
def test_every_snippet_stands_in_an_example(block: str) -> None:
    assert any(block in text for text in SOURCES.values())


def test_the_toy_is_as_long_as_the_tutorial_says() -> None:
    assert 55 <= len(SOURCES[EXAMPLES / "toy" / "toy_backend.py"].splitlines()) <= 65


@pytest.mark.parametrize(("number", "sut"), [(1, "toy"), (2, "planrun")])
def test_the_output_of_a_planted_fault_is_as_shown(
    number: int, sut: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "132")
    monkeypatch.chdir(CHECKOUT)
    (command,) = blocks("sh finds")[number - 1].splitlines()
    words = shlex.split(command.replace("out/", f"{tmp_path}/"))
    assert words[:4] == ["replay-harness", "verify", "--sut", sut]
    assert main([*words[1:], "--jobs", "1"]) == 1
    said = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    for line in blocks("text")[number].splitlines():
        assert line in said
