"""What the pytest plugin does for runners: shares of the tests, checks in JUnit, no silent GPU."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path as FilePath
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from harness.findings import CaseResult

DRIVER = FilePath("/dev/nvidiactl")
"""What an NVIDIA driver makes."""
_CURRENT = pytest.StashKey[pytest.Item]()


class Shard:
    """One of several runners' share of the tests: by a hash of a test's name, whatever else there is."""

    def __init__(self, text: str) -> None:
        """Read `I/N`, I from 1 to N. Raises ValueError in words for anything else."""
        index, slash, number = text.partition("/")
        if not (slash and index.isdecimal() and number.isdecimal() and 1 <= int(index) <= int(number)):
            raise ValueError(f"harness_shard = {text!r} is not I/N with I from 1 to N, such as 2/4")
        self.index, self.number = int(index), int(number)

    def takes(self, name: str) -> bool:
        """Whether a test of this name is in the share."""
        digest = hashlib.sha256(name.encode()).digest()
        return int.from_bytes(digest[:8], "big") % self.number == self.index - 1

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Deselect what other runners do."""
        others = [item for item in items if not self.takes(item.nodeid)]
        if others:
            items[:] = [item for item in items if self.takes(item.nodeid)]
            config.hook.pytest_deselected(items=others)


class CaseProperties:
    """Puts a case's result into the properties of the test that ran it, and so into JUnit's XML."""

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Remember which test runs."""
        item.config.stash[_CURRENT] = item


def record(config: pytest.Config, result: CaseResult) -> None:
    """Add a result's verdicts to the running test's properties: one per check, and the case's figures."""
    item = config.stash.get(_CURRENT, None)
    if item is None:
        return
    item.user_properties += [
        ("case", result.case),
        ("verdict", result.verdict.value),
        *((f"axis.{name}", value) for name, value in sorted(result.axes.items())),
        ("replays", result.replays),
        ("elements", result.elements),
        ("bytes_owned", result.bytes_owned),
    ]
    for check in result.checks:
        findings = f", {len(check.findings)} findings" if check.findings else ""
        item.user_properties.append((f"check.{check.check}", f"{check.verdict.value}{findings}"))


class NoSilentGpu:
    """Fails a session on a machine with a GPU whose `gpu` tests were all skipped: silence is not a pass."""

    def __init__(self, config: pytest.Config) -> None:
        """Watch the process that reports: not an xdist worker."""
        self._controls = not hasattr(config, "workerinput")
        self._silent = self._ran = 0

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count tests with the mark `gpu` or `multigpu` that ran, and those that did not."""
        if "gpu" in report.keywords or "multigpu" in report.keywords:
            self._silent += report.skipped
            self._ran += report.when == "call" and not report.skipped

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Fail such a session."""
        quiet = (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)
        if exitstatus in quiet and self._says_nothing():
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Say why it failed."""
        if self._says_nothing():
            terminalreporter.write_line(
                f"ERROR: this machine has a GPU, and all {self._silent} tests with the mark `gpu` were"
                " skipped; mend their reasons, or leave them out with -m 'not gpu'",
                red=True,
            )

    def _says_nothing(self) -> bool:
        if not (self._controls and self._silent and not self._ran):
            return False
        if "CUDA_VISIBLE_DEVICES" not in os.environ and not DRIVER.exists():
            return False  # asking torch would load it, for a project that may not use it
        from harness.plugin_cuda import visible_devices

        return bool(visible_devices())
