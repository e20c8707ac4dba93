"""The kill matrix of `replay-harness faults --json`, read for the report."""

from __future__ import annotations

from pathlib import Path as FilePath

import msgspec

from harness.errors import UsageError


class Trial(msgspec.Struct, frozen=True):
    """One planted fault or harmless change on one case."""

    id: str
    text: str
    case: str
    fate: str
    first: str
    operations: int
    spoke: dict[str, int]
    """Findings of each check that spoke."""

    @property
    def good(self) -> bool:
        """Whether it ended as it should: a fault killed, a harmless change flagged by none."""
        return self.fate in ("killed", "clean")


class KillMatrix(msgspec.Struct, frozen=True):
    """All trials of a run."""

    schema: str
    sut: str
    engine: str
    summary: str
    trials: tuple[Trial, ...]

    @property
    def checks(self) -> tuple[str, ...]:
        """Checks that spoke of some trial."""
        return tuple(dict.fromkeys(name for trial in self.trials for name in trial.spoke))


def load_kills(path: FilePath) -> KillMatrix:
    """Read a kill matrix. Raises UsageError in one line where the file is none."""
    try:
        found = msgspec.json.decode(path.read_bytes(), type=KillMatrix)
    except (OSError, msgspec.MsgspecError) as error:
        raise UsageError(
            f"--faults {path}: not a kill matrix ({error}); `replay-harness faults --json FILE` writes one"
        ) from error
    if not found.schema.startswith("replay-harness.faults/"):
        raise UsageError(f"--faults {path}: schema {found.schema!r} is not that of a kill matrix")
    return found
