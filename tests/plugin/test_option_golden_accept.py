import pytest

SELECTED = ("--harness-model", "tiny", "--harness-path", "independent", "-k", "decode and bs1 and plain")


def test_the_named_golden_is_accepted_with_its_reason(tiny_project: pytest.Pytester) -> None:
    accepted = tiny_project.runpytest_subprocess(
        *SELECTED, "--golden-accept=tiny.tape", "--golden-reason=the first one"
    )
    assert accepted.ret == pytest.ExitCode.OK
    accepted.stdout.fnmatch_lines(["accepted: tiny.tape; why: the first one"])
    golden = tiny_project.path / "golden"
    assert (golden / "tiny.tape.manifest.json").exists()
    assert not list((golden / "pending").iterdir())


def test_another_name_is_an_error_that_tells_the_pending_ones(tiny_project: pytest.Pytester) -> None:
    result = tiny_project.runpytest_subprocess(*SELECTED, "--golden-accept=other.tape")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["*no golden 'other.tape' is pending; pending are: tiny.tape*"])
    assert not (tiny_project.path / "golden" / "tiny.tape.manifest.json").exists()


def test_it_is_refused_in_ci(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    pytester.makepyfile("def test_passes(): pass")
    monkeypatch.setenv("CI", "true")
    result = pytester.runpytest("--golden-accept=tiny.tape")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: --golden-accept: refused in CI*"])


def test_the_ini_file_can_name_some(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\nharness_golden_accept = a.tape b.tape\n")
    pytester.runpytest().stdout.fnmatch_lines(["replay harness: *, golden accept a.tape b.tape"])
    pytester.runpytest("--golden-accept=c.tape").stdout.fnmatch_lines(["*, golden accept c.tape"])
