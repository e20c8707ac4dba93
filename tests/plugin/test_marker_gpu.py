"""On a machine with a GPU, `gpu` tests that are all skipped fail the session. Devices are invented here."""

import pytest

MARKS = "[pytest]\nmarkers =\n    gpu: needs a device\n    multigpu: needs two\n"
SKIPPED = """
    import pytest

    @pytest.mark.gpu
    def test_on_gpu(): pytest.skip("for some reason")

    def test_on_cpu(): pass
"""
RUNS = (
    SKIPPED
    + """
    @pytest.mark.multigpu
    def test_runs(): pass
"""
)


@pytest.fixture(autouse=True)
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    pytester.makeini(MARKS)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")


@pytest.mark.parametrize("workers", [(), ("-n", "2")])
def test_a_session_whose_gpu_tests_were_all_skipped_fails(
    pytester: pytest.Pytester, workers: tuple[str, ...]
) -> None:
    pytester.makepyfile(SKIPPED)
    result = pytester.runpytest(*workers)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(
        ["ERROR: this machine has a GPU, and all 1 tests with the mark `gpu` were skipped*"]
    )


def test_one_that_ran_is_enough(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(RUNS)
    assert pytester.runpytest().ret == pytest.ExitCode.OK


def test_a_machine_without_a_gpu_may_skip_them(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    pytester.makepyfile(SKIPPED)
    assert pytester.runpytest().ret == pytest.ExitCode.OK


def test_a_session_that_leaves_them_out_may_pass(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(SKIPPED)
    assert pytester.runpytest("-m", "not gpu").ret == pytest.ExitCode.OK
    pytester.makepyfile(test_plain="def test_plain(): pass")
    assert pytester.runpytest("test_plain.py").ret == pytest.ExitCode.OK
