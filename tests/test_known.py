"""Known findings: marked when they show as declared, missed when they do not, nothing beyond them excused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path as FilePath

import pytest

from harness.errors import CaseError
from harness.findings import CaseResult, Finding, Verdict
from harness.judge import judge
from harness.known import KnownFinding, load_known
from harness.types import Path
from tests.faulty import Bends, BentSut, bent_subject
from tests.helpers import make_case, make_program, tiny_model

MODEL = tiny_model()
BATCHES = (((65, 257, 900, 13), (3, 1, 4, 2)), ((600, 700, 10), (5, 6, 7)), ((9, 7, 64, 2), (8, 6, 7, 1)))
PROGRAM = make_program(MODEL, 4, BATCHES)
KNOWN = load_known(FilePath(__file__).parent.parent / "cases" / "known_findings.toml")
FIELDS = {"paged_mqa_schedule_metadata", "topk_v2_plan"}


def result(
    path: Path, steps: int, bends: Bends | None = None, known: tuple[KnownFinding, ...] = KNOWN
) -> CaseResult:
    case = make_case(MODEL, path=path, steps=steps)
    return judge(bent_subject(case, PROGRAM, bends or Bends()), known)


@pytest.mark.parametrize("steps", [4, 5, 6])
def test_multi_destination_copy_differs_in_exactly_the_declared_fields_and_steps(steps: int) -> None:
    found = result(Path.MULTI_DESTINATION_COPY, steps)
    assert {finding.field for finding in found.findings} == FIELDS
    assert {finding.steps for finding in found.findings} == {(0, 1, 2)}
    assert all(finding.known for finding in found.findings)
    assert found.verdict is Verdict.KNOWN


@pytest.mark.parametrize("steps", [2, 3])
def test_with_fewer_steps_there_is_nothing_to_declare(steps: int) -> None:
    assert result(Path.MULTI_DESTINATION_COPY, steps).verdict is Verdict.PASSED


def mended(sut: BentSut, bucket: int) -> None:
    """Refresh what the multi-destination copy forgets, as a repaired release would."""
    sut.plain_refresh(bucket)
    right = sut.metadata(3, bucket)
    for step in range(3):
        sut.metadata(step, bucket).paged_mqa_schedule_metadata.copy_(right.paged_mqa_schedule_metadata)
        sut.metadata(step, bucket).topk_v2_plan.copy_(right.topk_v2_plan)


def test_a_declared_finding_that_does_not_show_is_a_failure() -> None:
    found = result(Path.MULTI_DESTINATION_COPY, 5, Bends(refresh=mended))
    absent = [finding for finding in found.findings if finding.kind == "absent"]
    assert {finding.field for finding in absent} == FIELDS
    assert found.verdict is Verdict.FAILED


def one_more_step(sut: BentSut, bucket: int) -> None:
    schedule = sut.metadata(3, bucket).paged_mqa_schedule_metadata
    before = schedule.clone()
    sut.plain_refresh(bucket)
    schedule.copy_(before)


def test_another_step_with_the_same_fault_is_not_excused() -> None:
    found = result(Path.MULTI_DESTINATION_COPY, 5, Bends(refresh=one_more_step))
    unexpected = [f for f in found.findings if not f.known and f.check == "freshness"]
    assert [finding.steps for finding in unexpected] == [(0, 1, 2, 3)]
    assert found.verdict is Verdict.FAILED


def test_the_same_finding_on_another_path_is_not_excused() -> None:
    def stale(sut: BentSut, bucket: int) -> None:
        schedule = sut.metadata(0, bucket).paged_mqa_schedule_metadata
        before = schedule.clone()
        sut.plain_refresh(bucket)
        schedule.copy_(before)

    assert result(Path.SHARED, 5, Bends(refresh=stale)).verdict is Verdict.FAILED


@pytest.mark.parametrize(
    ("versions", "pooled", "covers"),
    [((), None, True), (("1.0",), None, True), (("2.0",), None, False), ((), True, True), ((), False, False)],
)
def test_an_entry_speaks_about_its_releases_and_models(
    versions: tuple[str, ...], pooled: bool | None, covers: bool
) -> None:
    subject = bent_subject(make_case(MODEL, path=Path.MULTI_DESTINATION_COPY, steps=5), PROGRAM, Bends())
    case = replace(subject.observation.case, sut="package")
    observation = replace(subject.observation, case=case, facts={"package": "1.0"})
    entry = KnownFinding(
        id="x", reason="y", sut="package", paths=(case.path,), fields=("page_table_1",), steps=(0,),
        checks=("evidence",), versions=versions, pooled=pooled,
    )  # fmt: skip
    assert MODEL.index_kpool > 1
    assert entry.covers(replace(subject, observation=observation)) is covers


@pytest.mark.parametrize(
    ("together", "steps", "explained"),
    [
        (True, (0,), True),
        (True, (0, 1), True),
        (True, (1, 2), False),
        (False, (0,), False),
        (False, (0, 1), True),
    ],
)
def test_several_findings_may_show_the_declared_steps_together_but_no_other(
    together: bool, steps: tuple[int, ...], explained: bool
) -> None:
    entry = KnownFinding(
        id="x", reason="y", sut="package", paths=(Path.FUSED_MULTI_STEP,), fields=("slots",), steps=(0, 1, 2),
        checks=("evidence",), together=together,
    )  # fmt: skip
    finding = Finding(
        check="evidence", kind="value", case="c", field="slots", bucket=2, steps=steps, rounds=("b2.00",),
        message="m", hint="h",
    )  # fmt: skip
    assert entry.explains(finding, backends=2) is explained


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("[[finding]]\nid = 'x'\n", "reason"),
        ("[[finding]\n", "TOML"),
        (
            "[[finding]]\nid='x'\nreason='y'\nsut='z'\npaths=['nowhere']\nfields=[]\nsteps=[]\nchecks=[]\n",
            "nowhere",
        ),
    ],
)
def test_a_bad_file_is_one_line(tmp_path: FilePath, text: str, named: str) -> None:
    file = tmp_path / "known.toml"
    file.write_text(text)
    with pytest.raises(CaseError) as caught:
        load_known(file)
    assert str(file) in str(caught.value)
    assert named.lower() in str(caught.value).lower() or "expected" in str(caught.value).lower()
    assert "\n" not in str(caught.value)


def test_no_file_declares_nothing(tmp_path: FilePath) -> None:
    assert load_known(tmp_path / "none.toml") == ()
