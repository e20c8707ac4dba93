"""The fault catalogue under the fuzzer: which of its faults traffic can reach, and how one is planted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from harness.case import Model
from harness.errors import UsageError
from harness.faults.catalogue import Entry, Fault, entries, opener
from harness.faults.scene import Trace
from harness.faults.wrapped import faulty
from harness.fuzz.sequence import setting_of
from harness.fuzz.space import Space, sizes_of
from harness.load.planted import traffic_faults
from harness.sut.protocol import SutFactory
from harness.types import EngineKind


@dataclass(frozen=True)
class Plant:
    """A system with one fault of the catalogue, and the setting in which the fault has to be seen."""

    fault: Fault
    space: Space
    factory: SutFactory
    ordinary: SutFactory
    """Of the reference: without the fault, but where the fault is everywhere."""
    trace: Trace


def unreachable(entry: Entry) -> str:
    """Return why no traffic can show an entry; empty if some can."""
    if not isinstance(entry, Fault):
        return "harmless: there is nothing to find"
    if entry.golden:
        return "only the comparison with goldens shows it, and drawn values have none"
    if entry.checks == ("evidence",):
        return "a fault of the harness's own rounds, not of a system"
    return ""


def reachable(sut: str) -> tuple[Fault, ...]:
    """Return a system's faults that traffic can show, in the order of the catalogue."""
    return tuple(entry for entry in entries(sut) if isinstance(entry, Fault) and not unreachable(entry))


def plant(identity: str, sut: str, engine: EngineKind, models: Mapping[str, Model]) -> Plant:
    """Return a system with the fault of that id, in the fault's own setting: it may not exist in another.

    Raises UsageError where there is no such fault, or no traffic shows it.
    """
    known = (*entries(sut), *traffic_faults(sut))
    found = next((entry for entry in known if entry.id == identity), None)
    if found is None:
        raise UsageError(f"--plant {identity}: no such fault of {sut}; `replay-harness faults --list`")
    reason = unreachable(found)
    if reason or not isinstance(found, Fault):
        raise UsageError(f"--plant {identity}: {reason}")
    case, trace = replace(found.case, engine=engine), Trace()
    settings = tuple(setting_of(case, sizes) for sizes in sizes_of(case))
    space = Space({**models, case.model.name: case.model}, {case.mode: settings})
    factory = faulty(opener(sut), found.injection, trace)
    return Plant(found, space, factory, factory if found.everywhere else opener(sut), trace)
