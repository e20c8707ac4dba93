"""Public entries that no injection expresses, with the reason, and the test that holds their lesson."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Unexpressed:
    """Why an entry is no injection."""

    reason: str
    test: str = ""
    """Where what it teaches is tested instead, from the repository's root."""


_RANKS = "one process drives one rank; nothing here lets ranks decide apart"
_COMPARER = "a fault of a comparing tool, not of a system: "
_STORE = "a fault of a snapshot tool, not of a system: "

UNEXPRESSED: Mapping[str, Unexpressed] = {
    "B10": Unexpressed(
        "a fault of a checker whose backups come from the graph's memory: expected values are NumPy arrays "
        "on the host, and every value that is read is copied out before the next launch",
        "tests/probe/test_snapshot.py",
    ),
    "I7": Unexpressed(
        "a fault of a test's own staging: inputs are copied from fresh pinned buffers in stream order, and "
        "the harness waits for the device before it reads",
        "tests/engine/test_contract.py",
    ),
    "P3": Unexpressed(_RANKS),
    "T1": Unexpressed(_COMPARER + "NaN equals nothing here unless it is allowed", "tests/test_compare.py"),
    "T2": Unexpressed(_COMPARER + "dtype, shape and stride are compared one by one", "tests/test_compare.py"),
    "T4": Unexpressed(
        _STORE + "goldens keep contiguous copies of live elements, and what shares memory as data",
        "tests/golden/test_collect.py",
    ),
    "T5": Unexpressed(
        _STORE + "sharing is judged on the running system, never on what was loaded",
        "tests/golden/test_structure.py",
    ),
    "T6": Unexpressed(
        _STORE + "one process updates, others are refused, and files are replaced whole",
        "tests/golden/test_update.py",
    ),
    "T7": Unexpressed(_STORE + "a crash at any moment leaves one whole golden", "tests/golden/test_store.py"),
    "T8": Unexpressed(_STORE + "nothing is deleted unless asked for", "tests/golden/test_update.py"),
    "T10": Unexpressed(
        _STORE + "an update under several workers or in CI is refused", "tests/golden/test_update.py"
    ),
    "T11": Unexpressed(
        _STORE + "a field that is missing on either side is a finding", "tests/checks/test_golden_check.py"
    ),
    "T12": Unexpressed(
        _COMPARER + "arrays of unequal shape differ, nothing is padded", "tests/test_compare.py"
    ),
    "T13": Unexpressed(
        _COMPARER + "the comparison is our own, no release of another tool decides", "tests/test_compare.py"
    ),
    "T15": Unexpressed(_COMPARER + "another dtype is a difference", "tests/test_compare.py"),
    "T17": Unexpressed(
        _COMPARER + "no generic deep comparison is used for tensors", "tests/golden/test_model.py"
    ),
    "T19": Unexpressed(
        _COMPARER + "every flipped bit has to be found, by a property test", "tests/test_compare.py"
    ),
    "T20": Unexpressed(
        _COMPARER + "only defined elements are compared; X17, Y2 and Y4 put junk into the others",
        "tests/test_fields.py",
    ),
    "T21": Unexpressed(
        "a harness that cannot fail: this catalogue, and its reverse gate, are the answer",
        "tests/faults/test_kills.py",
    ),
    "T23": Unexpressed(
        "a matrix without a batch of two at a depth of two: the covering array has all pairs",
        "tests/test_matrix.py",
    ),
    "T24": Unexpressed(
        "a replay test without a live batch below the captured one: F15 plants it",
        "tests/checks/test_evidence.py",
    ),
}
