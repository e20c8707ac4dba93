"""What the catalogue is made of, and where each system's part of it is."""

from __future__ import annotations

import importlib
import importlib.util
import re
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType

from harness.case import Case
from harness.errors import UsageError
from harness.faults.scene import Injection, Opener
from harness.rounds import Program

SYSTEMS = {
    "embedded": "harness.faults.embedded",
    "sglang": "harness.faults.sglang",
    "vllm": "harness.faults.vllm",
}
"""Module of each system's part: it has `ENTRIES` and `OPENER`."""
Rounds = Callable[[Program], Program]
"""A change of a case's rounds and of what happens between them."""
IDENTITY = re.compile(r"([A-Z])(\d+)([a-z]?)")


@dataclass(frozen=True)
class Fault:
    """One change that has to be noticed."""

    id: str
    """Class letter and number as in the public catalogue; a letter more for our own variants of an entry."""
    text: str
    """What is wrong, one sentence."""
    case: Case
    """The smallest case in which it must be seen."""
    injection: Injection
    expected: str
    """The check that has to speak."""
    also: tuple[str, ...] = ()
    """Checks any of which may speak instead."""
    letter: str = ""
    """Its class, where the id does not begin with it."""
    everywhere: bool = False
    """Whether the ordinary reference has the fault, too."""
    golden: bool = False
    """Whether the run is compared with a golden of the system as it is, which the others are not."""
    rounds: Rounds | None = None
    """What the case's rounds are changed to, for the reference as well."""

    @property
    def cls(self) -> str:
        """The letter of its class."""
        return self.letter or self.id[0]

    @property
    def checks(self) -> tuple[str, ...]:
        """Checks of which one has to speak."""
        return (self.expected, *self.also)

    @property
    def cases(self) -> tuple[Case, ...]:
        """The one case."""
        return (self.case,)


@dataclass(frozen=True)
class Harmless:
    """One change that no check may notice."""

    id: str
    text: str
    cases: tuple[Case, ...]
    injection: Injection
    rounds: Rounds | None = None
    """What the cases' rounds are changed to."""
    golden: bool = False
    """Whether the runs are compared with a golden of the system as it is."""

    @property
    def cls(self) -> str:
        """The letter of harmless changes."""
        return "harmless"


Entry = Fault | Harmless


def base_of(identity: str) -> str:
    """Return the public entry that an id is, or is a variant of. Raises ValueError for another form."""
    found = IDENTITY.fullmatch(identity)
    if found is None:
        raise ValueError(f"{identity!r} is no id of the catalogue")
    return found[1] + found[2]


def place(entry: Entry) -> tuple[object, ...]:
    """Return what entries are sorted by: class, public entries before mutants of our own, number, letter."""
    found = IDENTITY.fullmatch(entry.id)
    if found is None:
        raise ValueError(f"{entry.id!r} is no id of the catalogue")
    harmless = isinstance(entry, Harmless)
    return entry.cls, found[1] if harmless else found[1] != entry.cls, int(found[2]), found[3]


def systems() -> tuple[str, ...]:
    """Return the systems that have a part."""
    return tuple(name for name, module in SYSTEMS.items() if importlib.util.find_spec(module))


def part(system: str) -> ModuleType:
    """Return the module with a system's part. Raises UsageError where there is none."""
    if system not in systems():
        there = ", ".join(systems())
        raise UsageError(f"--sut {system}: no faults are known for it; there are some for {there}")
    return importlib.import_module(SYSTEMS[system])


def entries(system: str) -> tuple[Entry, ...]:
    """Return a system's entries in the order of the catalogue."""
    found: tuple[Entry, ...] = part(system).ENTRIES
    return found


def opener(system: str) -> Opener:
    """Return how a system is opened."""
    found: Opener = part(system).OPENER
    return found


def select(system: str, classes: tuple[str, ...], ids: tuple[str, ...]) -> tuple[Entry, ...]:
    """Return the entries of these classes or with these ids, all where neither is given.

    Raises UsageError for a class or id that does not exist.
    """
    known = entries(system)
    letters = {entry.cls for entry in known}
    for wanted in classes:
        if wanted not in letters:
            raise UsageError(f"--class {wanted}: there is {', '.join(sorted(letters))}")
    for wanted in ids:
        if wanted not in {entry.id for entry in known}:
            raise UsageError(f"--id {wanted}: no such entry for {system}; docs/faults.md lists them")
    if not classes and not ids:
        return known
    return tuple(entry for entry in known if entry.cls in classes or entry.id in ids)
