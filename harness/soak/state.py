"""What a soak has done so far, on disk: an interrupted one goes on where it was."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from harness.errors import UsageError
from harness.fuzz.sequence import Setting
from harness.soak.memory import Sample
from harness.trace.stat import Distribution

SCHEMA = 1


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What a soak does; two with equal plans are the same soak."""

    setting: Setting
    load: str
    seed: int
    plant: str = ""
    ranks: int = 1
    parallel: str = "tp"


class Part(msgspec.Struct, kw_only=True):
    """One process's share."""

    replays: int = 0
    seconds: float = 0.0
    samples: list[Sample] = []


class State(msgspec.Struct, kw_only=True):
    """Everything that is kept of a soak."""

    schema: int
    plan: Plan
    operations: int = 0
    replays: int = 0
    refreshes: int = 0
    elements: int = 0
    full_windows: int = 0
    lean_replays: int = 0
    distribution: dict[str, object] = {}
    parts: list[Part] = []
    findings: list[str] = []
    known: dict[str, int] = {}
    facts: dict[str, str] = {}

    @property
    def seconds(self) -> float:
        """Of all parts."""
        return sum(part.seconds for part in self.parts)


def load_state(file: Path, plan: Plan) -> State:
    """Return the state in a file, a new one where there is none.

    Raises UsageError where the file is of another soak, or of none.
    """
    if not file.exists():
        return State(schema=SCHEMA, plan=plan)
    try:
        state = msgspec.json.decode(file.read_bytes(), type=State)
    except (OSError, msgspec.MsgspecError) as error:
        raise UsageError(f"{file}: holds no soak ({error}); give --fresh to begin anew") from error
    if state.schema != SCHEMA or state.plan != plan:
        raise UsageError(f"{file}: holds another soak; give another --state, or --fresh to begin anew")
    return state


def save_state(file: Path, state: State, distribution: Distribution) -> None:
    """Write the state, whole or not at all."""
    state.distribution = distribution.document()
    file.parent.mkdir(parents=True, exist_ok=True)
    temporary = file.with_name(f".{file.name}.{os.getpid()}")
    temporary.write_bytes(msgspec.json.format(msgspec.json.encode(state), indent=1))
    os.replace(temporary, file)
