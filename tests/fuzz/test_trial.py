"""One sequence judged: which checks speak, what is left out, and what the reference is good for."""

from __future__ import annotations

import inspect
import re

import pytest
import torch

from harness.checks import evidence
from harness.checks.registry import CHECKS
from harness.errors import NotDrivable
from harness.findings import Verdict
from harness.fuzz.sequence import Capture, Churn, Eager, Pause, Replay, Setting
from harness.fuzz.trial import OF_A_PROGRAM, OF_ONE_ROUND
from harness.sut.protocol import StepOutputs
from harness.types import Kernel, Path
from tests.faulty import Bends, BentSut
from tests.fuzz.samples import EXTEND, SHARED, VERIFY, bench, bent, captured, replayed, sequence_of

BUSY = (
    captured(2),
    replayed(300, 70),
    Eager(rows=9000),
    captured(4),
    replayed(301, delayed=True),
    replayed(5, 900, 64, bucket=4),
    Churn(),
    Pause(),
    Replay(bucket=4),
    captured(2),
    replayed(302, 72),
)
PLAIN = (captured(2), replayed(300), replayed(301))
SETTINGS = (
    SHARED,
    Setting(model="unit-p1", path=Path.SHARED_IN_GRAPH, steps=4, kernel=Kernel.FLASHMLA_KV),
    Setting(model="unit-p4", path=Path.SIBLING_COPY, steps=3, fusion=True, kernel=Kernel.TRTLLM),
)


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda one: str(one.path))
def test_everything_in_one_life_has_no_finding(setting: Setting) -> None:
    trial = bench().run(sequence_of(*BUSY, setting=setting, ordinary=True))
    assert not [finding.message for finding in trial.unexpected]
    verdicts = {check.check: check.verdict for check in trial.result.checks}
    assert verdicts.keys() == {check.name for check in CHECKS} - {"golden"}
    assert verdicts["ordering"] is Verdict.PASSED
    assert trial.result.replays == 5


@pytest.mark.parametrize("setting", [VERIFY, EXTEND], ids=lambda one: str(one.mode))
def test_single_backends_too(setting: Setting) -> None:
    operations = (Capture(bucket=2), replayed(300, 70), Replay(bucket=2), Pause(), replayed(301, 900))
    assert not bench().run(sequence_of(*operations, setting=setting, ordinary=True)).unexpected


def test_a_sequence_without_a_replay_is_judged_by_its_captures() -> None:
    def writes_lengths(sut: BentSut, bucket: int) -> None:
        sut.metadata(1, bucket).cache_seqlens_int32.add_(1)

    sequence = sequence_of(captured(2))
    assert not bench().run(sequence).unexpected
    found = bench(bent(Bends(in_forward=writes_lengths))).run(sequence).unexpected
    assert {finding.check for finding in found} == {"readonly"}


def test_every_kind_of_evidence_is_judged_or_left_out_by_name() -> None:
    source = inspect.getsource(evidence)
    kinds = set(re.findall(r'found\.add\(\s*"(\w+)"', source))
    assert kinds == set(OF_ONE_ROUND) | set(OF_A_PROGRAM)
    assert not set(OF_ONE_ROUND) & set(OF_A_PROGRAM)


def test_evidence_of_single_rounds_is_judged() -> None:
    def without_step_one(outputs: tuple[StepOutputs, ...]) -> tuple[StepOutputs, ...]:
        return (outputs[0], StepOutputs({}, outputs[1].computed))

    found = bench(bent(Bends(outputs=without_step_one))).run(sequence_of(*PLAIN)).unexpected
    assert {(finding.check, finding.kind) for finding in found} == {("evidence", "step_absent")}


def test_a_wrong_output_shows_against_the_ordinary_path_only() -> None:
    def nudged(outputs: tuple[StepOutputs, ...]) -> tuple[StepOutputs, ...]:
        computed = {name: torch.as_tensor(value) + 1 for name, value in outputs[1].computed.items()}
        return (outputs[0], StepOutputs(outputs[1].read, computed))

    wrong = bench(bent(Bends(outputs=nudged)))
    alone = wrong.run(sequence_of(*PLAIN)).unexpected
    assert "computed_differs" not in {finding.kind for finding in alone}
    compared = wrong.run(sequence_of(*PLAIN, ordinary=True)).unexpected
    assert "computed_differs" in {finding.kind for finding in compared}


def test_a_leaf_that_a_pause_zeroes_and_no_refresh_writes_shows() -> None:
    class Forgetful(BentSut):
        def pause_and_resume(self) -> None:
            super().pause_and_resume()
            self.metadata(0, 2).cu_seqlens_q.zero_()

    sequence = sequence_of(captured(2), Pause(), replayed(300))
    forgetful = bench(lambda case, engine, span: Forgetful(Bends(), case, engine, span))
    fields = {finding.field for finding in forgetful.run(sequence).unexpected}
    assert fields == {"cu_seqlens_q"}
    assert not bench().run(sequence).unexpected


def test_pauses_are_for_systems_that_offer_them() -> None:
    class Unpausable(BentSut):
        pause_and_resume = None  # type: ignore[assignment]

    assert bench().pauses(SHARED)
    plain = bench(lambda case, engine, span: Unpausable(Bends(), case, engine, span))
    assert not plain.pauses(SHARED)
    with pytest.raises(NotDrivable, match="offers no pause and resume"):
        plain.run(sequence_of(captured(2), Pause(), replayed(300)))
