import pytest

COLLECT = ("--collect-only", "-q")


def test_all_models_are_the_default(pytester: pytest.Pytester) -> None:
    pytester.runpytest().stdout.fnmatch_lines(["replay harness: *, models all, *"])


def test_the_command_line_wins_over_the_ini_file(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\nharness_model = tiny glm-5\n")
    pytester.runpytest().stdout.fnmatch_lines(["replay harness: *, models tiny glm-5, *"])
    chosen = pytester.runpytest("--harness-model", "a", "--harness-model", "b")
    chosen.stdout.fnmatch_lines(["replay harness: *, models a b, *"])


def test_cases_of_the_model_are_collected_under_their_ids(tiny_project: pytest.Pytester) -> None:
    lines = tiny_project.runpytest_subprocess("--harness-model", "tiny", *COLLECT).outlines
    cases = [line for line in lines if line.startswith("test_matrix.py::test_case[tiny/")]
    assert len(cases) > 20
    assert len(set(cases)) == len(cases)


def test_an_unknown_model_is_a_collection_error_of_one_line(tiny_project: pytest.Pytester) -> None:
    result = tiny_project.runpytest_subprocess("--harness-model", "glm-9")
    assert result.ret == pytest.ExitCode.INTERRUPTED
    result.stdout.fnmatch_lines(["no case is selected: none has --model glm-9;*"])
    assert "Traceback" not in result.stdout.str()


def test_a_broken_case_file_is_a_collection_error_of_one_line(tiny_project: pytest.Pytester) -> None:
    file = tiny_project.path / "cases" / "tiny.toml"
    file.write_text(file.read_text().replace("heads", "hands"))
    result = tiny_project.runpytest_subprocess("--harness-model", "tiny")
    assert result.ret == pytest.ExitCode.INTERRUPTED
    result.stdout.fnmatch_lines(["*tiny.toml: *`hands`*"])
    assert "Traceback" not in result.stdout.str()
