"""The released vLLM's part of the catalogue: its code is patched at its own seams, run by run."""

from harness.faults.catalogue import Entry, place
from harness.faults.scene import Opener
from harness.faults.vllm import builds, harmless, updates
from harness.faults.vllm.target import VllmTarget

OPENER: Opener = VllmTarget
FAULTS = (*updates.FAULTS, *builds.FAULTS)
ENTRIES: tuple[Entry, ...] = (
    *sorted(FAULTS, key=place),
    *sorted(harmless.CHANGES, key=place),
)
