"""Numbers and names as a report writes them."""

from __future__ import annotations

from collections.abc import Iterable

UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def of_bytes(number: int) -> str:
    """Return bytes with three digits and a unit."""
    value, unit = float(number), 0
    while value >= 1000 and unit < len(UNITS) - 1:
        value, unit = value / 1024, unit + 1
    return f"{value:.0f} {UNITS[unit]}" if value >= 100 or unit == 0 else f"{value:.3g} {UNITS[unit]}"


def count(number: int, noun: str) -> str:
    """Return a number with its noun, plural where it has to be."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def listed(items: Iterable[object]) -> str:
    """Return items with commas."""
    return ", ".join(map(str, items))


def steps(numbers: tuple[int, ...]) -> str:
    """Return steps in words; nothing for none."""
    if not numbers:
        return ""
    if len(numbers) == 1:
        return f"step {numbers[0]}"
    if len(numbers) > 2 and numbers == tuple(range(numbers[0], numbers[-1] + 1)):
        return f"steps {numbers[0]}-{numbers[-1]}"
    return f"steps {listed(numbers)}"
