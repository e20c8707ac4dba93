"""Pages that say what lies elsewhere as data: the checks' registry, kept results, the site's navigation."""

import json
import runpy
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from harness.checks.page import page
from harness.locate import CHECKOUT

DOCS = CHECKOUT / "docs"


def test_the_page_of_checks_is_the_registry_s() -> None:
    assert (DOCS / "checks.md").read_text() == page(), "run: python -m harness.checks.page docs/checks.md"


@pytest.mark.parametrize("file", sorted((DOCS / "results").glob("*-matrix.json")), ids=lambda file: file.stem)
def test_the_page_of_results_has_the_figures_of_its_files(file: Path) -> None:
    summary = json.loads(file.read_text())["summary"]
    (row,) = [line for line in (DOCS / "results.md").read_text().splitlines() if file.name in line]
    names = ("cases", "replays", "elements", "unexpected", "known_findings")
    assert [cell.strip() for cell in row.split("|")[2:7]] == [f"{summary[name]:,}" for name in names]


@pytest.mark.parametrize(
    "file", sorted((DOCS / "results").glob("*-fuzz-table-*.json")), ids=lambda file: file.stem
)
def test_the_page_of_results_has_the_table_of_faults_under_the_fuzzer(file: Path) -> None:
    kept = json.loads(file.read_text())
    (row,) = [line for line in (DOCS / "results.md").read_text().splitlines() if file.name in line]
    seconds = [fault["seconds"] for fault in kept["faults"]]
    few = kept["share_of_few_operations"]
    figures = [kept["of"], kept["found"], f"{few:.1%}", f"{median(seconds):.1f}, {max(seconds):.1f}"]
    assert [cell.strip() for cell in row.split("|")[2:6]] == [str(figure) for figure in figures]


def test_the_page_of_results_has_the_kill_matrix_s_summary() -> None:
    kept = json.loads((DOCS / "results" / "2026-11-29-h200-embedded-faults.json").read_text())
    assert kept["summary"] in (DOCS / "results.md").read_text()


def test_every_page_is_in_the_navigation() -> None:
    """So is every decision: a site that leaves one out builds as well."""

    def pages(nav: Any) -> list[str]:
        if isinstance(nav, str):
            return [nav]
        return [one for item in (nav.values() if isinstance(nav, dict) else nav) for one in pages(item)]

    listed = pages(yaml.safe_load((CHECKOUT / ".ci" / "mkdocs.yml").read_text())["nav"])
    there = {file.relative_to(DOCS).as_posix() for file in DOCS.rglob("*.md")}
    assert sorted(listed) == sorted(there)


def test_the_site_shows_tagged_blocks_as_shell_and_paths_for_what_it_does_not_have() -> None:
    hook = runpy.run_path(str(CHECKOUT / ".ci" / "mkdocs_hooks.py"))["on_page_markdown"]
    here = SimpleNamespace(file=SimpleNamespace(src_uri="findings/a.md"))
    text = "```sh gpu\nrun\n```\n[test](../../tests/a.py) [other](../bench.md) ![x](../bench/growth.svg)"
    assert hook(text, page=here) == (
        "```sh\nrun\n```\ntest (`tests/a.py`) [other](../bench.md) ![x](../bench/growth.svg)"
    )
