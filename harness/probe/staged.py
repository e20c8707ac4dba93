"""The staged inputs, before and after: what a refresh or a replay may only read."""

from __future__ import annotations

from collections.abc import Mapping

import torch


class Staged:
    """Copies of a system's persistent input tensors at one moment."""

    def __init__(self, inputs: Mapping[str, torch.Tensor]) -> None:
        """Copy every tensor."""
        self._copies = {name: (tensor.data_ptr(), tensor.clone()) for name, tensor in inputs.items()}

    def changed(self, inputs: Mapping[str, torch.Tensor]) -> tuple[str, ...]:
        """Return the names of inputs that hold other values now, lie elsewhere, or came or went."""
        differing = self._copies.keys() ^ inputs.keys()
        for name in self._copies.keys() & inputs.keys():
            address, copy = self._copies[name]
            tensor = inputs[name]
            if tensor.data_ptr() != address or not torch.equal(tensor, copy):
                differing.add(name)
        return tuple(sorted(differing))
