"""The goldens of this repository: within their sizes, readable, and of known models only."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.casefile import load_models
from harness.golden.store import MANIFEST, MAX_FILE, MAX_TOTAL, TENSORS, GoldenStore

ROOT = Path(__file__).parents[2]
GOLDEN = GoldenStore(ROOT / "golden")


def test_sizes() -> None:
    sizes = {path.name: path.stat().st_size for path in (ROOT / "golden").glob("*") if path.is_file()}
    assert {name: size for name, size in sizes.items() if size > MAX_FILE} == {}
    assert sum(sizes.values()) <= MAX_TOTAL
    assert (MAX_FILE, MAX_TOTAL) == (256 * 1024, 10 * 1024 * 1024)


def test_nothing_is_damaged_interrupted_or_orphaned() -> None:
    models = load_models(ROOT / "cases").values()
    assert GOLDEN.problems([(model.name, key) for model in models for key in model.geometries]) == ()


@pytest.mark.parametrize("stem", GOLDEN.stems())
def test_every_golden_is_a_pair_that_claims_something(stem: str) -> None:
    assert {path.name for path in GOLDEN.root.glob(f"{stem}*")} == {stem + TENSORS, stem + MANIFEST}
    golden = GOLDEN.load(*stem.rsplit(".", 1))
    assert golden.entries
    assert golden.structures
    assert golden.reason
