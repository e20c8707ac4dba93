"""Bounding what metadata says before it is used, and counting what was out of range."""

from __future__ import annotations

import torch


class RangeCheck:
    """Clamps tensors of one draft step and counts, at the end and at once, the elements that it changed."""

    def __init__(self) -> None:
        self._found: list[torch.Tensor] = []
        self._bounded: list[torch.Tensor] = []

    def clamp(self, found: torch.Tensor, upper: int) -> torch.Tensor:
        """Return `found` within 0 and `upper`, both included."""
        return self._keep(found, found.clamp(0, upper))

    def clamp_each(self, found: torch.Tensor, lower: torch.Tensor, upper: torch.Tensor) -> torch.Tensor:
        """Return `found` within bounds of its own for each element, both included."""
        return self._keep(found, torch.clamp(found, lower, upper))

    def count(self) -> torch.Tensor:
        """Return how many elements were out of range, int32 `[1]`."""
        changed = torch.cat(self._found) != torch.cat(self._bounded)
        return changed.sum(0, keepdim=True, dtype=torch.int32)

    def _keep(self, found: torch.Tensor, bounded: torch.Tensor) -> torch.Tensor:
        self._found.append(found.reshape(-1))
        self._bounded.append(bounded.reshape(-1))
        return bounded
