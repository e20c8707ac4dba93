"""What every check says of a healthy run and of single edits of it, word for word and count for count.

After a change that is meant, `python -m tests.checks.test_edits` writes `said.json` anew: review how it
differs.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.checks import edits_growing, edits_run, edits_structure, edits_values
from tests.checks.sheet import Sheet, said, specified

EDITS = {**edits_run.EDITS, **edits_structure.EDITS, **edits_values.EDITS, **edits_growing.EDITS}
SAID = Path(__file__).with_name("said.json")


@cache
def kept() -> dict[str, Any]:
    expected: dict[str, Any] = json.loads(SAID.read_text(encoding="utf-8"))
    return expected


def heard(name: str) -> dict[str, Any]:
    run, edit = EDITS[name]
    with specified():
        sheet = Sheet.of(run)
        edit(sheet)
        return said(sheet.judged())


@pytest.mark.parametrize("name", EDITS)
def test_the_checks_say_what_they_said(name: str) -> None:
    assert heard(name) == kept()[name]


def test_every_kept_word_is_of_an_edit() -> None:
    assert kept().keys() == EDITS.keys()


if __name__ == "__main__":
    text = json.dumps({name: heard(name) for name in EDITS}, indent=1, ensure_ascii=False)
    SAID.write_text(text + "\n", encoding="utf-8")
