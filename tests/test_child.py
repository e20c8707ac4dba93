"""A child that is done, hangs, crashes or talks nonsense: what the parent makes of it."""

from __future__ import annotations

import os
import sys
import textwrap
import time
from pathlib import Path

import pytest

from harness.child import FIRST_STAGE, End, Ended, run_child


def run(body: str, *, start_s: float = 20) -> Ended:
    head = "import os, sys, time\nfrom harness.child import Reporter\nsay = Reporter(int(sys.argv[-1]))\n"
    return run_child([sys.executable, "-c", head + textwrap.dedent(body)], start_s=start_s)


def test_a_child_that_says_everything_is_done() -> None:
    ended = run("say.begin('one', 20)\nsay.result({'a': 1})\nsay.result({'a': 2})\nsay.end()")
    assert (ended.end, ended.stage, ended.detail) == (End.DONE, "one", "")
    assert ended.results == ({"a": 1}, {"a": 2})


def test_what_hangs_is_killed_at_its_own_limit_and_named() -> None:
    ended = run("say.begin('load', 20)\nsay.result({'a': 1})\nsay.begin('replay', 0.3)\ntime.sleep(60)")
    assert (ended.end, ended.stage, ended.results) == (End.HUNG, "replay", ({"a": 1},))
    assert "SIGKILL" in ended.detail
    assert ended.seconds < 15


def test_a_child_that_reports_nothing_is_killed_at_the_starting_limit() -> None:
    ended = run("time.sleep(60)", start_s=1)
    assert (ended.end, ended.stage, ended.results) == (End.HUNG, FIRST_STAGE, ())


def test_a_child_that_closed_its_reports_and_goes_on_is_killed_too() -> None:
    ended = run("say.begin('one', 0.2)\nsay.end()\ntime.sleep(60)")
    assert ended.end is End.HUNG


@pytest.mark.parametrize(
    ("body", "detail"),
    [
        (
            "say.begin('one', 9)\nraise ValueError('no such kernel')",
            "exit status 1; ValueError: no such kernel",
        ),
        ("say.begin('one', 9)\nos.kill(os.getpid(), 11)", "signal SIGSEGV; nothing printed"),
        ("say.begin('one', 9)\nprint('bye')", "exit status 0; bye"),
        ("say.begin('one', 9)\nsay.end()\nsys.exit(3)", "exit status 3; nothing printed"),
    ],
)
def test_a_crash_is_one_line(body: str, detail: str) -> None:
    ended = run(body)
    assert (ended.end, ended.stage, ended.detail) == (End.CRASHED, "one", detail)


@pytest.mark.parametrize(
    "line", ["what?\\n", "[1]\\n", "{}\\n", '{\\"begin\\": 1}\\n', '{\\"result\\": 3}\\n', '{\\"end\\": tr']
)
def test_reports_that_are_not_of_the_protocol_are_garbage(line: str) -> None:
    ended = run(f"say.result({{'a': 1}})\nos.write(int(sys.argv[-1]), b\"{line}\")")
    assert (ended.end, ended.results) == (End.GARBAGE, ({"a": 1},))


def test_the_children_of_a_killed_child_end_with_it(tmp_path: Path) -> None:
    noted = tmp_path / "pid"
    ended = run(
        f"""
        import subprocess
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
        open({str(noted)!r}, "w").write(str(child.pid))
        say.begin("build", 0.1)
        time.sleep(60)
        """
    )
    assert ended.end is End.HUNG
    assert _gone(int(noted.read_text()))


def _gone(pid: int) -> bool:
    for _ in range(100):
        try:
            os.kill(pid, 0)
            if Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z":
                return True
        except (ProcessLookupError, FileNotFoundError):
            return True
        time.sleep(0.05)
    return False
