import pytest


def test_embedded_is_the_default(pytester: pytest.Pytester) -> None:
    pytester.runpytest().stdout.fnmatch_lines(["replay harness: sut embedded, *"])


def test_the_command_line_wins_over_the_ini_file(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\nharness_sut = sglang\n")
    pytester.runpytest().stdout.fnmatch_lines(["replay harness: sut sglang, *"])
    pytester.runpytest("--harness-sut", "other").stdout.fnmatch_lines(["replay harness: sut other, *"])
