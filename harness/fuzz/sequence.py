"""A sequence: one system in one setting, and what happens to it, operation by operation, as plain data.

The fuzzer draws sequences, the reducer shrinks them, `store` keeps them as TOML. Recorded traffic has the
same form: a `Replay` is a bucket, a live batch and where its requests' tokens lie.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from harness.case import Case, Model
from harness.errors import CaseError
from harness.types import Drill, EngineKind, Kernel, Mode, Path, Precision

Pages: TypeAlias = int | tuple[tuple[int, ...], ...]
"""Where requests lie: a seed (equal seeds, equal pages), or the model pages of each live request."""


class Setting(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What is driven: a `Case` by names, without bucket and drill, which follow from the operations."""

    sut: str = "embedded"
    engine: EngineKind = EngineKind.TAPE
    model: str
    path: Path
    fusion: bool = False
    steps: int
    """`S`, speculative steps."""
    mode: Mode = Mode.DECODE
    kernel: Kernel = Kernel.FA3
    precision: Precision = Precision.FP32
    seed: int = 0
    """Of weights and caches."""
    buckets: tuple[int, ...] = ()
    """Batch sizes that the system is built for; empty: the model's."""


class Capture(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="do", tag="capture"
):
    """A bucket is captured, for the first time or again, with these inputs in place."""

    bucket: int
    lengths: tuple[int, ...] = ()
    """As `rounds.Round.lengths`; empty: every row is padded."""
    requests: tuple[int, ...] = ()
    """Rows of `req_to_token`, distinct, never 0, one per length."""
    pages: Pages = 0
    accepted: tuple[int, ...] = ()
    """Draft-extend: accepted tokens per request; all N where it is empty."""


class Replay(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="do", tag="replay"
):
    """A batch is staged, the bucket's metadata refreshed, its graph replayed."""

    bucket: int
    lengths: tuple[int, ...] = ()
    requests: tuple[int, ...] = ()
    pages: Pages = 0
    accepted: tuple[int, ...] = ()
    exchange: tuple[int, ...] = ()
    """Row and two columns: these two model pages of the row's request lie in each other's place; or none."""
    junk: int = 0
    """Seed of junk in the dead columns of the request table; 0: none."""
    delayed: bool = False
    """Held back while the batch of the operation that follows, a replay too, is staged and refreshed."""


class Eager(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="do", tag="eager"
):
    """An unrelated eager call of so many query rows."""

    rows: int


class Churn(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="do", tag="churn"):
    """Blocks of many sizes are allocated and freed."""


class Pause(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="do", tag="pause"):
    """What the next refresh rewrites is released and taken again: it comes back zeroed."""


Operation: TypeAlias = Capture | Replay | Eager | Churn | Pause
Batch: TypeAlias = Capture | Replay


class Sequence(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A setting and its operations, in order."""

    setting: Setting
    operations: tuple[Operation, ...]
    ordinary: bool = False
    """Whether it is held against the ordinary path as well as against the oracle; costs a second run."""
    why: str = ""

    @property
    def captured(self) -> tuple[int, ...]:
        """Buckets that are captured, in the order of their first capture."""
        return tuple(dict.fromkeys(one.bucket for one in self.operations if isinstance(one, Capture)))

    def held_back(self, index: int) -> bool:
        """Whether an operation is a replay that really is held back: another replay follows directly."""
        one = self.operations[index]
        follows = index + 1 < len(self.operations) and isinstance(self.operations[index + 1], Replay)
        return isinstance(one, Replay) and one.delayed and follows


def case_of(setting: Setting, model: Model, captured: tuple[int, ...] = (), *, delayed: bool = False) -> Case:
    """Return the case that a setting stands for.

    captured: what a sequence captures; the largest is the case's bucket. delayed: whether some replay is
    held back. Raises CaseError where the model has no such number of steps.
    """
    variant = next((one for one in model.variants if one.steps == setting.steps), None)
    if variant is None:
        known = ", ".join(str(one.steps) for one in model.variants)
        raise CaseError(f"setting.steps: {setting.steps} is no variant of {model.name}; it has {known}")
    if setting.buckets:
        model = msgspec.structs.replace(model, buckets=tuple(sorted(set(setting.buckets))))
    return Case(
        sut=setting.sut,
        engine=setting.engine,
        model=model,
        path=setting.path,
        fusion=setting.fusion,
        variant=variant,
        mode=setting.mode,
        bucket=max(captured or model.buckets),
        drill=Drill.DELAYED if delayed else Drill.PLAIN,
        kernel=setting.kernel,
        precision=setting.precision,
        seed=setting.seed,
    )


def setting_of(case: Case, buckets: tuple[int, ...] = ()) -> Setting:
    """Return the setting of a case, without its bucket and drill."""
    return Setting(
        sut=case.sut,
        engine=case.engine,
        model=case.model.name,
        path=case.path,
        fusion=case.fusion,
        steps=case.variant.steps,
        mode=case.mode,
        kernel=case.kernel,
        precision=case.precision,
        seed=case.seed,
        buckets=buckets,
    )
