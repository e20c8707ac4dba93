"""What every front end does with a runner: plan, refuse an empty selection, follow, check completeness."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from harness.errors import GoldenError, HarnessError, UsageError
from harness.findings import CaseResult
from harness.options import RunOptions, flags_of
from harness.report.again import VERIFY, Again
from harness.report.progress import follow
from harness.report.tally import Coverage, ordered
from harness.unrun import undriven

if TYPE_CHECKING:
    from harness.matrix import Plan


@dataclass(frozen=True)
class Outcome:
    """A finished run."""

    results: tuple[CaseResult, ...]
    """In report order, skipped cases included."""
    coverage: Coverage
    seconds: float
    """Wall time."""
    again: Again = VERIFY

    @property
    def unexpected(self) -> bool:
        """Whether any finding is not declared as known."""
        return any(not finding.known for result in self.results for finding in result.findings)


def plans(runs: Sequence[RunOptions]) -> tuple[Plan, ...]:
    """Plan each run; raise UsageError, naming the filter to blame, where no run has a case."""
    from harness import runner

    planned = tuple(runner.plan(options) for options in runs)
    if not any(plan.cases for plan in planned):
        raise UsageError(_nothing_selected(runs[0]))
    return planned


def verify(runs: Sequence[RunOptions], console: Console) -> Outcome:
    """Run all planned cases, progress on `console`.

    Raises GoldenError where the folder of goldens is not whole, UsageError where nothing ran,
    HarnessError where a planned case gave no result, `progress.Interrupted` on Ctrl-C.
    """
    from harness import runner

    start = time.monotonic()
    runner.get_ready(runs[0])
    planned = plans(runs)
    problems = golden_problems(runs[0]) if runs[0].golden == "check" else ()
    if problems:
        more = f" (and {len(problems) - 1} more: `replay-harness golden check`)" if problems[1:] else ""
        raise GoldenError(f"{problems[0]}{more}")

    total = sum(len(plan.cases) for plan in planned)
    done = ordered(follow(_results(runs, planned), total, console))
    if len(done) != total:
        raise HarnessError(
            f"{total} cases were planned but {len(done)} gave a result; a worker may have died"
        )
    if all(result.skipped for result in done):
        raise UsageError(_nothing_ran(done))
    return Outcome(done, _coverage(planned, done), time.monotonic() - start, Again(flags_of(runs[0])))


def _nothing_ran(done: Sequence[CaseResult]) -> str:
    """Say why the system could be driven on no selected case: the reason that most of them have."""
    reasons = Counter(result.skipped for result in done).most_common()
    others = len(done) - reasons[0][1]
    what = f"none of the {len(done)} selected cases ran" if len(done) > 1 else f"{done[0].case} did not run"
    more = f" ({reasons[0][1]} cases; {others} for other reasons)" if others else ""
    return f"{what}: {reasons[0][0]}{more}"


def _results(runs: Sequence[RunOptions], planned: Sequence[Plan]) -> Iterator[CaseResult]:
    """Run one plan after the other; a release that cannot be driven fails its cases and not the others'.

    Raises UsageError, of the first, where no release can be driven.
    """
    from harness import runner

    refused: list[UsageError] = []
    work = [(options, plan) for options, plan in zip(runs, planned, strict=True) if plan.cases]
    several = len({options.version for options, _ in work}) > 1
    for options, plan in work:
        left = {case.id: case for case in plan.cases}
        try:
            for result in runner.run(options, plan):
                left.pop(result.case, None)
                yield _of_version(result, options.version)
        except UsageError as error:
            if not several:
                raise
            refused.append(error)
            if len(refused) == len(work):
                raise refused[0] from None
            for case in left.values():
                yield _of_version(undriven(case, str(error)), options.version)


def _of_version(result: CaseResult, version: str) -> CaseResult:
    return replace(result, axes={**result.axes, "version": version}) if version else result


def judge(directory: Path, options: RunOptions, console: Console) -> Outcome:
    """Judge saved observations again; raises UsageError where the folder holds none."""
    from harness import runner

    start = time.monotonic()
    done = ordered(follow(runner.judge_saved(directory, options), 0, console))
    if not done:
        raise UsageError(f"{directory}: holds no saved observations; `verify --save DIR` makes them")
    return Outcome(done, Coverage(len(done), {}, {}), time.monotonic() - start, Again(flags_of(options)))


def update_goldens(
    options: RunOptions, mode: str, reason: str, console: Console, echo: Callable[[str], None]
) -> None:
    """Run all planned cases one after the other and write the goldens that `mode` accepts.

    mode: new, changed or all. `echo` gets what changed, line by line. Raises GoldenError, with
    nothing written, where updating is refused, a case has an unexpected finding or the oracle
    contradicts a value.
    """
    from harness import runner
    from harness.updating import Updating

    update = Updating(options, mode, reason)
    (plan,) = plans([options])
    cases = [case for group in runner.groups(plan.cases) for case in group]
    follow((update.run(case) for case in cases), len(cases), console)
    update.apply(echo)


def propose_goldens(options: RunOptions, console: Console, echo: Callable[[str], None]) -> None:
    """Run all planned cases and keep what differs from the accepted goldens as pending ones.

    `echo` gets a line for each. Raises GoldenError as `update_goldens` does, but in CI.
    """
    from harness import runner
    from harness.updating import PROPOSE, Updating

    update = Updating(options, PROPOSE, "pending")
    (plan,) = plans([options])
    cases = [case for group in runner.groups(plan.cases) for case in group]
    follow((update.run(case) for case in cases), len(cases), console)
    for one in update.propose():
        echo(one.status)


def golden_problems(options: RunOptions) -> tuple[str, ...]:
    """Return what is wrong with the folder of goldens as a whole, one line each: orphans, damage, size."""
    from harness.casefile import load_models
    from harness.golden.store import GoldenStore

    models = load_models(options.cases_dir)
    known = [(model.name, key) for model in models.values() for key in model.geometries]
    return GoldenStore(options.golden_dir).problems(known)


def _coverage(planned: Sequence[Plan], results: Sequence[CaseResult]) -> Coverage:
    not_applicable: Counter[str] = Counter()
    for what, reason in {pair for plan in planned for pair in plan.not_applicable}:
        number = what.split(maxsplit=1)[0]
        not_applicable[reason] += int(number) if number.isdigit() else 1
    skipped = Counter(reason for plan in planned for _, reason in plan.skipped)
    skipped.update(result.skipped for result in results if result.skipped)
    whole = sum(len(plan.cases) + len(plan.skipped) for plan in planned)
    return Coverage(whole, dict(not_applicable), dict(skipped))


def _nothing_selected(options: RunOptions) -> str:
    """Say which filter leaves nothing: one that fits no case by itself, else all of them together."""
    from harness import runner
    from harness.matrix import Selection

    selection = options.selection
    given = [field.name for field in fields(selection) if getattr(selection, field.name)]
    # A model outside the default matrix takes part only where it is named.
    models = Selection(models=selection.models)
    cases = runner.plan(replace(options, selection=models)).cases
    if not cases and not selection.models:
        return "no case is planned; are there case files in --cases-dir?"
    for name in given:
        alone = Selection(**{name: getattr(selection, name)})
        if all(alone.rejects(case) for case in cases):
            values = ", ".join(map(str, getattr(selection, name)))
            return f"no case is selected: none has {_FLAGS[name]} {values}; `verify --list` prints all"
    flags = ", ".join(_FLAGS[name] for name in given)
    without = {
        name: sum(not replace(selection, **{name: ()}).rejects(case) for case in cases) for name in given
    }
    most = max(without, key=lambda name: without[name])
    cases_ = f"{without[most]} case{'s' if without[most] > 1 else ''}"
    mend = f"without {_FLAGS[most]} there {'are' if without[most] > 1 else 'is'} {cases_}"
    mend = mend if without[most] else "drop two of them"
    return f"no case is selected: none has all of {flags} together; {mend}, or try `verify --full`"


_FLAGS = {
    "models": "--model",
    "paths": "--path",
    "fusion": "--fusion",
    "steps": "--steps",
    "modes": "--mode",
    "drills": "--drill",
    "buckets": "--bucket",
    "kernels": "--kernel",
    "cases": "--case",
}
"""Fields of a selection as the command line spells them."""
