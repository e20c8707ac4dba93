"""The released SGLang's part of the catalogue: its code is patched at its own seams, run by run."""

from harness.faults.catalogue import Entry, place
from harness.faults.scene import Opener
from harness.faults.sglang import (
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
    sharing,
    steps,
)
from harness.faults.sglang.target import SglangTarget

OPENER: Opener = SglangTarget
FAULTS = (
    *derived.FAULTS,
    *addresses.FAULTS,
    *frozen.FAULTS,
    *layout.FAULTS,
    *integers.FAULTS,
    *padding.FAULTS,
    *modes.FAULTS,
    *steps.FAULTS,
    *sharing.FAULTS,
    *order.FAULTS,
    *pooled.FAULTS,
)
ENTRIES: tuple[Entry, ...] = (
    *sorted(FAULTS, key=place),
    *sorted(harmless.CHANGES, key=place),
)
