"""Kernels that torch's dispatcher does not see, made visible: Triton launches and CPU stand-ins.

A `Launch` names the kernel, the tensors it may touch and those that it writes. `perform` runs it
once with all dispatch modes off, then tells every observer on the mode stack (a tape that records
it as one opaque node, a ledger that counts its writes). There is no registry and no global state:
the observers are the dispatch modes in force.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch.utils._python_dispatch import (
    _disable_current_modes,
    _get_current_dispatch_mode_stack,
)


@dataclass(frozen=True)
class Written:
    """Part of a tensor that a launch wrote; `elements` are flat storage indices in elements, None for all."""

    tensor: torch.Tensor
    elements: torch.Tensor | None = None


@dataclass(frozen=True)
class Launch:
    """One run of a kernel outside the dispatcher."""

    kernel: str
    run: Callable[[], tuple[Written, ...]]
    """Executes the kernel on its tensors' present contents; returns what it wrote."""
    tensors: tuple[torch.Tensor, ...]
    """Every tensor the kernel was given, read or written: a replay needs their storages alive."""


@runtime_checkable
class LaunchObserver(Protocol):
    """A dispatch mode that wants to know of launches."""

    def observe_launch(self, launch: Launch, written: tuple[Written, ...]) -> None:
        """Take note of a launch that has just run."""
        ...


@runtime_checkable
class LaunchGate(Protocol):
    """A dispatch mode that has something to do before a launch runs (let queued work go first)."""

    def before_launch(self, launch: Launch) -> None:
        """Prepare for a launch that is about to run."""
        ...


def perform(launch: Launch) -> None:
    """Let the gates in force prepare, run a launch once, then tell the observers; innermost first."""
    modes = _get_current_dispatch_mode_stack()[::-1]
    with _disable_current_modes():
        for mode in modes:
            if isinstance(mode, LaunchGate):
                mode.before_launch(launch)
        written = launch.run()
        for mode in modes:
            if isinstance(mode, LaunchObserver):
                mode.observe_launch(launch, written)
