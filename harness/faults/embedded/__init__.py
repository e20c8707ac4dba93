"""The embedded system's part of the catalogue."""

from harness.faults.catalogue import Entry
from harness.faults.embedded import derived, harmless
from harness.faults.embedded.target import EmbeddedTarget
from harness.faults.scene import Opener

OPENER: Opener = EmbeddedTarget
ENTRIES: tuple[Entry, ...] = (*derived.FAULTS, *harmless.CHANGES)
