import pytest


def test_all_paths_are_the_default(pytester: pytest.Pytester) -> None:
    pytester.runpytest().stdout.fnmatch_lines(["replay harness: *, paths all"])


def test_the_command_line_wins_over_the_ini_file(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\nharness_path = shared released\n")
    pytester.runpytest().stdout.fnmatch_lines(["replay harness: *, paths shared released"])
    chosen = pytester.runpytest("--harness-path", "independent")
    chosen.stdout.fnmatch_lines(["replay harness: *, paths independent"])


def test_values_outside_the_vocabulary_are_usage_errors(pytester: pytest.Pytester) -> None:
    result = pytester.runpytest("--harness-path", "stolen")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*--harness-path: invalid choice: 'stolen'*"])
    pytester.makeini("[pytest]\nharness_path = stolen\n")
    result = pytester.runpytest()
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: ini file: 'stolen' is not a valid Path*"])


def test_only_cases_of_the_path_are_collected(tiny_project: pytest.Pytester) -> None:
    flags = ("--harness-model", "tiny", "--harness-path", "shared", "--collect-only", "-q")
    cases = [line for line in tiny_project.runpytest_subprocess(*flags).outlines if "::" in line]
    assert cases
    assert all("[tiny/shared/" in case for case in cases)
