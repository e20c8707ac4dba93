"""Recording a stand-in server, and reading back what was recorded."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from types import ModuleType

import pytest
import torch

from harness.errors import UsageError
from harness.record import install
from harness.record.output import Limits
from harness.trace.reader import Moment, Trace
from tests.record import server


def recorded(path: Path) -> Path:
    (file,) = [one for one in path.parent.glob("*.jsonl.zst") if ".before." not in one.name]
    return file


def serve(backend: server.DeepseekSparseAttnMultiStepBackend, rounds: int) -> None:
    backend.init_forward_metadata_out_graph(server.batch(4, [1, 1, 1, 1], [1, 2, 3, 4]), in_capture=True)
    for index in range(rounds):
        backend.init_forward_metadata_out_graph(server.batch(4, [60 + index, 200, 300], [5, 2, 7]))


def test_what_is_read_is_what_was_given(tmp_path: Path) -> None:
    backend = server.DeepseekSparseAttnMultiStepBackend(server.table())
    installed = install(backend, tmp_path / "run", rank=2, world=4)
    serve(backend, 10)
    installed.uninstall()
    trace = Trace(recorded(tmp_path / "run"))
    moments = list(trace.moments())
    assert trace.file.name == "run.rank2.jsonl.zst"
    assert (trace.header.rank, trace.header.world, trace.header.steps) == (2, 4, 4)
    assert trace.note == ""
    assert [moment.capture for moment in moments] == [True] + [False] * 10
    assert [moment.n for moment in moments] == list(range(11))
    last = moments[-1]
    assert (last.bucket, last.steps, last.mode) == (4, 3, "decode")
    assert last.lengths == (69, 200, 300)
    assert last.requests == (5, 2, 7)
    assert last.pages == ((500, 501), (200, 201, 202, 203), (700, 701, 702, 703, 704))


def test_moved_pages_are_seen(tmp_path: Path) -> None:
    table = server.table()
    backend = server.DeepseekSparseAttnMultiStepBackend(table)
    installed = install(backend, tmp_path / "run")
    serve(backend, 1)
    table[7, 64:128] = 9000 * 64 + torch.arange(64, dtype=torch.int32)
    backend.init_forward_metadata_out_graph(server.batch(4, [61, 10, 301], [5, 2, 7]))
    backend.init_forward_metadata_out_graph(server.batch(4, [201], [2]))
    installed.uninstall()
    *_, moved, last = Trace(recorded(tmp_path / "run")).moments()
    assert moved.pages == ((500,), (200,), (700, 9000, 702, 703, 704))
    assert last.pages == ((200, 201, 202, 203),)  # pages beyond a shorter length were not forgotten


def test_single_backends_are_recorded_under_their_own_mode(tmp_path: Path) -> None:
    backend = server.DeepseekSparseAttnBackend(server.table())
    installed = install(backend, tmp_path / "run")
    backend.init_forward_metadata_out_graph(server.batch(2, [60], [3], mode="TARGET_VERIFY"), in_capture=True)
    backend.init_forward_metadata_out_graph(server.batch(2, [60], [3], mode="TARGET_VERIFY"))
    installed.uninstall()
    (_, moment) = Trace(recorded(tmp_path / "run")).moments()
    assert moment.mode == "target_verify"
    assert moment.pages == ((300, 301),)  # 60 and five draft tokens reach a second page


def test_classes_of_a_module_are_put_back(tmp_path: Path) -> None:
    module = ModuleType("backends")

    class DeepseekSparseAttnMultiStepBackend(server.DeepseekSparseAttnMultiStepBackend):
        """Its own class, so that other tests keep theirs."""

    vars(module)["DeepseekSparseAttnMultiStepBackend"] = DeepseekSparseAttnMultiStepBackend
    installed = install(module, tmp_path / "run")
    backend = DeepseekSparseAttnMultiStepBackend(server.table())
    serve(backend, 3)
    installed.uninstall()
    serve(backend, 3)
    assert len(list(Trace(recorded(tmp_path / "run")).moments())) == 4
    assert backend.attn_backends[0].calls == 8  # the server's own work went on


def test_nothing_to_record_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="nothing to record in object"):
        install(object(), tmp_path / "run")


def test_a_recorder_that_fails_does_not_stop_the_server(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    backend = server.DeepseekSparseAttnMultiStepBackend(server.table())
    (tmp_path / "file").write_text("")
    installed = install(backend, tmp_path / "file" / "run")
    serve(backend, 2)
    assert backend.attn_backends[0].calls == 3
    assert "cannot be written" in installed.problem
    assert "recording to" in caplog.text


def test_a_ring_keeps_the_newest_and_its_captures(tmp_path: Path) -> None:
    backend = server.DeepseekSparseAttnMultiStepBackend(server.table())
    installed = install(backend, tmp_path / "run", limits=Limits(records=40))
    serve(backend, 0)
    for index in range(200):
        backend.init_forward_metadata_out_graph(server.batch(4, [60 + index], [5]))
        if index % 10 == 0:
            time.sleep(0.01)  # several batches: a file is turned between two of them
    installed.uninstall()
    trace = Trace(recorded(tmp_path / "run"))
    moments = list(trace.moments())
    assert trace.header.continues
    assert len(moments) < 150
    assert moments[0].capture
    assert moments[0].pages == ((100,), (200,), (300,), (400,))
    assert moments[-1].lengths == (259,)
    newest = list(Trace(trace.file, older=False).moments())
    assert newest[0].capture
    assert newest == [moments[0], *moments[-len(newest) + 1 :]]


def test_digests_instead_of_page_ids(tmp_path: Path) -> None:
    backend = server.DeepseekSparseAttnMultiStepBackend(server.table())
    installed = install(backend, tmp_path / "run", pages="digest")
    serve(backend, 2)
    installed.uninstall()
    trace = Trace(recorded(tmp_path / "run"))
    assert not trace.has_pages
    assert [moment.pages for moment in trace.moments()] == [()] * 3


def test_an_older_trace_is_not_overwritten(tmp_path: Path) -> None:
    for _ in range(2):
        backend = server.DeepseekSparseAttnMultiStepBackend(server.table())
        installed = install(backend, tmp_path / "run")
        serve(backend, 1)
        installed.uninstall()
    assert sorted(one.name for one in tmp_path.iterdir()) == ["run.rank0.2.jsonl.zst", "run.rank0.jsonl.zst"]


def test_what_was_written_survives_kill_9(tmp_path: Path) -> None:
    script = f"""
        import os, sys, time
        from harness.record import install
        from tests.record import server
        backend = server.DeepseekSparseAttnMultiStepBackend(server.table())
        installed = install(backend, {str(tmp_path / "run")!r})
        backend.init_forward_metadata_out_graph(server.batch(4, [1], [1]), in_capture=True)
        for index in range(50):
            backend.init_forward_metadata_out_graph(server.batch(4, [60 + index], [5]))
        print("ready", flush=True)
        time.sleep(60)
    """
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script)], stdout=subprocess.PIPE, cwd=Path.cwd()
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    process.stdout.close()
    deadline = time.monotonic() + 20
    moments: list[Moment] = []
    while len(moments) < 51 and time.monotonic() < deadline:  # the writer outlives the server
        time.sleep(0.05)
        if list(tmp_path.glob("*.zst")):
            trace = Trace(recorded(tmp_path / "run"))
            moments = list(trace.moments())
    assert [moment.n for moment in moments] == list(range(51))
    assert "was not closed" in trace.note


def test_environment_variable(tmp_path: Path) -> None:
    package = tmp_path / "sglang" / "srt" / "layers" / "attention"
    package.mkdir(parents=True)
    for folder in (package, *package.parents[:3]):
        (folder / "__init__.py").write_text("")
    source = Path(server.__file__).read_text(encoding="utf-8")
    (package / "dsa_backend.py").write_text(source)
    script = """
        import harness.record.auto
        from sglang.srt.layers.attention import dsa_backend as server
        backend = server.DeepseekSparseAttnMultiStepBackend(server.table())
        backend.init_forward_metadata_out_graph(server.batch(4, [1], [1]), in_capture=True)
        backend.init_forward_metadata_out_graph(server.batch(4, [70], [5]))
    """
    environment = {
        **os.environ,
        "REPLAY_HARNESS_RECORD": str(tmp_path / "traces" / "run"),
        "RANK": "1",
        "PYTHONPATH": f"{tmp_path}{os.pathsep}{Path.cwd()}",
    }
    subprocess.run([sys.executable, "-c", textwrap.dedent(script)], check=True, env=environment)
    trace = Trace(tmp_path / "traces" / "run.rank1.jsonl.zst")
    assert [moment.lengths for moment in trace.moments()] == [(1,), (70,)]
    assert trace.note == ""  # closed when the process ended
