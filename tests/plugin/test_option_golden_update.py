import pytest

ONE_TEST = "def test_passes(): pass"


@pytest.mark.parametrize("value", ["new", "changed", "all"])
def test_the_header_says_that_goldens_are_updated(pytester: pytest.Pytester, value: str) -> None:
    pytester.runpytest(f"--golden-update={value}").stdout.fnmatch_lines(
        [f"replay harness: *, golden update {value}"]
    )


def test_the_command_line_wins_over_the_ini_file(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\nharness_golden_update = new\n")
    pytester.runpytest().stdout.fnmatch_lines(["*, golden update new"])
    pytester.runpytest("--golden-update=all").stdout.fnmatch_lines(["*, golden update all"])


def test_an_ini_value_outside_the_vocabulary_is_one_line(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\nharness_golden_update = everything\n")
    result = pytester.runpytest()
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: ini file: *'everything' is none of new, changed, all*"])


def test_it_is_refused_in_ci(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    pytester.makepyfile(ONE_TEST)
    monkeypatch.setenv("CI", "true")
    result = pytester.runpytest("--golden-update=new")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: --golden-update: refused in CI*"])


@pytest.mark.parametrize("off", ["", "0", "false"])
def test_a_variable_ci_that_says_no_is_no_ci(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, off: str
) -> None:
    pytester.makepyfile(ONE_TEST)
    monkeypatch.setenv("CI", off)
    pytester.runpytest("--golden-update=new").assert_outcomes(passed=1)


@pytest.mark.parametrize("workers", [("-n", "2"), ("-n", "1"), ("--tx", "2*popen", "--dist", "load")])
def test_it_is_refused_with_workers(pytester: pytest.Pytester, workers: tuple[str, ...]) -> None:
    pytester.makepyfile(ONE_TEST)
    result = pytester.runpytest("--golden-update=new", *workers)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: --golden-update: refused with xdist workers*"])


def test_workers_without_an_update_are_fine(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(ONE_TEST)
    pytester.runpytest("-n", "2").assert_outcomes(passed=1)
