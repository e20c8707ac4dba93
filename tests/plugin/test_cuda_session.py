"""Sessions with the engine `cuda_graph`, on a torch that is played by a module of a few lines."""

import pytest

from harness.plugin_cuda import device_of, visible_devices

TORCH = """
    class cuda:
        lost = False

        @staticmethod
        def device_count():
            return 3

        @staticmethod
        def is_initialized():
            return True

        @staticmethod
        def synchronize():
            if cuda.lost:
                raise RuntimeError("CUDA error: an illegal memory access was encountered\\nmore")
"""
INI = """
    [pytest]
    pythonpath = .
    markers = gpu: needs a device
    harness_engine = cuda_graph
"""


@pytest.mark.parametrize(
    ("worker", "visible", "device"),
    [
        ("gw0", ("4", "6"), "4"),
        ("gw1", ("4", "6"), "6"),
        ("gw2", ("4", "6"), "4"),
        ("gw1", ("GPU-a", "GPU-b"), "GPU-b"),
        ("gw0", (), ""),
    ],
)
def test_workers_take_the_visible_devices_in_turn(worker: str, visible: tuple[str, ...], device: str) -> None:
    assert device_of(worker, visible) == device


def test_devices_hidden_by_the_environment_stay_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", " 2, 5 ")
    assert visible_devices() == ("2", "5")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert visible_devices() == ()


def test_every_worker_sees_one_device_of_its_own(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,6")
    pytester.makeini(INI)
    pytester.makepyfile(
        torch=TORCH,
        test_device="""
        import os, pytest

        @pytest.mark.gpu
        @pytest.mark.parametrize("number", range(4))
        def test_device(number, worker_id):
            assert os.environ["CUDA_VISIBLE_DEVICES"] == {"gw0": "4", "gw1": "6"}[worker_id]
        """,
    )
    pytester.runpytest_subprocess("-n", "2").assert_outcomes(passed=4)


def test_auto_means_one_worker_a_device(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    pytester.makeini(INI)
    pytester.makepyfile(torch=TORCH, test_one="import pytest\n@pytest.mark.gpu\ndef test_one(): pass")
    pytester.runpytest_subprocess("-n", "auto", "-v").stdout.fnmatch_lines(["created: 3/3 workers"])


@pytest.mark.parametrize("workers", [(), ("-n", "1")])
def test_nothing_runs_after_a_lost_context(pytester: pytest.Pytester, workers: tuple[str, ...]) -> None:
    pytester.makeini(INI)
    pytester.makepyfile(
        torch=TORCH,
        test_lost="""
        import pytest, torch

        @pytest.mark.gpu
        def test_loses_the_context():
            torch.cuda.lost = True

        @pytest.mark.gpu
        def test_comes_after():
            pass
        """,
    )
    result = pytester.runpytest_subprocess(*workers)
    assert result.ret != pytest.ExitCode.OK
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(
        ["*the CUDA context is lost after test_lost.py::test_loses_the_context: CUDA error: an illegal*"]
    )
