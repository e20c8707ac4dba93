import io
from collections.abc import Iterator

import pytest
from rich.console import Console

from harness.findings import CaseResult
from harness.report.progress import Interrupted, follow
from tests.report.sample import finding, result


class Clock:
    """Seconds that pass by 4 with every look."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 4.0
        return self.now


def test_results_come_back_in_the_order_they_finished() -> None:
    given = [result("b"), result("a")]
    assert follow(iter(given), 2, Console(file=io.StringIO())) == given


def test_without_a_terminal_a_plain_line_comes_every_ten_seconds() -> None:
    out = io.StringIO()
    results = [result("a", finding("a")), *(result(name) for name in "bcdefg")]
    follow(results, 7, Console(file=out, width=80), Clock())
    assert out.getvalue().splitlines() == [
        "3 of 7 cases, 1 unexpected finding, 12 s, about 16 s left",
        "6 of 7 cases, 1 unexpected finding, 24 s, about 4 s left",
    ]


def test_known_findings_are_not_called_unexpected() -> None:
    out = io.StringIO()
    follow([result(n, finding(n, known="K1")) for n in "abcd"], 4, Console(file=out, width=80), Clock())
    assert out.getvalue() == "3 of 4 cases, 0 unexpected findings, 12 s, about 4 s left\n"


def test_on_a_terminal_a_bar_is_drawn_and_taken_away() -> None:
    out = io.StringIO()
    follow([result("a")], 1, Console(file=out, force_terminal=True, width=80))
    assert "1,040 elements" in out.getvalue()
    assert "\n1/1" not in out.getvalue()


@pytest.mark.parametrize("terminal", [True, False])
def test_interrupting_says_how_far_it_came_and_ends_the_workers(terminal: bool) -> None:
    closed = []

    def until_interrupted() -> Iterator[CaseResult]:
        try:
            yield result("a")
            raise KeyboardInterrupt
        finally:
            closed.append(True)

    with pytest.raises(Interrupted, match="interrupted: 1 of 9 cases, 0 unexpected findings"):
        follow(until_interrupted(), 9, Console(file=io.StringIO(), force_terminal=terminal))
    assert closed == [True]


def test_a_run_of_unknown_size_counts_without_a_total() -> None:
    out = io.StringIO()
    follow([result(name) for name in "abcd"], 0, Console(file=out, width=80), Clock())
    assert out.getvalue() == "3 cases, 0 unexpected findings, 12 s\n"


def test_where_the_number_of_cases_is_not_known_nothing_is_said_of_the_time_left() -> None:
    out = io.StringIO()
    follow([result(name) for name in "abcd"], 0, Console(file=out, width=80), Clock())
    assert out.getvalue() == "3 cases, 0 unexpected findings, 12 s\n"
