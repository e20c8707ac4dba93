"""The command that runs a case again, as a report prints it."""

from __future__ import annotations

from dataclasses import dataclass

from harness.report.tally import Cause
from harness.types import EngineKind


@dataclass(frozen=True)
class Again:
    """How a finding of a run is shown again."""

    flags: str = ""
    """What `verify` needs besides system, engine, release and case (`options.flags_of`)."""
    whole: str = ""
    """The whole command, where `verify` on the case does not show it."""

    def command(self, cause: Cause) -> str:
        """Return the command line that runs the first case of a cause alone."""
        if self.whole:
            return self.whole
        sut = f" --sut {cause.sut}" if cause.sut != "embedded" else ""
        engine = f" --engine {cause.engine}" if cause.engine != EngineKind.TAPE.value else ""
        version = f" --sut-option version={cause.version}" if cause.version else ""
        return f"replay-harness verify{sut}{version}{engine}{self.flags} --case {cause.cases[0]}"


VERIFY = Again()
"""A run without flags of its own."""


def continued(line: str, width: int) -> str:
    """Break a command at its blanks, each line but the last ended by a backslash: it can still be pasted."""
    lines = [""]
    for word in line.split(" "):
        if lines[-1] and len(lines[-1]) + 1 + len(word) > width - (2 if len(line) > width else 0):
            lines.append("")
        lines[-1] += f" {word}" if lines[-1] else word
    return " \\\n".join(lines)
