"""What is verified: models, geometries and cases, as frozen data (read by `casefile`)."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from harness.types import Drill, EngineKind, Kernel, Mode, Path, Precision

PHYSICAL_PAGE = 64
"""Tokens of one physical page (`p` of the specification)."""


class PlanRule(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """When a top-k v2 plan is written, and with which threshold.

    `candidates` are (threshold, most rows longer than it), ascending. The smallest threshold whose
    count of longer rows stays within its cap is taken; where even the last exceeds its cap, the
    last is taken. Source: specification, section 5.
    """

    candidates: tuple[tuple[int, int], ...]
    min_rows: int
    """Fewest rows for which the plan buffer is written."""
    max_rows: int
    """Most rows for which the plan buffer is written."""


class Geometry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Sizes that depend on where a case runs, not on the model."""

    width: int
    """Columns of `req_to_token` (`W`), tokens; a multiple of 64 * P."""
    requests: int
    """Rows of `req_to_token`; row 0 is reserved for padded rows."""
    topk: int
    """`index_topk` (`K`), tokens; scaled down on a CPU."""
    num_sms: int
    """Workers of the paged-MQA schedule."""
    plan: PlanRule
    first_page: int = 1
    """Lowest model page that a request may have; a high one shows ids that went through a narrow type."""


class Variant(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """An MTP setting `S/k/N`."""

    steps: int
    """`S`, speculative steps; there are S - 1 draft-step backends."""
    topk: int
    """`k`, EAGLE top-k; 1 here."""
    draft_tokens: int
    """`N`, draft tokens that the target verifies."""

    def __str__(self) -> str:
        return f"{self.steps}/{self.topk}/{self.draft_tokens}"


class ExtraRound(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A round that a case file adds to the programs of its mode and bucket, e.g. a failure shrunk to this."""

    bucket: int
    lengths: tuple[int, ...]
    """Tokens, one per live request; as `rounds.Round.lengths`."""
    requests: tuple[int, ...]
    """Rows of `req_to_token`, distinct, never 0."""
    mode: Mode
    accepted: tuple[int, ...] = ()
    """Draft-extend: accepted tokens per request; all N where it is empty."""
    pages: int = 0
    """Seed of the page map; rounds with equal seeds lie on the same pages."""
    engine: EngineKind | None = None
    """The engine whose geometry it is for; None: every engine of the model."""
    why: str = "from the case file"


class Model(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A model, as far as attention metadata depends on it."""

    name: str
    index_kpool: int
    """`P`, tokens that one pooled index key stands for."""
    page_size: int
    """Model page, tokens; the physical page is page_size // P = 64."""
    heads: int
    """Attention heads at TP 1; the forward of the embedded system uses a few of them."""
    default_variant: Variant
    variants: tuple[Variant, ...]
    buckets: tuple[int, ...]
    geometries: dict[str, Geometry]
    """By engine kind, `tape` and `cuda_graph`, or by `<system>_<engine>` where a system needs its own."""
    rounds: tuple[ExtraRound, ...] = ()
    """Rounds added to the generated ones."""
    matrix: bool = True
    """Whether the default matrix includes this model."""
    systems: tuple[str, ...] = ()
    """The systems that it is for, outside the default matrix of all others; empty: every system."""

    @property
    def page_tokens(self) -> int:
        """Tokens of one model page, the unit in which `req_to_token` is shuffled."""
        return PHYSICAL_PAGE * self.index_kpool


@dataclass(frozen=True)
class Case:
    """One cell of the matrix: a system, a path and a disturbance, on one model."""

    sut: str
    engine: EngineKind
    model: Model
    path: Path
    fusion: bool
    """Whether KPool metadata fusion is asked for; `fusion_in_force` says whether it applies."""
    variant: Variant
    mode: Mode
    bucket: int
    drill: Drill
    kernel: Kernel = Kernel.FA3
    precision: Precision = Precision.FP32
    seed: int = 0

    @property
    def geometry(self) -> Geometry:
        """Sizes for this case's engine; a system may have its own (`<system>_<engine>`)."""
        geometries, engine = self.model.geometries, self.engine.value
        return geometries.get(f"{self.sut}_{engine}") or geometries[engine]

    @property
    def backends(self) -> int:
        """Draft-step backends: S - 1 in decode, one in the other modes."""
        return self.variant.steps - 1 if self.mode is Mode.DECODE else 1

    @property
    def metadata_tokens(self) -> int:
        """`N` as far as metadata depends on it; in decode it does not: the model's default stands for all."""
        variant = self.model.default_variant if self.mode is Mode.DECODE else self.variant
        return variant.draft_tokens

    @property
    def fusion_in_force(self) -> bool:
        """The documented gate: P > 1, p == 64, 64 % P == 0 and K % P == 0."""
        pool = self.model.index_kpool
        physical = self.model.page_size // pool
        return (
            self.fusion
            and pool > 1
            and physical == PHYSICAL_PAGE
            and PHYSICAL_PAGE % pool == 0
            and self.geometry.topk % pool == 0
        )

    @property
    def sharing_applies(self) -> bool:
        """Sharing needs at least two backends (S >= 3 in decode)."""
        return self.backends >= 2

    def axes(self) -> dict[str, str]:
        """Return what reports group by: axis name -> value."""
        return {
            "sut": self.sut,
            "engine": self.engine.value,
            "model": self.model.name,
            "path": self.path.value,
            "fusion": "on" if self.fusion else "off",
            "steps": str(self.variant.steps),
            "mode": self.mode.value,
            "bucket": str(self.bucket),
            "drill": self.drill.value,
            "kernel": self.kernel.value,
            "precision": self.precision.value,
        }

    @property
    def id(self) -> str:
        """Stable readable name, usable as a pytest id and as a file name once '/' is replaced."""
        return "/".join(
            (
                self.model.name,
                self.path.value,
                "fusion-on" if self.fusion else "fusion-off",
                f"{self.variant.steps}-{self.variant.topk}-{self.variant.draft_tokens}",
                self.mode.value,
                f"bs{self.bucket}",
                self.drill.value,
                self.kernel.value,
                self.precision.value,
            )
        )
