"""Weighing a subject: bytes that its steps own, bytes that a refresh writes, fields that are not right."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from harness.bench.subjects import Subject
from harness.fields import COUNTER, Dims, Live, canonical, fields_for, plan_is_written
from harness.oracle import expected
from harness.probe.leaves import Look
from harness.rounds import Inputs
from harness.types import Role

SENTINEL = 0x5A
"""Byte that leaves are filled with to see what a refresh writes."""


def bytes_owned(subject: Subject) -> int:
    """Return the bytes of all allocations that metadata and state of all steps lie in, KV counters apart."""
    storages: dict[int, int] = {}
    for step in subject.roots():
        for top in (*step.metadata.values(), {k: v for k, v in step.state.items() if k != COUNTER}):
            for _, value in Look((step,)).below(top, state=False):
                if isinstance(value, torch.Tensor):
                    storage = value.untyped_storage()
                    storages[storage.data_ptr()] = storage.nbytes()
    return sum(storages.values())


def bytes_written(subject: Subject, dims: Dims) -> int:
    """Return how many bytes of the refreshed leaves of all steps a refresh writes, each counted once.

    Leaves are filled with two different bytes in turn; what changes under either was written. They hold
    what the refresh left afterwards.
    """
    leaves = list(_refreshed(subject, dims))
    written = [torch.zeros(leaf.numel() * leaf.element_size(), dtype=torch.bool) for leaf in leaves]
    for sentinel in (SENTINEL, SENTINEL ^ 0xFF):
        kept = [leaf.clone() for leaf in leaves]
        for leaf in leaves:
            _bytes(leaf).fill_(sentinel)
        subject.refresh()
        for leaf, before, seen in zip(leaves, kept, written, strict=True):
            now = _bytes(leaf)
            changed = now != sentinel
            seen.logical_or_(changed.cpu())
            # What was not written gets back what it held.
            now.copy_(torch.where(changed, now, _bytes(before)))
    return int(sum(mask.sum().item() for mask in written))


def _refreshed(subject: Subject, dims: Dims) -> Iterator[torch.Tensor]:
    """Yield the refreshed leaves of all steps, those of the same bytes once."""
    fields = fields_for(dims)
    seen: set[tuple[int, int]] = set()
    for leaves in Look(subject.roots()).leaves(dims.bucket):
        for name, leaf in leaves.items():
            key = leaf.data_ptr(), leaf.numel()
            if name in fields and fields[name].role is Role.REFRESHED and key not in seen:
                seen.add(key)
                yield leaf


def _bytes(leaf: torch.Tensor) -> torch.Tensor:
    return leaf.view(-1).view(torch.uint8)


def wrong_fields(subject: Subject, dims: Dims, inputs: Inputs) -> tuple[str, ...]:
    """Return the fields that differ from the oracle in any step, defined elements only."""
    right = expected(dims, inputs)
    fields = fields_for(dims)
    wrong: set[str] = set()
    judged: set[tuple[str, int]] = set()
    for leaves in Look(subject.roots()).leaves(dims.bucket):
        for name, spec in fields.items():
            if name not in right or (spec.live is Live.PLAN and not plan_is_written(dims)):
                continue
            leaf = leaves.get(name)
            if leaf is None:
                wrong.add(name)
            elif (name, leaf.data_ptr()) not in judged:
                judged.add((name, leaf.data_ptr()))
                got = canonical(spec, dims, inputs, leaf.cpu().numpy())
                if not np.array_equal(got, canonical(spec, dims, inputs, right[name])):
                    wrong.add(name)
    return tuple(sorted(wrong))
