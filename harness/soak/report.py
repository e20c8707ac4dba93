"""A soak's report: what was judged and how, how memory behaved, what the load was like."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from harness.soak import memory
from harness.soak.lean import CHECKS, LEFT_OUT
from harness.soak.run import FULL_EVERY, Soak
from harness.soak.state import State
from harness.trace.setup import describe_setting


def lines(soak: Soak, wanted: int, file: str) -> Iterator[str]:
    """Yield the report, the verdict last; `wanted` replays were asked for."""
    state = soak.state
    yield f"system    {describe_setting(state.plan.setting)}"
    yield f"load      {state.plan.load}, seed {state.plan.seed}"
    yield f"judged    {state.lean_replays:,} replays leanly: {', '.join(CHECKS)}"
    yield f"left out  there: {LEFT_OUT}"
    yield (
        f"judged    {state.full_windows:,} windows with all checks of a sequence, the first and every "
        f"{FULL_EVERY}th after it"
    )
    if len(state.parts) > 1:
        shares = ", ".join(f"{part.replays:,}" for part in state.parts)
        yield f"resumed   {len(state.parts) - 1} times, each on a system built anew; replays: {shares}"
    yield from (f"known     {name} in {count} findings" for name, count in state.known.items())
    yield from soak.distribution.lines()
    yield from memory.describe(soak.samples.kept)
    few = len(soak.samples.kept) < memory.LEAST_SAMPLES
    yield "growth    " + ("; ".join(soak.grown) or ("too few samples to tell" if few else "none"))
    yield from state.findings
    if state.replays < wanted and not failed(soak):
        yield f"goes on   with the same command: {state.replays:,} of {wanted:,} replays are in {file}"
    yield verdict(soak, wanted)


def verdict(soak: Soak, wanted: int) -> str:
    """Return the last line."""
    state = soak.state
    rate = 1000 * state.seconds / max(state.replays, 1)
    figures = (
        f"{state.replays:,} of {wanted:,} replays, {state.elements:,} elements compared in "
        f"{state.seconds:.0f} s ({rate:.1f} ms a replay)"
    )
    if not failed(soak):
        return f"OK: nothing moved, grew or went wrong; {figures}"
    return f"FAILED: {len(state.findings) + len(soak.grown)} findings; {figures}"


def failed(soak: Soak) -> bool:
    """Whether anything was found."""
    return bool(soak.state.findings or soak.grown)


def document(soak: Soak, wanted: int) -> dict[str, Any]:
    """Return a soak as JSON-ready data."""
    state: State = soak.state
    return {
        "schema": state.schema,
        "setting": describe_setting(state.plan.setting),
        "load": state.plan.load,
        "seed": state.plan.seed,
        "facts": state.facts,
        "replays": state.replays,
        "wanted": wanted,
        "lean_replays": state.lean_replays,
        "full_windows": state.full_windows,
        "lean_checks": dict(CHECKS),
        "left_out": LEFT_OUT,
        "elements": state.elements,
        "seconds": round(state.seconds, 1),
        "parts": [
            {
                "replays": part.replays,
                "seconds": round(part.seconds, 1),
                "memory": [
                    [one.replays, one.host, one.device, one.reserved, one.objects] for one in part.samples
                ],
            }
            for part in state.parts
        ],
        "memory_columns": ["replays", "host_bytes", "device_bytes", "device_reserved_bytes", "objects"],
        "grown": list(soak.grown),
        "distribution": soak.distribution.document(),
        "known": state.known,
        "findings": state.findings,
    }
