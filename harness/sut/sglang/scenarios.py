"""What `effect` measures: a real kernel, the lengths that it was captured at and those that it replays at."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from harness.types import Path


class Kernel(StrEnum):
    """A kernel of the draft forward that reads a derived field."""

    LOGITS = "fp8_paged_mqa_logits"
    TOPK = "topk_transform_paged_v2"


DERIVED = {Kernel.LOGITS: "paged_mqa_schedule_metadata", Kernel.TOPK: "topk_v2_plan"}
"""The field that decides how a kernel's work is dealt out."""


@dataclass(frozen=True)
class Scenario:
    """One kernel of every draft step, captured at some lengths and replayed at others."""

    kernel: Kernel
    path: Path
    captured: tuple[int, ...]
    """Tokens by row, when the graph was captured."""
    replayed: tuple[int, ...]
    """Tokens by row, when it is replayed; as many rows."""
    why: str
    speculative_steps: int = 5
    """S: there are S - 1 draft steps."""

    @property
    def steps(self) -> tuple[int, ...]:
        """The draft steps."""
        return tuple(range(self.speculative_steps - 1))


Order = tuple[tuple[int, Scenario, tuple[int, ...]], ...]
"""What one child measures: a number of the parent's, the scenario, and the steps that are still to do."""


def stage(number: int, step: int, *, own: bool) -> str:
    """Return what a child says that it begins: a step's replay with its own derived field, or a fresh one."""
    return f"scenario {number} step {step} reading {'its own' if own else 'a fresh'} derived field"


_FILL4, _SHORT4 = (1,) * 4, (64, 128, 300, 512)
_MIXED4, _LONG4 = (64, 128, 2048, 65530), (63, 129, 65539, 100001)
_FILL32 = (1,) * 32
_SHORT32 = tuple(2100 + 500 * row for row in range(32))
_LONG32 = tuple(2000 + 3000 * row for row in range(32))

_FILL = "captured at the fill length, as servers do before there are requests"
_GROWN = "captured at other lengths, among them a long one"
_TURNED = "captured with the same lengths in other rows"
_SHRUNK = "captured at longer lengths than it replays"

_CHANGES = (
    (Kernel.LOGITS, _FILL4, _LONG4, _FILL),
    (Kernel.LOGITS, _MIXED4, _LONG4, _GROWN),
    (Kernel.LOGITS, _FILL32, _LONG32, _FILL),
    (Kernel.TOPK, _FILL32, _LONG32, _FILL),
    (Kernel.TOPK, _LONG32[::-1], _LONG32, _TURNED),
    (Kernel.TOPK, _LONG32, _SHORT32, _SHRUNK),
    (Kernel.LOGITS, _LONG4, _SHORT4, _SHRUNK),
)
"""What hangs comes last, since each hang costs a new child."""

SCENARIOS = tuple(
    Scenario(kernel, path, captured, replayed, why)
    for path in (Path.SHARED, Path.RELEASED)
    for kernel, captured, replayed, why in _CHANGES
)
"""The described change first, as a control with which nothing is stale, wrong, slow or hung."""
