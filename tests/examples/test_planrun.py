"""The example of a backend that is not DSA: right as it is; a plan that is kept shows in its fields."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from harness.cli import main
from tests.examples.support import EXAMPLES, installed

CASES = ("--sut", "planrun", "--cases-dir", str(EXAMPLES / "planrun" / "cases"), "--no-golden", "--jobs", "1")
SCHEDULE = {"request_indices", "kv_tile_indices", "o_indptr", "kv_chunk_size"}


@pytest.fixture(autouse=True, scope="module")
def _planrun(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with installed("planrun", tmp_path_factory.mktemp("site")):
        yield


def verified(folder: Path, *flags: str) -> tuple[int, dict[str, Any]]:
    """Run part of the matrix; return the status and the JSON report."""
    report = folder / "report.json"
    status = main(["verify", *CASES, "--json", str(report), *flags])
    return status, json.loads(report.read_text())


def test_the_right_wrapper_passes_on_both_paths(tmp_path: Path) -> None:
    status, report = verified(tmp_path)
    assert status == 0
    assert {case["axes"]["path"] for case in report["cases"]} == {"released", "shared"}
    assert {case["skipped"] for case in report["cases"]} == {""}


def test_a_plan_that_is_kept_shows_in_what_it_left_alone_and_nowhere_else(tmp_path: Path) -> None:
    status, report = verified(tmp_path, "--sut-option", "plan=lazy", "--path", "shared", "--drill", "plain")
    assert status == 1
    fresh = {one["field"] for one in report["findings"] if one["check"] == "freshness"}
    assert fresh == SCHEDULE
    assert {one["field"] for one in report["findings"]} == {*SCHEDULE, ""}  # "": rounds not replayed


def test_the_stand_in_attends_over_exactly_the_live_tokens() -> None:
    """Against plain softmax attention, with requests cut into one tile and into several."""
    from planrun_wrapper import PAGE, DecodeWrapper

    random = torch.Generator().manual_seed(3)
    keys = torch.randn(40, PAGE, 8, generator=random)
    query = torch.randn(3, 8, generator=random)
    lengths = torch.tensor([1, 700, 64])
    pages = (lengths + PAGE - 1) // PAGE
    ids = torch.randperm(40, generator=random)[: int(pages.sum())]
    indptr = torch.cat([torch.zeros(1, dtype=torch.int64), pages.cumsum(0)])
    wrapper = DecodeWrapper(3, 16, torch.device("cpu"))
    wrapper.plan(indptr, ids, (lengths - 1) % PAGE + 1)
    assert int(wrapper.buffers.o_indptr[-1]) > 3
    got = wrapper.run(query, keys)
    for row, length in enumerate(lengths.tolist()):
        own = keys[ids[indptr[row] : indptr[row + 1]]].flatten(0, 1)[:length]
        right = torch.softmax(query[row] @ own.T, 0) @ own
        assert torch.allclose(got[row], right, atol=1e-5)
