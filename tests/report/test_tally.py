import pytest

from harness.findings import Verdict
from harness.report.tally import causes, ordered, rows, tally
from tests.report.sample import finding, released, result


def test_totals_count_checks_that_ran_and_cases_that_ran() -> None:
    results = [
        result("a"),
        result("b", finding("b"), finding("b", known="K1")),
        result("c", skipped="no GPU"),
    ]
    total = tally(results, seconds=3.5)
    assert (total.cases, total.replays, total.checks, total.elements) == (2, 16, 4, 2080)
    assert (total.findings, total.known_findings, total.unexpected, total.seconds) == (2, 1, 1, 3.5)


def test_order_does_not_depend_on_which_case_finished_first() -> None:
    one, two, other = result("a"), result("b"), result("a", sut="sglang")
    assert ordered([other, two, one]) == ordered([one, other, two]) == (one, two, other)


def test_a_row_joins_the_cases_of_a_path_and_sorts_steps_as_numbers() -> None:
    results = [result("a", steps="10"), result("b", steps="3"), result("c", path="sibling_copy")]
    shared, sibling = rows(results)
    assert (shared.path, shared.steps, shared.cases, shared.replays) == ("shared", ("3", "10"), 2, 16)
    assert (shared.checks, shared.not_applicable) == (4, 2)
    assert (sibling.path, sibling.fused_copies) == ("sibling_copy", (4.0, 4.0))


def test_skipped_cases_are_not_counted_and_a_row_of_them_alone_says_so() -> None:
    (both,) = rows([result("a", skipped="no GPU"), result("b")])
    assert (both.cases, both.replays, both.verdict) == (1, 8, Verdict.PASSED)
    (none,) = rows([result("a", skipped="no GPU")])
    assert (none.cases, none.replays, none.checks, none.verdict) == (0, 0, 0, Verdict.NOT_APPLICABLE)


def test_releases_are_rows_and_causes_of_their_own() -> None:
    results = [released(result("a", finding("a")), version) for version in ("0.5.23", "0.5.20")]
    assert [row.version for row in rows(results)] == ["0.5.20", "0.5.23"]
    assert [cause.version for cause in causes(results, known=False)] == ["0.5.20", "0.5.23"]
    assert [one.axes["version"] for one in ordered(results)] == ["0.5.20", "0.5.23"]


@pytest.mark.parametrize(
    ("known", "verdict"), [((), Verdict.PASSED), (("K1",), Verdict.KNOWN), (("K1", ""), Verdict.FAILED)]
)
def test_a_row_has_the_worst_verdict_of_its_cases(known: tuple[str, ...], verdict: Verdict) -> None:
    results = [result("a"), *(result(f"b{i}", finding(f"b{i}", known=k)) for i, k in enumerate(known))]
    assert rows(results)[0].verdict is verdict


def test_findings_of_one_cause_are_one_group_whatever_their_rounds_and_cases() -> None:
    results = [
        result("a", finding("a")),
        result("b", finding("b", rounds=("b1.01",), bucket=1), finding("b", steps=(3,))),
    ]
    both, alone = causes(results, known=False)
    assert (both.cases, both.steps, len(both.findings)) == (("a", "b"), (0, 1, 2), 2)
    assert (alone.cases, alone.steps) == (("b",), (3,))


def test_known_and_unexpected_findings_never_share_a_group() -> None:
    results = [result("a", finding("a", known="K1"), finding("a"))]
    assert [c.findings[0].known for c in causes(results, known=True)] == ["K1"]
    assert [c.findings[0].known for c in causes(results, known=False)] == [""]


def test_paths_are_different_causes() -> None:
    results = [result("a", finding("a")), result("b", finding("b"), path="released")]
    assert {cause.path for cause in causes(results, known=False)} == {"shared", "released"}


def test_missing_evidence_comes_after_its_causes() -> None:
    lacking = [finding(case, check="evidence", kind="not_replayed", field="") for case in "abc"]
    results = [result("a", finding("a"), lacking[0]), *(result(one.case, one) for one in lacking[1:])]
    assert [cause.check for cause in causes(results, known=False)] == ["freshness", "evidence"]
