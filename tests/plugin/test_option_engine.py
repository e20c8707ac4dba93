import pytest

GPU_TEST = """
    import pytest

    @pytest.mark.gpu
    def test_on_a_device():
        {body}
"""
INI = "[pytest]\nmarkers = gpu: needs a device\n"


def test_the_tape_is_the_default(pytester: pytest.Pytester) -> None:
    pytester.runpytest().stdout.fnmatch_lines(["replay harness: *, engine tape, *"])


def test_the_command_line_wins_over_the_ini_file(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\nharness_engine = cuda_graph\n")
    pytester.runpytest().stdout.fnmatch_lines(["replay harness: *, engine cuda_graph, *"])
    chosen = pytester.runpytest("--harness-engine", "tape")
    chosen.stdout.fnmatch_lines(["replay harness: *, engine tape, *"])


def test_an_ini_value_outside_the_vocabulary_is_one_line(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\nharness_engine = eager\n")
    result = pytester.runpytest()
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: ini file: 'eager' is not a valid EngineKind*"])


def test_asking_for_cuda_graphs_and_running_no_gpu_test_fails(pytester: pytest.Pytester) -> None:
    pytester.makeini(INI)
    pytester.makepyfile(GPU_TEST.format(body="pytest.skip('no device')"), test_cpu="def test_it(): pass")
    result = pytester.runpytest("--harness-engine", "cuda_graph")
    result.assert_outcomes(passed=1, skipped=1)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(
        ["ERROR: engine cuda_graph was asked for and no test with the mark `gpu` ran"]
    )


@pytest.mark.parametrize("workers", [(), ("-n", "2")])
def test_a_gpu_test_that_ran_is_enough(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, workers: tuple[str, ...]
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")  # so that nobody asks torch how many there are
    pytester.makeini(INI)
    pytester.makepyfile(GPU_TEST.format(body="pass"))
    result = pytester.runpytest("--harness-engine", "cuda_graph", *workers)
    assert result.ret == pytest.ExitCode.OK
    assert "was asked for" not in result.stdout.str()


def test_without_asking_for_cuda_graphs_skipped_gpu_tests_are_fine(pytester: pytest.Pytester) -> None:
    pytester.makeini(INI)
    pytester.makepyfile(GPU_TEST.format(body="pytest.skip('no device')"))
    assert pytester.runpytest().ret == pytest.ExitCode.OK
