"""What a leaf holds instead of its right value; factories of `values.Rule`."""

from __future__ import annotations

from collections.abc import Callable, Hashable

import torch

from harness.faults.mechanisms.keys import Key, RowKey
from harness.faults.mechanisms.values import Rule, Spot


def kept(key: Key) -> Rule:
    """Return the rule: the value from when the key last changed, in this bucket."""

    def rule(spot: Spot) -> torch.Tensor:
        place = "kept", spot.step, spot.bucket, spot.name
        now = key(spot.round)
        if place not in spot.scene.memory or spot.scene.memory[place][0] != now:
            spot.scene.memory[place] = now, spot.fresh
        value: torch.Tensor = spot.scene.memory[place][1]
        return value

    return rule


def kept_rows(key: RowKey, *, by_request: bool = False) -> Rule:
    """Return the rule: each request's rows are kept while their own key is unchanged.

    by_request: remembered under the request id, in whichever row and bucket it is, not under the row.
    """

    def rule(spot: Spot) -> torch.Tensor:
        place = ("requests", spot.name) if by_request else ("rows", spot.step, spot.bucket, spot.name)
        kept: dict[int, tuple[Hashable, torch.Tensor]] = spot.scene.memory.setdefault(place, {})
        value, each = spot.fresh.clone(), spot.fresh.shape[0] // spot.bucket
        for row in range(spot.round.live):
            rows = slice(row * each, (row + 1) * each)
            name, now = int(spot.round.requests[row]) if by_request else row, key(spot.round, row)
            if name in kept and kept[name][0] == now:
                value[rows] = kept[name][1]
            kept[name] = now, value[rows].clone()
        return value

    return rule


def up_to_the_longest_before(spot: Spot) -> torch.Tensor:
    """Rule: only columns that the longest request of the bucket's refresh before had are made anew."""
    place = "columns", spot.step, spot.bucket, spot.name
    shadow, longest = spot.scene.memory.get(place, (spot.fresh, spot.dims.width))
    unit = -(-spot.dims.width // spot.fresh.shape[1])
    count = -(-longest // unit)
    value: torch.Tensor = shadow.clone()
    value[:, :count] = spot.fresh[:, :count]
    spot.scene.memory[place] = value.clone(), int(spot.round.lengths.max(initial=0))
    return value


def captured(spot: Spot) -> torch.Tensor:
    """Rule: the value that the leaf was made with, before the capture."""
    value: torch.Tensor = spot.scene.memory["captured", spot.step, spot.bucket, spot.name]
    return value


def late(spot: Spot) -> torch.Tensor:
    """Rule: the value of the bucket's refresh before."""
    place = "late", spot.step, spot.bucket, spot.name
    value: torch.Tensor = spot.scene.memory.get(place, spot.fresh)
    spot.scene.memory[place] = spot.fresh
    return value


def unwritten(spot: Spot) -> torch.Tensor:
    """Rule: what was there before."""
    return spot.before


def partial(rows: Callable[[Spot], torch.Tensor]) -> Rule:
    """Return the rule: only these rows (bool `[rows]`) are written."""

    def rule(spot: Spot) -> torch.Tensor:
        chosen = rows(spot).to(spot.fresh.device)
        shape = (-1, *[1] * (spot.fresh.dim() - 1))
        return torch.where(chosen.view(shape), spot.fresh, spot.before)

    return rule


def live_rows(spot: Spot) -> torch.Tensor:
    """Rows of live requests."""
    each = spot.fresh.shape[0] // spot.bucket
    return torch.arange(spot.fresh.shape[0]) < each * spot.round.live


def first_rows(count: int) -> Callable[[Spot], torch.Tensor]:
    """Return the choice of the first rows."""
    return lambda spot: torch.arange(spot.fresh.shape[0]) < count


def first_columns(count: int) -> Rule:
    """Return the rule: only so many columns are written."""

    def rule(spot: Spot) -> torch.Tensor:
        value = spot.before.clone()
        value[:, :count] = spot.fresh[:, :count]
        return value

    return rule


def computed(formula: Callable[[Spot], torch.Tensor]) -> Rule:
    """Return the rule: what a formula gives, converted to the leaf's dtype."""

    def rule(spot: Spot) -> torch.Tensor:
        return formula(spot).to(spot.fresh.dtype).view(spot.fresh.shape)

    return rule


def plus(delta: int) -> Rule:
    """Return the rule: everything is off by `delta`."""
    return lambda spot: spot.fresh + delta


def rolled(rows: int = 1) -> Rule:
    """Return the rule: every row holds the value of another one."""
    return lambda spot: spot.fresh.roll(rows, 0)


def other_bucket(spot: Spot) -> torch.Tensor | None:
    """Rule: what the other bucket's leaf holds, as far as it goes."""
    for bucket in spot.scene.buckets:
        if bucket != spot.bucket:
            other = spot.scene.leaf(spot.step, bucket, spot.name)
            value = spot.fresh.clone()
            part = tuple(slice(min(a, b)) for a, b in zip(value.shape, other.shape, strict=True))
            value[part] = other[part]
            return value
    return None


def wrapped(bits: int) -> Rule:
    """Return the rule: the value as a signed integer of so many bits."""

    def rule(spot: Spot) -> torch.Tensor:
        half = 1 << (bits - 1)
        return (spot.fresh + half) % (2 * half) - half

    return rule


def filled(value: int) -> Rule:
    """Return the rule: one value everywhere."""
    return lambda spot: torch.full_like(spot.fresh, value)
