"""The frozen record of one run: everything a check may look at, and nothing that needs a device.

A driver makes it, `save` / `load` keep it as safetensors and JSON, checks judge it. Values are
kept once, by digest; only defined elements are kept (`fields.canonical`). Storages are numbered in
order of first appearance, so that two runs give the same record whatever the addresses were.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from harness.case import Case
from harness.rounds import Program

OUT_OF_RANGE = "out_of_range"
"""Output of a step that counts ids, lengths and locations outside their range: one element, 0 if all is well.

A consequence of wrong metadata, so neither compared with the ordinary path's nor kept in goldens.
"""
Digest = str
"""SHA-256 of dtype, shape and bytes of a value, hex; see `digest.value_digest`."""


@dataclass(frozen=True)
class LeafFact:
    """Where one tensor leaf lies."""

    step: int
    bucket: int
    """0 for state that belongs to the backend, not to a bucket."""
    name: str
    """Dotted path below the root, e.g. `kpool_write_plan.req`."""
    dtype: str
    """As torch prints it without `torch.`, e.g. `int32`."""
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    region: int
    """Number of the allocation; two leaves can overlap only within one region."""
    start: int
    """First byte, from the region's start."""
    stop: int
    """One past the last byte that an element occupies; equal to `start` for an empty leaf."""


@dataclass(frozen=True)
class HostFact:
    """A non-tensor attribute below a metadata root (frozen into a graph at capture)."""

    step: int
    bucket: int
    name: str
    value: str
    """`repr` of an int, float, bool, str or None; the type's name for anything else."""


@dataclass(frozen=True)
class Walk:
    """All leaves of all steps and captured buckets, and of the backends' own state, at one moment."""

    leaves: tuple[LeafFact, ...]
    hosts: tuple[HostFact, ...]
    active: tuple[int, ...]
    """Per step: the bucket whose metadata object is the active one, -1 if it is none of them."""
    freed: tuple[tuple[int, int, str], ...] = ()
    """(step, bucket, leaf) captured by a graph in force whose storage no longer lives."""


@dataclass(frozen=True)
class LedgerEntry:
    """How often one refresh wrote into one leaf's bytes."""

    step: int
    name: str
    writes: int


@dataclass(frozen=True)
class Span:
    """A named part of a refresh (`precompute`, `fused_copy`, `derived_refresh`, ...) that ran once."""

    name: str
    step: int
    """-1 where it serves all steps."""
    writes: int
    """Writes inside it, to leaves or temporaries; 0 means that the span did nothing."""


@dataclass(frozen=True)
class PoisonFact:
    """One leaf's sentinel before a refresh."""

    step: int
    name: str
    sentinel: int
    """Value written into every defined-role element (init-once elements excepted)."""
    elements: int
    landed: bool
    """Whether reading back showed the sentinel everywhere."""


@dataclass(frozen=True)
class PauseFact:
    """One leaf after a pause, which takes the memory of refreshed leaves away and gives it back zeroed."""

    before_round: int
    bucket: int
    step: int
    name: str
    zeroed: bool


@dataclass(frozen=True)
class Cell:
    """One leaf's defined elements at one moment."""

    step: int
    name: str
    value: Digest
    poisoned: int | None = None
    """Defined elements that still hold the sentinel; None where the leaf was not poisoned."""


@dataclass(frozen=True)
class Refresh:
    """One refresh: what was done and what the leaves hold after it."""

    poison: tuple[PoisonFact, ...]
    ledger: tuple[LedgerEntry, ...]
    spans: tuple[Span, ...]
    unattributed: tuple[tuple[int, str, int], ...]
    """(step, leaf, bytes) that changed under the sentinel without a ledger entry covering them."""
    cells: tuple[Cell, ...]
    walk: int
    """Index into `Observation.walks`, taken after the refresh."""
    inputs_changed: tuple[str, ...] = ()
    """Persistent input tensors that differ after it, or that are other tensors."""
    printed: tuple[str, ...] = ()
    """Warnings: lines that the system printed or logged."""
    staging: tuple[LedgerEntry, ...] = ()
    """Writes into leaves while this refresh's inputs were put in place: there have to be none."""


@dataclass(frozen=True)
class Change:
    """Bytes of a leaf that a forward changed."""

    step: int
    name: str
    bytes: int
    first: int
    """Flat element index of the first change."""


@dataclass(frozen=True)
class Replay:
    """One replay of the captured draft forward."""

    read: tuple[Cell, ...]
    """What each captured step read of each leaf, copied inside the graph."""
    outputs: tuple[Cell, ...]
    """What each captured step computed: `attention`, `draft_token`, ..., and `out_of_range`."""
    changed: tuple[Change, ...]
    """Metadata bytes that differ before and after."""
    walk: int
    delayed: bool = False
    """Whether the next round was staged and refreshed while this replay had not read yet."""
    inputs_changed: tuple[str, ...] = ()
    """Persistent input tensors that differ after it, or that are other tensors."""
    counter_nonzero: tuple[tuple[int, int, int], ...] = ()
    """(step, nonzero elements before, after) of KV counters that were not zero."""
    freed: tuple[str, ...] = ()
    """Reads of freed storage that the engine noticed."""
    races: tuple[str, ...] = ()
    """Accesses without order to it that the engine noticed (`Engine.races`)."""
    after: tuple[Cell, ...] = ()
    """Delayed: what the next round's refresh, issued meanwhile, left in the leaves once all was done."""


@dataclass(frozen=True)
class RoundRecord:
    """All that happened in one round."""

    index: int
    name: str
    """`Round.name` of the round in the program."""
    refreshes: tuple[Refresh, ...]
    """One; two in audit rounds (another sentinel); in-graph refreshes are judged after the replay."""
    replay: Replay | None
    skipped: str = ""
    """Why there was no replay."""
    recaptured: bool = False
    """Whether this round's bucket was captured anew just before it."""


@dataclass(frozen=True)
class Capture:
    """One capture of one bucket's draft forward."""

    bucket: int
    walk: int
    forward_writes: tuple[LedgerEntry, ...]
    """Writes into metadata leaves while the forward ran (a forward may only read)."""
    refresh_writes: tuple[LedgerEntry, ...]
    """In-graph refresh: its ledger, as recorded at capture."""
    refresh_spans: tuple[Span, ...] = ()
    error: str = ""
    before_round: int = 0
    """The round that follows: 0 for the first captures, later for recaptures."""
    walk_before: int = 0
    """Index of the walk after the bucket's metadata was made and before its forward ran."""
    printed: tuple[str, ...] = ()
    """Warnings: lines that the system printed or logged while the metadata was made and captured."""


@dataclass(frozen=True)
class Expectation:
    """What a system declares of itself for a case: the path's contract, as data."""

    route: str
    """The path that has to run (`harness.types.Path` value)."""
    writes: tuple[LedgerEntry, ...]
    """Expected ledger of one refresh, per owner leaf; leaves left out must not be written."""
    spans: Mapping[str, int]
    """Expected count of each span per refresh."""
    shared: bool
    """Whether steps 1.. alias step 0."""
    state_leaves: tuple[str, ...]
    """Backend-owned leaves (bucket 0) that a step of this path may own besides metadata: step 0's
    and, where sharing is off, every step's."""
    counter_elements: int = 0
    """Least elements of each step's KV counter; 0 where there is none."""
    host_values: Mapping[str, str] = field(default_factory=dict)
    """Host attributes of the bucket's metadata by name, as `HostFact.value` prints them: what a graph of
    this bucket has to freeze, in every step."""
    padded_writes: tuple[LedgerEntry, ...] = ()
    """Expected ledger of a refresh of a batch with padded rows, where it is another one."""

    def ledger(self, *, padded: bool) -> tuple[LedgerEntry, ...]:
        """Return the expected ledger of one refresh; padded: of a batch with padded rows."""
        return self.padded_writes if padded and self.padded_writes else self.writes


@dataclass(frozen=True)
class Observation:
    """One run of one case."""

    case: Case
    program: Program
    expectation: Expectation
    facts: Mapping[str, str]
    """Versions, device, which parts were real and which stand-ins."""
    walks: tuple[Walk, ...]
    captures: tuple[Capture, ...]
    rounds: tuple[RoundRecord, ...]
    route: str
    """The path that ran, as the system's routing evidence says: the first one that is not the declared one,
    if any round took another."""
    values: Mapping[Digest, NDArray[np.generic]] = field(repr=False)
    references: Mapping[str, Digest] = field(default_factory=dict)
    """For leaves without a formula: `round name/leaf` -> value that the same planner gives on the
    oracle's lengths."""
    problems: tuple[str, ...] = ()
    """Lines about the run itself: an exception while building, a fallback that was printed."""
    other_buckets: Mapping[int, Expectation] = field(default_factory=dict)
    """What the system declares for buckets besides the case's main one."""
    pauses: tuple[PauseFact, ...] = ()
    """Every refreshed leaf after every pause."""

    def expected_of(self, bucket: int) -> Expectation:
        """Return what the system declares of a refresh of one bucket."""
        return self.other_buckets.get(bucket, self.expectation)
