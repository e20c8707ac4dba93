"""What a golden is, in memory: accepted values keyed by the inputs that made them, and accepted structure.

Values are the same on every path, so an entry is keyed by mode, draft tokens, bucket and the digest
of the round's padded inputs. Structure (ledger, spans, alias map) is per system, path and bucket.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import msgspec
import numpy as np
from numpy.typing import NDArray

from harness.case import Geometry
from harness.compare import Mismatch, Tolerance, close, compare, tolerance_of
from harness.digest import value_digest
from harness.fields import FieldSpec, Live
from harness.types import Precision

Array = NDArray[np.generic]

WIDE = (Live.TOKENS, Live.PAGES, Live.POOLED_PAGES)
"""Live regions of page tables, which grow with the sequence lengths."""


class Policy(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a golden keeps in full, what as a digest, and which rounds it keeps at all.

    The manifest records it; it binds all entries of the file.
    """

    tier: str
    """`tensors`: small fields in full; `digests`: every field as SHA-256 and samples (large geometry)."""
    full_draft_tokens: int
    """`N` whose entries keep small fields in full, the model's default variant's; of the others, only
    values shorter than their digest are kept in full."""
    full_bucket: int = 8
    """Largest bucket whose entries keep small fields in full."""
    full_table: int = 64
    """Page tables with more elements are digests everywhere."""
    full_elements: int = 256
    """Other fields with more elements are digests everywhere."""
    tiny_bytes: int = 32
    """In the tensor tier, values of at most so many bytes (a digest's size) are always kept in full."""
    samples: int = 4
    """Elements sampled, evenly spaced, of a page table kept as a digest."""
    rounds_per_program: int = 6
    """Rounds kept of each program (drill, bucket, `N`), evenly spaced, first and last included."""
    other_rounds: int = 4
    """The same where `N` is not `full_draft_tokens`."""
    output_rounds: int = 2
    """Of those, rounds whose outputs are kept, for buckets up to `full_bucket` (one where `N` is not
    `full_draft_tokens`)."""
    output_samples: int = 256
    """Outputs with more elements keep so many of them, evenly spaced."""

    def full(self, spec: FieldSpec, value: Array, draft_tokens: int, bucket: int) -> bool:
        """Whether a field's value is kept in full."""
        if self.tier == "digests":
            return False
        if value.nbytes <= self.tiny_bytes:
            return True
        if draft_tokens != self.full_draft_tokens or bucket > self.full_bucket:
            return False
        return value.size <= (self.full_table if spec.live in WIDE else self.full_elements)

    def sampled(self, spec: FieldSpec) -> int:
        """Return how many elements of a field are kept beside its digest."""
        return self.samples if spec.live in WIDE else 0

    def kept(self, rounds: int, draft_tokens: int) -> frozenset[int]:
        """Return which of a program's rounds are kept, by index."""
        count = self.rounds_per_program if draft_tokens == self.full_draft_tokens else self.other_rounds
        return frozenset(spaced(rounds, count).tolist())

    def kept_outputs(self, rounds: int, draft_tokens: int) -> frozenset[int]:
        """Return of which of a program's rounds the outputs are kept, by index."""
        kept = sorted(self.kept(rounds, draft_tokens))
        count = self.output_rounds if draft_tokens == self.full_draft_tokens else min(1, self.output_rounds)
        return frozenset(kept[i] for i in spaced(len(kept), count).tolist())


def spaced(size: int, count: int) -> NDArray[np.int64]:
    """Return at most `count` distinct evenly spaced indices below `size`, first and last included."""
    if size <= count:
        return np.arange(size, dtype=np.int64)
    return np.round(np.linspace(0, size - 1, count)).astype(np.int64)


@dataclass(frozen=True, eq=False)
class Stored:
    """One accepted value: in full, or as its digest and evenly spaced samples."""

    digest: str
    """`digest.value_digest` of the value."""
    size: int
    dtype: str
    full: Array | None
    samples: Array
    """Empty where the value is kept in full."""

    @classmethod
    def of(cls, value: Array, *, full: bool, samples: int) -> Stored:
        """Keep a 1-D value (copied, so that it never shares memory with an observation)."""
        digest, dtype = value_digest(value), value.dtype.name
        if full:
            return cls(digest, value.size, dtype, value.copy(), value[:0].copy())
        return cls(digest, value.size, dtype, None, value[spaced(value.size, samples)].copy())

    def at(self, positions: NDArray[np.int64]) -> Array | None:
        """Return the elements at sampled positions, None where this value kept others."""
        if self.full is not None:
            return self.full[positions]
        return self.samples if positions.size == self.samples.size else None


def difference(
    expected: Stored, got: Stored, *, tolerance: Tolerance | None = None, raw: str = ""
) -> Mismatch | None:
    """Compare two stored values as far as both are kept; None if they are equal.

    tolerance: for float outputs, compared elementwise instead of by digest. raw: name of the real
    dtype of raw float bits. Where only the digests tell the values apart, the index is -1 and the
    count is the whole value's. A NaN never equals.
    """
    larger = max(expected.size, got.size)
    if expected.dtype != got.dtype:
        return Mismatch("dtype", larger, -1, expected.dtype, got.dtype)
    if expected.size != got.size:
        return Mismatch("shape", larger, -1, f"{expected.size} elements", f"{got.size} elements")
    same = expected.digest == got.digest
    if same and not raw and np.dtype(expected.dtype).kind != "f":
        return None
    if expected.full is not None and got.full is not None:
        return _elements(expected.full, got.full, tolerance, raw)
    positions = spaced(expected.size, max(expected.samples.size, got.samples.size))
    ours, theirs = expected.at(positions), got.at(positions)
    if ours is not None and theirs is not None:
        found = _elements(ours, theirs, tolerance, raw)
        if found is not None:
            return replace(found, index=int(positions[found.index]))
        if tolerance is not None:
            return None
    if same:
        return None
    return Mismatch("value", larger, -1, f"sha256 {expected.digest[:12]}..", f"sha256 {got.digest[:12]}..")


def _elements(expected: Array, got: Array, tolerance: Tolerance | None, raw: str) -> Mismatch | None:
    if tolerance is None:
        return compare(expected, got, dtype=raw)
    return close(expected, got, tolerance, dtype=raw)


def output_difference(expected: Stored, got: Stored, precision: str) -> Mismatch | None:
    """Compare outputs: integers exactly, floats within the tolerance of the precision they came from."""
    if np.dtype(expected.dtype).kind == "f":
        return difference(expected, got, tolerance=_tolerance(precision))
    if expected.dtype == "uint16" and precision == Precision.BF16:
        return difference(expected, got, tolerance=_tolerance(precision), raw="bfloat16")
    return difference(expected, got)


def _tolerance(precision: str) -> Tolerance:
    return tolerance_of("bfloat16" if precision == Precision.BF16 else "float32")


class Config(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What values depend on besides the rounds; a golden of another one cannot be compared with."""

    model: str
    engine: str
    """Key of the geometry: an engine kind, or `<system>_<engine>`."""
    index_kpool: int
    page_size: int
    heads: int
    geometry: Geometry


@dataclass(frozen=True, eq=False)
class Entry:
    """Accepted values of one round's inputs."""

    labels: tuple[str, ...]
    """Where these inputs occur, sorted: `collect.label` of each round; empty once no round has them."""
    by: str
    """System and path that produced the values."""
    values: Mapping[str, Stored]
    """By field."""


@dataclass(frozen=True, eq=False)
class Outputs:
    """Accepted outputs of one round."""

    inputs: str
    """Digest of the round's inputs."""
    precision: str
    """`types.Precision`, which decides the tolerance of floats."""
    steps: tuple[Mapping[str, Stored], ...]
    """By draft step, by output name."""


@dataclass(frozen=True)
class Structure:
    """Accepted structure of one system, path and bucket: plain data that deepdiff compares."""

    ledger: Mapping[str, Sequence[int]]
    """Leaf -> writes of one refresh, by step."""
    spans: Mapping[str, Sequence[int]]
    """Span -> how often it ran per refresh: for all steps, then by step."""
    capture_ledger: Mapping[str, Sequence[int]]
    """As `ledger`, of a refresh captured inside the graph."""
    capture_spans: Mapping[str, Sequence[int]]
    alias: Mapping[str, Sequence[str]]
    """Leaf -> by step, whose bytes it has: see `structure.alias_map`."""
    across: Sequence[str] | None
    """Leaves that overlap leaves of another bucket; None where one bucket only was captured."""

    def parts(self) -> dict[str, object]:
        """Return its parts by name; an unknown `across` is left out."""
        parts: dict[str, object] = {
            "refresh ledger": self.ledger,
            "spans": self.spans,
            "captured refresh ledger": self.capture_ledger,
            "captured spans": self.capture_spans,
            "alias map": self.alias,
        }
        if self.across is not None:
            parts["leaves shared across buckets"] = self.across
        return parts


@dataclass(frozen=True, eq=False)
class Golden:
    """Everything accepted for one model on one kind of engine."""

    config: Config
    policy: Policy
    entries: Mapping[str, Entry]
    """By `collect.entry_key`."""
    outputs: Mapping[str, Outputs]
    """By `collect.output_key`."""
    structures: Mapping[str, Structure]
    """By `collect.structure_key`."""
    reason: str
    """Why it was last updated."""
    tools: Mapping[str, str]
    """Versions of the tools of the last update."""
    device: str = ""
    """Where the last update's values were made, as the system told."""
    interrupted: bool = False
    """Read from the pair before an update that was killed half way; the store says how to mend it."""

    @property
    def name(self) -> str:
        """File stem, `<model>.<engine>`."""
        return stem(self.config.model, self.config.engine)

    @cached_property
    def by_label(self) -> Mapping[str, str]:
        """Entry key of every round label."""
        return {label: key for key, entry in self.entries.items() for label in entry.labels}

    @cached_property
    def programs(self) -> frozenset[str]:
        """Programs of which at least one round is kept: labels without their round."""
        return frozenset(label.rpartition("/")[0] for label in self.by_label)


def stem(model: str, engine: str) -> str:
    """Return the file stem of a golden."""
    return f"{model}.{engine}"
