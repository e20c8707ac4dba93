"""What the pytest plugin does in a session with the engine `cuda_graph`, and only there."""

from __future__ import annotations

import os
import sys

import pytest


class CudaSession:
    """One GPU a worker, no test after a lost CUDA context, and no pass by silence."""

    def __init__(self, config: pytest.Config) -> None:
        """Give an xdist worker its own GPU; torch must not have touched CUDA yet."""
        self._ran = 0
        worker = getattr(config, "workerinput", None)
        self._controls = worker is None
        if worker is not None:
            device = device_of(worker["workerid"], visible_devices())
            if device:
                os.environ["CUDA_VISIBLE_DEVICES"] = device

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count tests on a GPU that ran."""
        if report.when == "call" and not report.skipped and "gpu" in report.keywords:
            self._ran += 1

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> None:
        """Stop where the CUDA context is lost: every later test would fail for this one's reason."""
        torch = sys.modules.get("torch")
        if torch is None or not torch.cuda.is_initialized():
            return
        try:
            torch.cuda.synchronize()
        except RuntimeError as error:
            reason = str(error).splitlines()[0]
            item.session.shouldfail = f"the CUDA context is lost after {item.nodeid}: {reason}"

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Fail a session that ran no test on a GPU."""
        quiet = (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)
        if self._silent(session.config) and exitstatus in quiet:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Say why such a session failed."""
        if self._silent(terminalreporter.config):
            terminalreporter.write_line(
                "ERROR: engine cuda_graph was asked for and no test with the mark `gpu` ran", red=True
            )

    def _silent(self, config: pytest.Config) -> bool:
        return self._controls and not self._ran and not config.getoption("collectonly")


def visible_devices() -> tuple[str, ...]:
    """Return the GPUs that this process may see, as CUDA_VISIBLE_DEVICES spells them, without using one."""
    listed = os.environ.get("CUDA_VISIBLE_DEVICES")
    if listed is not None:
        return tuple(name.strip() for name in listed.split(",") if name.strip())
    import torch

    return tuple(str(index) for index in range(torch.cuda.device_count()))


def device_of(worker: str, visible: tuple[str, ...]) -> str:
    """Return the GPU of an xdist worker (`gw0`, `gw1`, ...), in turn over the visible ones; "" for none."""
    return visible[int(worker.removeprefix("gw")) % len(visible)] if visible else ""
