"""The command that runs a case again, as a report prints it."""

from __future__ import annotations

from harness.report.tally import Cause
from harness.types import EngineKind


def command(cause: Cause, flags: str = "") -> str:
    """Return the command line that runs the first case of a cause alone; `flags`: see `options.flags_of`."""
    sut = f" --sut {cause.sut}" if cause.sut != "embedded" else ""
    engine = f" --engine {cause.engine}" if cause.engine != EngineKind.TAPE.value else ""
    version = f" --sut-option version={cause.version}" if cause.version else ""
    return f"replay-harness verify{sut}{version}{engine}{flags} --case {cause.cases[0]}"


def continued(line: str, width: int) -> str:
    """Break a command at its blanks, each line but the last ended by a backslash: it can still be pasted."""
    lines = [""]
    for word in line.split(" "):
        if lines[-1] and len(lines[-1]) + 1 + len(word) > width - (2 if len(line) > width else 0):
            lines.append("")
        lines[-1] += f" {word}" if lines[-1] else word
    return " \\\n".join(lines)
