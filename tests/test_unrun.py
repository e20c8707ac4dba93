"""What becomes of a case that the system cannot be driven on."""

from __future__ import annotations

from pathlib import Path as FilePath
from typing import Any

import pytest

from harness import worker
from harness.errors import NotDrivable
from harness.findings import Verdict
from harness.options import RunOptions
from harness.sut.protocol import Sut
from harness.unrun import undriven
from harness.worker import Worker
from tests.helpers import make_case, tiny_model


def test_a_worker_skips_it_with_the_systems_reason(
    monkeypatch: pytest.MonkeyPatch, tmp_path: FilePath
) -> None:
    def refuse(*_: Any) -> Sut:
        raise NotDrivable("this release lays it out otherwise")

    monkeypatch.setattr(worker, "factory_of", lambda options: refuse)
    options = RunOptions(cases_dir=tmp_path, golden_dir=tmp_path / "golden", golden="off")
    cases = make_case(tiny_model()), make_case(tiny_model(), steps=3)
    results = list(Worker(options).run(cases))
    assert [result.case for result in results] == [case.id for case in cases]
    assert {result.skipped for result in results} == {"this release lays it out otherwise"}
    assert {result.verdict for result in results} == {Verdict.NOT_APPLICABLE}


def test_a_release_that_cannot_be_driven_fails_with_its_reason() -> None:
    result = undriven(make_case(tiny_model()), "no module sglang.srt")
    assert result.verdict is Verdict.FAILED
    (finding,) = result.findings
    assert (finding.check, finding.message) == ("routing", "no module sglang.srt")
    assert result.replays == 0
