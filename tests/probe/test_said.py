"""Everything that a system says at the level of Python is heard, and the process is left as it was."""

from __future__ import annotations

import logging
import sys
import warnings

import pytest

from harness.probe.said import listening


def test_prints_warnings_and_log_records_are_heard_in_one_line_each() -> None:
    handlers = list(logging.getLogger().handlers)
    with listening() as said:
        print("fell back\n\n  to eager ")
        print("no kernel", file=sys.stderr)
        warnings.warn("slow path", stacklevel=1)
        logging.getLogger("a.package").warning("JIT %s\nfailed", "build")
        logging.getLogger("a.package").info("loaded")
    assert said == [
        "fell back",
        "to eager",
        "no kernel",
        "WARNING: JIT build failed",
        "UserWarning: slow path",
    ]
    assert logging.getLogger().handlers == handlers


def test_what_was_said_before_an_exception_is_kept() -> None:
    heard: list[list[str]] = []

    def fail() -> None:
        with listening() as said:
            heard.append(said)
            print("about to fail")
            raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        fail()
    assert heard == [["about to fail"]]
