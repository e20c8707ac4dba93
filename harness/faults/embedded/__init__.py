"""The embedded system's part of the catalogue."""

from harness.faults.catalogue import Entry, place
from harness.faults.embedded import (
    addresses,
    derived,
    frozen,
    harmless,
    integers,
    layout,
    modes,
    order,
    padding,
    pooled,
    steps,
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
    *variants.FAULTS,
)
ENTRIES: tuple[Entry, ...] = (
    *sorted(FAULTS, key=place),
    *harmless.CHANGES,
)
