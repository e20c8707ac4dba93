"""The effect's parent: what it makes of children that report, hang, crash or never begin (no GPU needed)."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path as FilePath
from typing import Any

import numpy as np
import pytest

from harness.child import End, Ended, run_child
from harness.errors import HarnessError
from harness.sut.sglang import effect
from harness.sut.sglang.effect import CRASHED, HUNG, RAN, document, measure, table
from harness.sut.sglang.measured import case_of, inputs_of
from harness.sut.sglang.scenarios import SCENARIOS, Kernel, Order, Scenario, stage
from harness.types import Path

SHRUNK = Scenario(Kernel.LOGITS, Path.RELEASED, (900, 800), (64, 65), "why")
CONTROL = Scenario(Kernel.LOGITS, Path.SHARED, (900, 800), (64, 65), "why")
PLAN = Scenario(Kernel.TOPK, Path.RELEASED, (900, 800), (64, 65), "why")
SOFTWARE = {"software": {"sglang": "0.5.23"}, "device": "a GPU"}


def figures(number: int, step: int, **others: Any) -> dict[str, Any]:
    known = {"differing": 0, "compared": 129, "fresh_us": 8.0, "own_us": 8.1}
    return {"scenario": number, "step": step} | known | others


class Children:
    """Plays one list of reports after the other, and keeps what was asked for."""

    def __init__(self, *ends: tuple[Sequence[Mapping[str, Any]], End, str]) -> None:
        self._ends = iter(ends)
        self.orders: list[Order] = []

    def __call__(self, order: Order) -> Ended:
        self.orders.append(order)
        results, end, at = next(self._ends)
        return Ended(end, at, tuple(results), "exit status 1; the reason", 1.0)


def test_what_ran_is_reported_by_step() -> None:
    stale: dict[str, Any] = {"scenario": 0, "stale": [0, 1, 2]}
    reports = [SOFTWARE, stale, *(figures(0, step) for step in range(4))]
    (one,) = measure([SHRUNK], Children((reports, End.DONE, "")))
    assert [(step.step, step.outcome, step.stale) for step in one.steps] == [
        (0, RAN, True), (1, RAN, True), (2, RAN, True), (3, RAN, False),
    ]  # fmt: skip
    assert (one.device, one.software, one.unexpected) == ("a GPU", {"sglang": "0.5.23"}, ())


def test_after_a_hang_the_rest_is_measured_in_a_new_child() -> None:
    stale = {"scenario": 0, "stale": [0, 1, 2]}
    children = Children(
        ([SOFTWARE, stale], End.HUNG, stage(0, 0, own=True)),
        ([SOFTWARE, stale, figures(0, 1, own_us=900.0)], End.HUNG, stage(0, 2, own=True)),
        ([SOFTWARE, stale, figures(0, 3)], End.HUNG, stage(1, 0, own=False)),
        ([SOFTWARE, {"scenario": 1, "stale": []}, *(figures(1, s) for s in (1, 2, 3))], End.DONE, ""),
    )
    released, control = measure([SHRUNK, CONTROL], children)
    assert [step.outcome for step in released.steps] == [HUNG, RAN, HUNG, RAN]
    assert [[(number, steps) for number, _, steps in order] for order in children.orders] == [
        [(0, (0, 1, 2, 3)), (1, (0, 1, 2, 3))],
        [(0, (1, 2, 3)), (1, (0, 1, 2, 3))],
        [(0, (3,)), (1, (0, 1, 2, 3))],
        [(1, (1, 2, 3))],
    ]
    assert released.unexpected == ()
    assert [step.outcome for step in control.unexpected] == [CRASHED], "a fresh schedule must not hang"


def test_a_crash_in_a_step_is_that_steps_result() -> None:
    rest = [{"scenario": 0, "stale": []}, *(figures(0, step) for step in (1, 2, 3))]
    children = Children(([SOFTWARE], End.CRASHED, stage(0, 0, own=True)), (rest, End.DONE, ""))
    (one,) = measure([SHRUNK], children)
    assert one.steps[0].outcome == CRASHED
    assert "the reason" in one.steps[0].detail
    assert one.unexpected == one.steps[:1]


@pytest.mark.parametrize(
    ("reports", "end", "at"),
    [
        ([], End.CRASHED, "import and JIT builds"),
        ([], End.HUNG, "scenario 0 capture"),
        ([SOFTWARE], End.DONE, ""),
        ([figures(0, 0)], End.GARBAGE, stage(0, 0, own=True)),
        ([{"what": 1}], End.DONE, ""),
    ],
)
def test_a_child_that_cannot_measure_ends_the_program(
    reports: list[dict[str, Any]], end: End, at: str
) -> None:
    with pytest.raises(HarnessError):
        measure([SHRUNK], Children((reports, end, at)))


@pytest.mark.parametrize(
    ("scenario", "stale", "steps", "unexpected"),
    [
        (SHRUNK, [0], {0: {"own_us": 100.0}}, []),
        (SHRUNK, [0], {0: {"differing": 1}}, [0]),
        (CONTROL, [], {0: {"differing": 1}}, [0]),
        (PLAN, [0, 1], {0: {"differing": 1}, 2: {"differing": 1}}, [2]),
        (PLAN, [0, 1, 2, 3], {3: {"differing": 1}}, [3]),
    ],
)
def test_wrong_outputs_are_expected_of_a_stale_plan_only(
    scenario: Scenario, stale: list[int], steps: dict[int, dict[str, Any]], unexpected: list[int]
) -> None:
    reports = [
        {"scenario": 0, "stale": stale},
        *(figures(0, step, **steps.get(step, {})) for step in range(4)),
    ]
    (one,) = measure([scenario], Children((reports, End.DONE, "")))
    assert [step.step for step in one.unexpected] == unexpected


@pytest.mark.parametrize(("scenario", "unexpected"), [(SHRUNK, [3]), (CONTROL, [0, 1, 2, 3])])
def test_stale_steps_are_expected_only_where_they_are_known(
    scenario: Scenario, unexpected: list[int]
) -> None:
    reports = [{"scenario": 0, "stale": [0, 1, 2, 3]}, *(figures(0, step) for step in range(4))]
    (one,) = measure([scenario], Children((reports, End.DONE, "")))
    assert [step.step for step in one.unexpected] == unexpected


def test_table_and_document_show_every_step() -> None:
    stale = {"scenario": 0, "stale": [0]}
    fresh = {"scenario": 0, "step": 0, "fresh": 7.5}
    children = Children(
        ([SOFTWARE, stale, fresh], End.HUNG, stage(0, 0, own=True)),
        ([SOFTWARE, stale, *(figures(0, s) for s in (1, 2, 3))], End.DONE, ""),
    )
    ended: list[Ended] = []
    measured = measure([SHRUNK], children, lambda child, so_far: ended.append(child))
    lines = table(measured).splitlines()
    assert lines[2].endswith("| 2 | 800 to 900 | 64 to 65 | 0 | stale | - | 7.5 | **hung** | - |")
    assert lines[3].endswith("| 1 | fresh | 0 of 129 | 8.0 | 8.1 | 1.01 |")
    assert len({line.count("|") for line in lines}) == 1
    assert len(lines) == 2 + 4
    data = json.loads(json.dumps(document(measured, ended, 10.0, "2026-11-29")))
    assert (data["device"], data["seconds"]) == ("a GPU", 2.0)
    assert [child["end"] for child in data["children"]] == [End.HUNG, End.DONE]
    assert [step["outcome"] for step in data["scenarios"][0]["steps"]] == [HUNG, RAN, RAN, RAN]


FAKE = """
import json, sys, time
from harness.child import Reporter
from harness.sut.sglang.scenarios import stage
(order, limit_s), say = json.loads(sys.argv[1]), Reporter(int(sys.argv[2]))
for number, scenario, steps in order:
    say.result({"scenario": number, "stale": [1]})
    for step in steps:
        say.begin(stage(number, step, own=True), limit_s)
        if step == 1:
            time.sleep(60)
        figures = {"differing": 0, "compared": 1, "fresh_us": 1, "own_us": 1}
        say.result({"scenario": number, "step": step} | figures)
say.end()
"""


def test_a_real_child_that_hangs_in_a_step_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    def fake(command: list[str], *, start_s: float) -> Ended:
        assert command[1:3] == ["-m", "harness.sut.sglang.measured"]
        return run_child([sys.executable, "-c", FAKE, *command[3:]], start_s=start_s)

    monkeypatch.setattr(effect, "run_child", fake)
    (one,) = measure([SHRUNK], effect.child(0.5))
    assert [(step.outcome, step.stale) for step in one.steps] == [
        (RAN, False), (HUNG, True), (RAN, False), (RAN, False),
    ]  # fmt: skip


def test_without_a_gpu_it_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: FilePath
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert effect.main(["--json", str(tmp_path / "effect.json")]) == 2
    assert "needs a CUDA device" in capsys.readouterr().err


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda s: f"{s.kernel}-{s.path}-{max(s.captured)}")
def test_scenarios_fit_the_model_they_run_on(scenario: Scenario) -> None:
    case = case_of(scenario)
    assert case.backends == len(scenario.steps)
    for lengths in (scenario.captured, scenario.replayed):
        inputs = inputs_of(case, lengths)
        assert inputs.lengths.tolist() == list(lengths)
        live = [
            inputs.table[request, :length]
            for request, length in zip(inputs.requests, inputs.lengths, strict=True)
        ]
        tokens = np.concatenate(live)
        assert len(np.unique(tokens)) == len(tokens), "no two live tokens share a slot"
