"""The kill matrix and the reverse gate."""

from io import StringIO

import pytest
from rich.console import Console

from harness.checks.registry import CHECKS
from harness.faults import report
from harness.faults.kills import Kills, superfluous
from harness.faults.trial import Fate, Tried


def tried(identity: str, *spoke: str, fate: Fate = Fate.KILLED, expected: str = "freshness") -> Tried:
    checks = dict.fromkeys(spoke, 3)
    first = spoke[0] if spoke else ""
    messages = tuple(f"{check}: [what] it said" for check in spoke)
    return Tried(identity, identity[0], "case", fate, 1, 1, checks, first, expected, messages)


def everything_needed() -> list[Tried]:
    return [tried(f"A{index}", check.name) for index, check in enumerate(CHECKS)]


KILLS = Kills.of(
    [
        tried("Y1", fate=Fate.CLEAN, expected=""),
        tried("A2", "freshness", "refresh"),
        tried("A1", "freshness"),
        tried("B1", fate=Fate.SURVIVED),
        tried("B2", "output", fate=Fate.ELSEWHERE),
    ],
    ["A1", "A2", "B1", "B2", "Y1"],
)


def printed(kills: Kills) -> str:
    text = StringIO()
    console = Console(file=text, width=160, markup=False)
    report.show(kills, console, {one.id: f"what {one.id} is" for one in kills.tried})
    return text.getvalue()


def test_trials_come_in_the_catalogues_order() -> None:
    assert [one.id for one in KILLS.tried] == ["A1", "A2", "B1", "B2", "Y1"]
    assert [one.id for one in KILLS.harmless] == ["Y1"]
    assert [one.id for one in KILLS.bad] == ["B1", "B2"]


@pytest.mark.parametrize("fate", list(Fate))
def test_only_killed_and_clean_are_good(fate: Fate) -> None:
    expected = "" if fate in (Fate.CLEAN, Fate.FLAGGED) else "freshness"
    kills = Kills.of([tried("A1", "freshness"), tried("A2", fate=fate, expected=expected)], ["A1", "A2"])
    assert bool(kills.bad) is (fate not in (Fate.KILLED, Fate.CLEAN))


def test_a_check_is_needed_where_it_alone_speaks_as_it_has_to() -> None:
    only = KILLS.only()
    assert only["freshness"] == ("A1",)
    assert only["refresh"] == ()
    assert only["output"] == ()
    assert list(only) == [check.name for check in CHECKS]


def test_a_check_that_no_fault_needs_is_superfluous_unless_it_has_a_reason() -> None:
    problems = superfluous(KILLS, {})
    assert len(problems) == len(CHECKS) - 1
    assert any(problem.startswith("golden: ") for problem in problems)
    assert not superfluous(KILLS, {check.name: "why" for check in CHECKS if check.name != "freshness"})
    assert superfluous(Kills.of(everything_needed(), [f"A{i}" for i in range(len(CHECKS))]), {}) == []


def test_a_reason_that_is_none_any_more_is_a_problem() -> None:
    reasons = {check.name: "why" for check in CHECKS}
    assert [problem.partition(":")[0] for problem in superfluous(KILLS, reasons)] == ["freshness"]


def test_the_report_shows_who_spoke_and_what_went_wrong() -> None:
    text = printed(KILLS)
    assert text.count(report.FIRST) - 1 == 3  # one is in the title
    assert text.count(report.SPOKE) - 1 == 1
    assert "survived B1 on case: what B1 is" in text
    assert "elsewhere B2 on case: what B2 is" in text
    assert "freshness has to speak" in text
    assert "output: [what] it said" in text
    assert text.rstrip().endswith(
        "faults: 2 of 4 killed; harmless: 0 of 1 runs flagged; 1 survived; 1 elsewhere"
    )


def test_the_document_says_the_same() -> None:
    texts = {one.id: "text" for one in KILLS.tried}
    document = report.document(KILLS, texts, "embedded", "tape")
    assert document["schema"] == report.SCHEMA
    assert [one["fate"] for one in document["trials"]] == [
        "killed",
        "killed",
        "survived",
        "elsewhere",
        "clean",
    ]
    assert document["trials"][1]["spoke"] == {"freshness": 3, "refresh": 3}
    assert document["needed"]["freshness"] == ["A1"]
