"""docs/faults.md says what the catalogue holds."""

from pathlib import Path

import pytest

from harness.faults.page import BEGIN, END, put_in, render

PAGE = Path(__file__).parent.parent.parent / "docs" / "faults.md"


def test_the_page_is_up_to_date() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert put_in(text) == text, "run: python -m harness.faults.page docs/faults.md"


def test_only_the_generated_part_is_replaced() -> None:
    assert put_in(f"before {BEGIN} old {END} after") == f"before {render()} after"


@pytest.mark.parametrize("page", ["nothing", BEGIN, END])
def test_a_page_without_its_marks_is_refused(page: str) -> None:
    with pytest.raises(ValueError, match="lacks"):
        put_in(page)
