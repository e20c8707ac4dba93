"""What the released fault does to real kernels: per draft step, right or not, how much slower, or a hang.

`python -m harness.sut.sglang.effect` needs an H200 or H100, DeepGEMM and an SGLang. Kernels run in a child
process: one that never ends is killed at its limit and reported as a hang of that step, and what comes after
it is measured in a new child.
"""

from __future__ import annotations

import argparse
import datetime
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path as FilePath
from typing import Any

import msgspec

from harness.child import End, Ended, run_child
from harness.errors import HarnessError, UsageError
from harness.report import jsonreport
from harness.sut.sglang.expected import MULTI_DESTINATIONS
from harness.sut.sglang.scenarios import SCENARIOS, Kernel, Order, Scenario, stage
from harness.types import Path

OK, FOUND, USAGE = 0, 1, 2
RAN, HUNG, CRASHED = "ran", "hung", "crashed"
START_S = 120.0
"""Seconds until a child's first report, which comes once torch is imported."""
KERNEL_LIMIT_S = 10.0
"""Seconds after which a step counts as hung: some twenty replays, each of microseconds when fresh."""

Run = Callable[[Order], Ended]
"""Measures in a child process."""
Follow = Callable[[Ended, Sequence["Measured"]], None]


@dataclass(frozen=True)
class StepEffect:
    """What one draft step's kernel did, reading that step's own schedule or plan."""

    step: int
    outcome: str
    """`ran`; `hung`, reading its own derived field; or `crashed`, which is any other end."""
    stale: bool | None = None
    """Whether its derived field was not that of the live lengths; None where it is not known."""
    differing: int | None = None
    """Elements that differ from those of a fresh derived field, bit for bit."""
    compared: int | None = None
    fresh_us: float | None = None
    """Median device time with a fresh derived field, microseconds."""
    own_us: float | None = None
    """The same with the step's own."""
    detail: str = ""
    """Where it crashed: what it was at, and how it ended."""


@dataclass(frozen=True)
class Measured:
    """One scenario's steps, and what they ran on."""

    scenario: Scenario
    steps: tuple[StepEffect, ...]
    software: Mapping[str, str] = field(default_factory=dict)
    device: str = ""

    @property
    def unexpected(self) -> tuple[StepEffect, ...]:
        """Steps that are stale, wrong, hung or crashed although the path is not known for it.

        A stale plan makes top-k select wrongly; a stale schedule never changes a logit.
        """
        known = range(MULTI_DESTINATIONS) if self.scenario.path is Path.RELEASED else range(0)
        wrong = self.scenario.kernel is Kernel.TOPK
        return tuple(
            effect
            for effect in self.steps
            if effect.outcome == CRASHED
            or (effect.differing and not (wrong and effect.stale))
            or (effect.step not in known and (effect.stale or effect.outcome == HUNG))
        )


def measure(
    scenarios: Sequence[Scenario], run: Run, follow: Follow = lambda ended, measured: None
) -> tuple[Measured, ...]:
    """Measure every step of every scenario, in as many children as hangs make necessary.

    follow: told of every child that has ended, and what is measured so far.
    Raises HarnessError where a child ends before a step has begun, so that another would fare no better.
    """
    seen = _Seen(scenarios)
    while order := seen.missing():
        ended = run(order)
        for values in ended.results:
            seen.take(values)
        if ended.end is not End.DONE or seen.missing():
            seen.lost(order, ended)
        follow(ended, seen.measured())
    return seen.measured()


class _Seen:
    """What children have reported so far."""

    def __init__(self, scenarios: Sequence[Scenario]) -> None:
        self._scenarios = scenarios
        self._effects: list[dict[int, StepEffect]] = [{} for _ in scenarios]
        self._stale: list[dict[int, bool]] = [{} for _ in scenarios]
        self._fresh_us: list[dict[int, float]] = [{} for _ in scenarios]
        self._software: Mapping[str, str] = {}
        self._device = ""

    def missing(self) -> Order:
        """Return what is still to do."""
        left = (
            (number, scenario, tuple(step for step in scenario.steps if step not in self._effects[number]))
            for number, scenario in enumerate(self._scenarios)
        )
        return tuple(entry for entry in left if entry[2])

    def take(self, values: Mapping[str, Any]) -> None:
        """Take one result in."""
        match values:
            case {"software": dict(software), "device": str(device)}:
                self._software, self._device = software, device
            case {"scenario": int(number), "stale": list(steps)}:
                self._stale[number] = {step: step in steps for step in self._scenarios[number].steps}
            case {"scenario": int(number), "step": int(step), "fresh": int() | float() as fresh_us}:
                self._fresh_us[number][step] = fresh_us
            case {"scenario": int(number), "step": int(step), **figures}:
                stale = self._stale[number].get(step)
                self._effects[number][step] = StepEffect(step, RAN, stale=stale, **figures)
            case _:
                raise HarnessError(f"a measuring child reports {values}")

    def lost(self, order: Order, ended: Ended) -> None:
        """Note the step that a child hung or crashed in."""
        for number, _, steps in order:
            for step in steps:
                stages = {own: stage(number, step, own=own) for own in (True, False)}
                if ended.stage in stages.values() and step not in self._effects[number]:
                    hung = ended.end is End.HUNG and ended.stage == stages[True]
                    self._effects[number][step] = StepEffect(
                        step,
                        HUNG if hung else CRASHED,
                        stale=self._stale[number].get(step),
                        fresh_us=self._fresh_us[number].get(step),
                        detail="" if hung else f"{ended.end} at {ended.stage}: {ended.detail}",
                    )
                    return
        raise HarnessError(f"the measuring child is no help: {ended.end} at {ended.stage}: {ended.detail}")

    def measured(self) -> tuple[Measured, ...]:
        """Return what is known, by scenario and step."""
        return tuple(
            Measured(scenario, tuple(effects[step] for step in sorted(effects)), self._software, self._device)
            for scenario, effects in zip(self._scenarios, self._effects, strict=True)
        )


def child(limit_s: float) -> Run:
    """Return what measures in a child process; `limit_s` for each step."""

    def run(order: Order) -> Ended:
        text = msgspec.json.encode((order, limit_s)).decode()
        return run_child([sys.executable, "-m", "harness.sut.sglang.measured", text], start_s=START_S)

    return run


def document(
    measured: Sequence[Measured], children: Sequence[Ended], limit_s: float, date: str
) -> dict[str, Any]:
    """Return the figures as JSON-ready data; wall time includes imports and JIT builds."""
    return {
        "what": "real kernels of every draft step, captured in CUDA graphs, released and shared metadata",
        "date": date,
        "device": measured[0].device,
        "software": dict(measured[0].software),
        "hung_after_seconds": limit_s,
        "seconds": round(sum(ended.seconds for ended in children), 1),
        "children": [
            {"end": ended.end, "at": ended.stage, "seconds": round(ended.seconds, 1)} for ended in children
        ],
        "scenarios": [
            {**asdict(one.scenario), "steps": [asdict(effect) for effect in one.steps]} for one in measured
        ],
    }


def table(measured: Sequence[Measured]) -> str:
    """Return a Markdown table, one line a scenario and step."""
    lines = [
        "| kernel | path | rows | captured, tokens | replayed, tokens | step | derived field | differ "
        "| fresh, µs | own, µs | own / fresh |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for one in measured:
        scenario = one.scenario
        head = (
            f"| `{scenario.kernel}` | {scenario.path} | {len(scenario.captured)} "
            f"| {_span(scenario.captured)} | {_span(scenario.replayed)} |"
        )
        lines += [f"{head} {effect.step} | {_cells(effect)} |" for effect in one.steps]
    return "\n".join(lines)


def _span(lengths: Sequence[int]) -> str:
    return f"{min(lengths):,}" if min(lengths) == max(lengths) else f"{min(lengths):,} to {max(lengths):,}"


def _cells(effect: StepEffect) -> str:
    state = {True: "stale", False: "fresh", None: "unknown"}[effect.stale]
    fresh = "-" if effect.fresh_us is None else f"{effect.fresh_us:.1f}"
    if effect.outcome != RAN:
        return f"{state} | - | {fresh} | **{effect.outcome}** {effect.detail}".rstrip() + " | -"
    differ = f"{effect.differing:,} of {effect.compared:,}"
    ratio = f"{effect.own_us / effect.fresh_us:.2f}" if effect.own_us and effect.fresh_us else "-"
    return f"{state} | {differ} | {fresh} | {effect.own_us:.1f} | {ratio}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure all scenarios; 0 as known, 1 where a step beyond the known fault is affected, 2 usage."""
    parser = argparse.ArgumentParser(prog="python -m harness.sut.sglang.effect", description=__doc__)
    parser.add_argument("--json", type=FilePath, metavar="FILE", help="write the figures as JSON, too")
    parser.add_argument("--limit", type=float, default=KERNEL_LIMIT_S, help="seconds a replay may take")
    options = parser.parse_args(arguments)
    try:
        if options.json is not None:
            jsonreport.check_writable(options.json)
        _check_device()

        children: list[Ended] = []

        def follow(ended: Ended, so_far: Sequence[Measured]) -> None:
            children.append(ended)
            say = f"{ended.end} at {ended.stage} after {ended.seconds:.0f} s {ended.detail}"
            print(say.rstrip(), file=sys.stderr, flush=True)
            if options.json is not None:
                date = datetime.datetime.now(datetime.UTC).date().isoformat()
                jsonreport.write(options.json, document(so_far, children, options.limit, date))

        measured = measure(SCENARIOS, child(options.limit), follow)
    except HarnessError as error:
        print(f"error: {error}", file=sys.stderr)
        return USAGE
    print(table(measured))
    unexpected = sum(len(one.unexpected) for one in measured)
    print(f"{'FAILED' if unexpected else 'OK'}: {unexpected} steps beyond the known fault")
    return FOUND if unexpected else OK


def _check_device() -> None:
    import torch

    if not torch.cuda.is_available():
        raise UsageError("the effect on real kernels needs a CUDA device; torch sees none")


if __name__ == "__main__":
    sys.exit(main())
