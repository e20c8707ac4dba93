import io
import shlex
from dataclasses import replace

import pytest
from rich.console import Console

from harness.findings import CaseResult, Difference
from harness.picture import Neighbour
from harness.report import again, terminal
from harness.report.tally import Coverage, tally
from tests.report.sample import AROUND, finding, released, result

COVERAGE = Coverage(5, {"sharing needs S >= 3": 7, "plans need P > 1": 2}, {"no GPU": 1})


def rendered(*results: CaseResult, width: int = 132, force_terminal: bool | None = None) -> str:
    out = io.StringIO()
    screen = Console(
        file=out, width=width, highlight=False, emoji=False, markup=False, force_terminal=force_terminal
    )
    terminal.render(screen, results, COVERAGE, 2.0)
    return out.getvalue()


def test_the_table_has_one_line_per_path_with_all_figures() -> None:
    text = rendered(result("a"), result("b", path="sibling_copy", steps="6"))
    (shared,) = [line for line in text.splitlines() if " shared " in line]
    assert shared.split() == [
        "tiny",
        "on",
        "shared",
        "5",
        "1",
        "8",
        "1.25",
        "0",
        "1",
        "MiB",
        "2",
        "1,040",
        "passed",
    ]
    (sibling,) = [line for line in text.splitlines() if " sibling_copy " in line]
    assert sibling.split()[3] == "6"


def test_a_narrow_terminal_gets_two_lines_a_row_with_the_same_figures() -> None:
    text = rendered(result("a"), width=80)
    assert "embedded, tiny, fusion on, shared, steps 5: passed\n" in text
    assert (
        "cases 1, replays 8, refreshes per replay 1.25, fused copies 0, bytes owned 1 MiB, checks 2,"
        in " ".join(text.split())
    )


def test_the_command_that_runs_a_case_again_names_system_and_engine() -> None:
    axes = {"sut": "sglang", "engine": "cuda_graph", "path": "shared"}
    text = rendered(replace(result("a", finding("a")), axes=axes))
    assert "again    replay-harness verify --sut sglang --engine cuda_graph --case a\n" in text


def test_the_command_that_runs_a_case_again_has_the_flags_of_the_run() -> None:
    out = io.StringIO()
    screen = Console(file=out, width=132, highlight=False, emoji=False, markup=False)
    terminal.render(
        screen, [result("a", finding("a"))], COVERAGE, 2.0, again.Again(" --sut-option plan=cached")
    )
    assert "again    replay-harness verify --sut-option plan=cached --case a\n" in out.getvalue()


def test_what_verify_does_not_show_again_has_a_command_of_its_own() -> None:
    out = io.StringIO()
    screen = Console(file=out, width=132, highlight=False, emoji=False, markup=False)
    whole = again.Again(whole="replay-harness plant A1")
    terminal.render(screen, [result("a", finding("a"))], COVERAGE, 2.0, whole)
    assert "again    replay-harness plant A1" in [line.strip() for line in out.getvalue().splitlines()]


def test_a_command_that_does_not_fit_can_be_pasted() -> None:
    line = "replay-harness verify --sut toy --sut-option plan=cached --case a/b/c"
    assert again.continued(line, 80) == line
    broken = again.continued(line, 40)
    assert max(map(len, broken.splitlines())) <= 40
    assert broken.count("\\\n") == len(broken.splitlines()) - 1 > 0
    assert shlex.split(broken.replace("\\\n", "")) == shlex.split(line)  # as a shell reads it


def test_the_system_is_a_column_only_where_there_are_several() -> None:
    assert "system" not in rendered(result("a"))
    assert "system" in rendered(result("a"), result("a", sut="sglang"))


def test_releases_are_a_column_and_part_of_the_command_that_runs_a_case_again() -> None:
    bad = released(result("a", finding("a"), sut="sglang"), "0.5.20")
    unrun = released(result("a", sut="sglang", skipped="laid out differently"), "0.5.22")
    for width in (132, 90):
        text = rendered(bad, unrun, released(result("a", sut="sglang"), "0.5.23"), width=width)
        assert [line.split()[-1] for line in text.splitlines() if "tiny" in line][:3] == [
            "failed", "skipped", "passed",
        ]  # fmt: skip
    assert "replay-harness verify --sut sglang --sut-option version=0.5.20 --case a" in text
    assert "release" in rendered(bad).splitlines()[1]
    assert "release" not in rendered(result("a")).splitlines()[1]


def test_what_was_not_run_is_counted_with_reasons() -> None:
    lines = [" ".join(line.split()) for line in rendered(result("a")).splitlines()]
    for line in (
        "planned 5 cases",
        "run 1 case",
        "not applicable 9 combinations of the cross product",
        "7 sharing needs S >= 3",
        "2 plans need P > 1",
        "skipped 1 case",
        "1 no GPU",
        "checks 1 not applicable (no subject in their case)",
    ):
        assert line in lines


def test_a_finding_says_what_where_and_how_to_run_it_again() -> None:
    text = rendered(*(result(name, finding(name)) for name in "abcdef"))
    assert "6 unexpected findings of 1 cause" in text
    assert "1. freshness: stale, paged_mqa_schedule_metadata, steps 0, 1, 2, path shared (6 cases)" in text
    for line in (
        "step 0 keeps the schedule of an earlier round [see row 7].",
        "where    round b4.03, bucket 4, row 7, column 1",
        "expected 3",
        "got      2   (the value of round b4.02)",
        "extent   12 elements differ in the first round",
        "since    round b4.03, again in b4.05",
        "usually  derive the schedule again after the copy",
        "also in  b, c, d and 2 more",
        "again    replay-harness verify --case a",
    ):
        assert line in text


def test_known_findings_take_one_line_each_and_do_not_fail() -> None:
    results = [
        result("a", finding("a", known="K1")),
        result("b", finding("b", known="K1", field="topk_v2_plan")),
    ]
    text = rendered(*results)
    fields = "paged_mqa_schedule_metadata, topk_v2_plan"
    assert f"  K1: {fields} at steps 0, 1, 2; 2 findings in 2 cases" in text
    assert "unexpected finding" not in text
    assert text.splitlines()[-1].startswith("OK: nothing unexpected, 2 known findings; 2 cases")


def test_the_last_line_is_the_verdict_with_what_was_looked_at() -> None:
    assert str(terminal.verdict_line(tally([result("a")], 2.0))) == (
        "OK: nothing unexpected; 1 case, 8 replays, 2 checks, 1,040 elements compared in 2.0 s"
    )
    assert rendered(result("a", finding("a"))).splitlines()[-1].startswith("FAILED: 1 unexpected finding;")


@pytest.mark.parametrize("width", [40, 80, 132])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    text = rendered(
        result("tiny/multi_destination_copy/" + "x" * 60, finding("a"), path="multi_destination_copy"),
        width=width,
    )
    assert max(map(len, text.splitlines())) <= width


def test_colour_on_a_terminal_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    assert "\x1b[" in rendered(result("a"), force_terminal=True)
    assert "\x1b[" not in rendered(result("a"))


def test_no_color_wins_over_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    text = rendered(result("a"), force_terminal=True)
    assert not any(f"\x1b[{code}m" in text for code in (31, 32, 33, "1;31"))


def test_output_to_a_file_has_room_for_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    assert terminal.make_console().width == terminal.WIDTH_OF_LOGS
    monkeypatch.setenv("COLUMNS", "90")
    assert terminal.make_console().width == 90


def test_a_finding_as_plain_lines_for_a_pytest_failure() -> None:
    lines = terminal.describe(finding("a")).splitlines()
    assert lines[0] == "step 0 keeps the schedule of an earlier round [see row 7]."
    assert "  expected  3" in lines


def test_a_difference_is_shown_among_its_neighbours() -> None:
    lines = rendered(replace(result("a", finding("a")), around=(AROUND,))).splitlines()
    at = next(number for number, line in enumerate(lines) if line.strip().startswith("around"))
    assert [line.split() for line in lines[at : at + 4]] == [
        ["around", "column", "0", "1"],
        ["row", "6", "60", "61"],
        ["row", "7", "1", "[2]"],
        ["expected", "3"],
    ]
    assert lines[at + 3].index("3") == lines[at + 2].index("[2]") + 2  # right below it


def test_neighbours_are_those_of_the_release_that_a_finding_is_of() -> None:
    results = [
        replace(released(result("a", finding("a")), version), around=around)
        for version, around in (("1", ()), ("2", (AROUND,)))
    ]
    text = rendered(*results)
    first, second = text.split("2. freshness")
    assert "around" not in first
    assert "around" in second


@pytest.mark.parametrize("width", [40, 80, 132])
def test_wide_neighbours_are_cut_to_the_terminal(width: int) -> None:
    wide = tuple(Neighbour(7, column, "0.123456789", "0.123456788") for column in range(7))
    first = Difference(7, 3, "0.123456789", "0.123456788")
    text = rendered(
        replace(result("a", finding("a", first=first)), around=(replace(AROUND, elements=wide),)), width=width
    )
    assert max(map(len, text.splitlines())) <= width
    assert text.count("0.12") >= 2


def test_one_cause_in_many_fields_is_one_entry() -> None:
    fields = [f"field_{number}" for number in range(8)]
    text = rendered(result("a", *(finding("a", field=name) for name in fields), finding("a", steps=(3,))))
    assert "9 unexpected findings of 2 causes" in text
    assert "freshness: stale, field_0 and 7 other fields, steps 0, 1, 2, path shared (1 case)" in text
    assert "fields   also field_1, field_2, field_3, field_4, field_5 and 2 more" in text
    assert "field_6" not in text
