"""One process's laboratory, made from options."""

from __future__ import annotations

import gc

import torch

from harness.faults.catalogue import opener
from harness.faults.runner import Options
from harness.faults.trial import Laboratory
from harness.known import load_known
from harness.worker import KNOWN_FILE, make_engine


def make_laboratory(options: Options) -> Laboratory:
    """Make the engine and what entries are tried with. Raises UsageError where the device is missing."""
    torch.set_num_threads(1)  # small tensors, and a worker a core
    laboratory = Laboratory(
        opener(options.sut),
        make_engine(options.engine),
        options.engine,
        load_known(options.cases_dir / KNOWN_FILE),
    )
    gc.freeze()  # modules stay: collections between runs need not look at them again
    return laboratory
