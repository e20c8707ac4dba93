"""Two releases in one run, in processes of their own: what each shows, and what a missing one says."""

from __future__ import annotations

import json
from pathlib import Path as FilePath
from typing import Any

import pytest

from harness.cli import main
from harness.sut.sglang.site import SITES

ONE_CASE = (
    "--sut sglang --no-golden --jobs 1 --full --model deepseek-v3.2 --path released --fusion off"
    " --steps 4 --mode decode --kernel fa3 --bucket 2 --drill plain"
)
RELEASES = ("0.5.20", "0.5.23")


def verify(tmp_path: FilePath, *versions: str) -> tuple[int, dict[str, Any]]:
    file = tmp_path / "report.json"
    flags = [flag for version in versions for flag in ("--sglang-version", version)]
    status = main(["verify", *ONE_CASE.split(), *flags, "--json", str(file)])
    return status, json.loads(file.read_text()) if file.exists() else {}


@pytest.mark.sglang
@pytest.mark.slow
def test_every_release_is_driven_by_itself_and_a_missing_one_says_what_to_do(tmp_path: FilePath) -> None:
    here = [version for version in RELEASES if (SITES / f"sglang-{version}").is_dir()]
    if not here:
        pytest.skip(f"no slim site of {' or '.join(RELEASES)}: run `make sglang-site`")
    status, report = verify(tmp_path, *here, "9.9.9")
    assert status == 1
    verdicts = {case["axes"]["version"]: case["verdict"] for case in report["cases"]}
    assert verdicts == dict.fromkeys(here, "known") | {"9.9.9": "failed"}
    (missing,) = [finding for finding in report["findings"] if not finding["known"]]
    assert missing["version"] == "9.9.9"
    assert "run `make sglang-site SGLANG_VERSION=9.9.9`" in missing["message"]
    assert report["environment"]["facts"]["sglang"]["sglang"] == here


def test_a_single_release_without_a_site_is_one_line(
    tmp_path: FilePath, capsys: pytest.CaptureFixture[str]
) -> None:
    status, report = verify(tmp_path, "9.9.9")
    assert (status, report) == (2, {})
    assert "SGLANG_VERSION=9.9.9" in capsys.readouterr().err
