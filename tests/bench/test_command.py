"""`bench gpu`: flags to a request, figures to table, JSON and plots."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from harness.bench import gpu
from harness.bench.figures import Report
from harness.cli import main
from harness.types import Path as RefreshPath
from tests.bench.support import measured, point, report


def test_without_a_gpu_it_ends_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    assert main(["bench", "gpu"]) == 2
    assert "bench gpu needs a CUDA device" in capsys.readouterr().err


def test_flags_become_a_request_and_figures_a_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[gpu.Request] = []

    def run(request: gpu.Request, say: object) -> Iterator[Report]:
        asked.append(request)
        points = [measured(point(steps=S)) for S in (3, 4, 5)]
        for count in (1, 2, 3):
            assert file.exists() == (count > 1)
            yield report(*points[:count])

    file = tmp_path / "out.json"
    monkeypatch.setattr(gpu, "run", run)
    flags = ["--sut", "embedded-fused", "--sut", "sglang", "--path", "shared", "--model", "glm-5.3-flash"]
    flags += ["--fusion", "off", "--fusion", "on", "--steps", "3", "--bucket", "2", "--width", "1024"]
    assert main(["bench", "gpu", *flags, "--growth", "--turns", "3", "--json", str(file)]) == 0
    (request,) = asked
    assert request.systems == ("embedded-fused", "sglang")
    assert request.paths == (RefreshPath.SHARED,)
    assert [(one.fusion, one.steps, one.bucket, one.width) for one in request.points] == [
        (False, 3, 2, 1024), (True, 3, 2, 1024),
    ]  # fmt: skip
    assert {one.steps for one in request.swept} >= {2, 8}
    assert request.effort.rounds == 3
    assert len(json.loads(file.read_text())["points"]) == 3
    assert "embedded-fused shared" in capsys.readouterr().out


@pytest.mark.gpu
def test_a_gpu_is_measured(tmp_path: Path) -> None:
    file = tmp_path / "out.json"
    flags = ["--model", "glm-5.3-flash", "--steps", "3", "--bucket", "2", "--width", "4096", "--turns", "2"]
    assert main(["bench", "gpu", *flags, "--json", str(file)]) == 0
    (at,) = json.loads(file.read_text())["points"]
    fused = next(
        one for one in at["subjects"] if one["system"] == "embedded-fused" and one["path"] == "shared"
    )
    assert fused["activities"] == {"kernels": 1, "memcpys": 0, "memsets": 0, "fused_copies": 0}
    in_graph = at["subjects"][-1]
    assert (in_graph["path"], in_graph["eager"]["kernels"], in_graph["eager"]["memcpys"]) == (
        "shared_in_graph", 0, 0,
    )  # fmt: skip
    assert all(one["span"]["median"] > 0 for one in at["subjects"])
