import pytest

SELECTED = ("--harness-model", "tiny", "--harness-path", "independent", "-k", "decode and bs1 and plain")


def test_a_run_leaves_pending_goldens_and_says_how_they_differ(tiny_project: pytest.Pytester) -> None:
    result = tiny_project.runpytest_subprocess(*SELECTED, "--golden-review")
    assert result.ret == pytest.ExitCode.OK
    result.stdout.fnmatch_lines(
        ["replay harness: *, golden review", "*= goldens =*", "tiny.tape: new, * rounds"]
    )
    golden = tiny_project.path / "golden"
    assert [path.name for path in golden.iterdir()] == ["pending"]
    assert {path.suffix for path in (golden / "pending").iterdir()} == {".json", ".safetensors"}


def test_it_is_allowed_in_ci_since_it_accepts_nothing(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytester.makepyfile("def test_passes(): pass")
    monkeypatch.setenv("CI", "true")
    assert pytester.runpytest("--golden-review").ret == pytest.ExitCode.OK


def test_it_is_refused_with_workers_and_beside_an_update(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_passes(): pass")
    workers = pytester.runpytest("--golden-review", "-n", "2")
    workers.stderr.fnmatch_lines(["ERROR: --golden-review: refused with xdist workers*"])
    both = pytester.runpytest("--golden-review", "--golden-update=new")
    both.stderr.fnmatch_lines(["ERROR: --golden-update and --golden-review are two ways to go*"])
    assert workers.ret == both.ret == pytest.ExitCode.USAGE_ERROR


def test_the_ini_file_can_ask_for_it(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\nharness_golden_review = true\n")
    pytester.runpytest().stdout.fnmatch_lines(["replay harness: *, golden review"])
