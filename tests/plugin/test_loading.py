import pytest

SHORT_NAMES = """
    def pytest_addoption(parser):
        for name in ("--sut", "--engine", "--model", "--path"):
            parser.addoption(name)
"""


def test_the_plugin_loads_in_any_project_without_importing_torch(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import sys

        def test_nothing_heavy_was_imported(pytestconfig):
            assert pytestconfig.pluginmanager.has_plugin("replay_harness")
            assert not {"torch", "numpy", "triton"} & set(sys.modules)
        """
    )
    pytester.runpytest_subprocess().assert_outcomes(passed=1)


def test_a_project_may_have_options_with_the_short_names(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(SHORT_NAMES)
    pytester.makepyfile("def test_model(pytestconfig): assert pytestconfig.getoption('--model') == 'theirs'")
    pytester.runpytest_subprocess("--model", "theirs").assert_outcomes(passed=1)


def test_a_project_may_take_the_short_names_from_the_plugin(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(
        """
        from harness.plugin import add_options

        def pytest_addoption(parser):
            add_options(parser, "--")
        """
    )
    result = pytester.runpytest_subprocess("--model", "glm-5", "--sut", "embedded")
    result.stdout.fnmatch_lines(["replay harness: sut embedded, engine tape, models glm-5, paths all"])


def test_all_options_stand_in_one_group_of_the_help(pytester: pytest.Pytester) -> None:
    help_text = pytester.runpytest_subprocess("--help").stdout.str()
    group = help_text.split("replay harness:")[1].split("\n\n")[0]
    for option in ("sut", "engine", "model", "path"):
        assert f"--harness-{option}" in group
    assert "--golden-update" in group
