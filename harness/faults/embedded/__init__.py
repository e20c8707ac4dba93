"""The embedded system's part of the catalogue."""

from harness.faults.catalogue import Entry, place
from harness.faults.embedded import (
    addresses,
    derived,
    frozen,
    harmless,
    integers,
    layout,
    lazy,
    modes,
    mutants,
    order,
    padding,
    pooled,
    steps,
    undefined,
    variants,
)
from harness.faults.embedded.target import EmbeddedTarget
from harness.faults.scene import Opener

OPENER: Opener = EmbeddedTarget
FAULTS = (
    *derived.FAULTS,
    *addresses.FAULTS,
    *frozen.FAULTS,
    *layout.FAULTS,
    *integers.FAULTS,
    *padding.FAULTS,
    *modes.FAULTS,
    *steps.FAULTS,
    *order.FAULTS,
    *pooled.FAULTS,
    *mutants.FAULTS,
    *lazy.FAULTS,
    *variants.FAULTS,
)
ENTRIES: tuple[Entry, ...] = (
    *sorted(FAULTS, key=place),
    *sorted((*undefined.CHANGES, *harmless.CHANGES), key=place),
)
