"""The page in a real browser: no console errors, filters and drawings work, keys work, light and dark."""

import re
import shutil
import struct
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from harness.report.html.page import Run, render
from tests.report.sample import finding, result
from tests.report.test_html_page import ENVIRONMENT, picture

BROWSER = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), ""
)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not BROWSER, reason="no Chromium here; Debian's package is called chromium"),
]
RESULTS = (
    replace(result("tiny/shared/a", finding("tiny/shared/a")), picture=picture(3, shared=True)),
    replace(result("tiny/shared/b"), picture=picture(3, shared=True)),
    replace(result("tiny/independent/c", path="independent"), picture=picture(3, shared=False)),
)


def browse(folder: Path, page: str, *arguments: str, after: str = "", fragment: str = "") -> tuple[str, str]:
    """Load a page, run `after` in it, and return the document that results, and what the console said."""
    file = folder / "page.html"
    file.write_text(page.replace("</body>", f"<script>{after}</script></body>"), encoding="utf-8")
    done = subprocess.run(
        [
            BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--v=0",
            f"--user-data-dir={folder / 'profile'}", "--virtual-time-budget=3000", *arguments,
            f"file://{file}{fragment}",
        ],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    said = "\n".join(line for line in done.stderr.splitlines() if ":CONSOLE" in line)
    return done.stdout, said


@pytest.fixture(scope="module")
def page() -> str:
    return render(Run(RESULTS, None, 1.0, ENVIRONMENT))


def hidden(document: str) -> list[bool]:
    tags = re.findall(r'<details class="case"[^>]*>', document)
    return [" hidden" in tag for tag in tags]


def test_the_console_is_heard(tmp_path: Path, page: str) -> None:
    _, said = browse(tmp_path, page, "--dump-dom", after="console.error('heard');")
    assert "heard" in said


def test_it_loads_without_a_word_on_the_console(tmp_path: Path, page: str) -> None:
    document, said = browse(tmp_path, page, "--dump-dom")
    assert said == ""
    assert "3 of 3 cases" in document
    assert hidden(document) == [False, False, False]


def test_filters_leave_what_fits(tmp_path: Path, page: str) -> None:
    after = """
      const form = document.getElementById("filters");
      form.elements.verdict.value = "failed";
      form.dispatchEvent(new Event("input", {bubbles: true}));
    """
    document, said = browse(tmp_path, page, "--dump-dom", after=after)
    assert (said, "1 of 3 cases" in document) == ("", True)
    assert sorted(hidden(document)) == [False, True, True]


def test_words_filter_and_escape_brings_all_back(tmp_path: Path, page: str) -> None:
    typed = """
      document.dispatchEvent(new KeyboardEvent("keydown", {key: "/"}));
      const text = document.getElementById("filters").elements.text;
      text.value = "INDEPENDENT c"; text.dispatchEvent(new Event("input", {bubbles: true}));
      document.body.dataset.focused = document.activeElement === text;
    """
    document, said = browse(tmp_path, page, "--dump-dom", after=typed)
    assert (said, "1 of 3 cases" in document, 'data-focused="true"' in document) == ("", True, True)
    escape = 'text.dispatchEvent(new KeyboardEvent("keydown", {key: "Escape", bubbles: true}));'
    document, said = browse(tmp_path, page, "--dump-dom", after=typed + escape)
    assert (said, "3 of 3 cases" in document) == ("", True)


def test_a_cell_of_the_matrix_leads_to_its_cases(tmp_path: Path, page: str) -> None:
    after = """document.querySelector('td.failed a').click();"""
    document, said = browse(tmp_path, page, "--dump-dom", after=after)
    assert (said, "1 of 3 cases" in document) == ("", True)


def test_an_opened_case_has_its_drawings(tmp_path: Path, page: str) -> None:
    closed, _ = browse(tmp_path, page, "--dump-dom")
    opened, said = browse(tmp_path, page, "--dump-dom", fragment="#case-0")
    assert said == ""
    assert 'data-drawing="' in closed
    case = re.search(
        r'<details class="case" id="case-0".*?(?=<details class="case" id="case-1")', opened, re.S
    )
    assert case is not None
    assert len(re.findall(r"<div data-drawing=\"\w+\"><svg", case[0])) == 4
    assert " open" in case[0].split(">", 1)[0]


def test_light_and_dark_are_two_pictures(tmp_path: Path, page: str) -> None:
    pictures = []
    for theme in ("light", "dark"):
        shot = tmp_path / f"{theme}.png"
        after = f'document.documentElement.dataset.theme = "{theme}";'
        _, said = browse(tmp_path, page, f"--screenshot={shot}", "--window-size=1200,900", after=after)
        assert said == ""
        pictures.append(shot.read_bytes())
        assert struct.unpack(">II", pictures[-1][16:24]) == (1200, 900)
    assert pictures[0] != pictures[1]


def test_a_single_case_is_open_and_drawn(tmp_path: Path) -> None:
    document, said = browse(tmp_path, render(Run(RESULTS[:1], None, 1.0, ENVIRONMENT)), "--dump-dom")
    assert said == ""
    (case,) = re.findall(r'<details class="case".*?</details>\s*</section>', document, flags=re.S)
    assert re.match(r"<details[^>]* open", case)
    assert len(re.findall(r'<div data-drawing="\w+"><svg', case)) == case.count("data-drawing=") > 0
