"""Traces through systems: all of it in one life, found faults shrunk to cases that fail alone."""

from __future__ import annotations

from pathlib import Path as FilePath

import pytest

from harness import cli
from harness.fuzz.reduce import size_of
from harness.fuzz.sequence import Capture, Operation, Replay
from harness.fuzz.store import load_sequence
from harness.load.planted import planted_factory
from harness.trace.frames import TraceError
from harness.trace.shrink import Shrunk, runnable, shrink, with_captures
from harness.trace.verify import drive, round_number, verify, windows
from harness.types import Path
from tests.trace.samples import CASES, MODELS, made, staged

KEPT = CASES / "sequences" / "largest-back-after-two.toml"


@pytest.mark.parametrize("path", [Path.SHARED, Path.INDEPENDENT])
def test_a_healthy_system_passes(tmp_path: FilePath, path: Path) -> None:
    trace = made(tmp_path, 70)
    found, stage = staged(trace, path=path)
    driven = verify(trace, found, stage)
    assert driven.findings == ()
    assert (driven.operations, driven.replays, driven.windows) == (74, 70, 2)
    assert driven.elements > 10_000


def test_memory_of_a_life_is_that_of_a_window(tmp_path: FilePath) -> None:
    from harness.life import Life
    from harness.trace.mapping import Mapping, operations

    trace = made(tmp_path, 60)
    _, stage = staged(trace)
    life = Life(stage.case, stage.setting, stage.factory, stage.engine)
    kept = []
    for window in windows(operations(trace.moments(), Mapping(stage.case), "decode"), 10):
        life.window(window)
        kept.append((len(life.run._records), len(life.run._captures)))
    life.close()
    assert kept[0] == (6, 4)
    assert set(kept[1:]) == {(10, 4), (4, 4)}


def test_a_fault_of_one_bucket_sequence_is_found_and_shrunk(tmp_path: FilePath) -> None:
    """Buckets 8, 2, 8 come in this order once in these rounds, the 74th the last; T1 needs exactly that."""
    trace = made(tmp_path, 80, load="dp", seed=19)
    found, stage = staged(trace, plant="T1")
    done = shrink(trace, found, stage)
    assert isinstance(done, Shrunk)
    assert done.steady
    assert size_of(done.sequence)[0] <= 5
    assert [one.bucket for one in done.sequence.operations if isinstance(one, Replay)] == [8, 2, 8]
    assert {finding.check for finding in done.trial.unexpected} <= {"freshness", "equivalence"}


def test_the_kept_case_fails_alone_with_the_fault_and_not_without() -> None:
    from harness.fuzz.trial import Bench
    from harness.options import RunOptions, factory_of
    from harness.worker import make_engine

    sequence = load_sequence(KEPT, MODELS)
    engine = make_engine(sequence.setting.engine)
    planted = Bench(MODELS, planted_factory("embedded", "T1"), engine)
    assert planted.run(sequence).unexpected
    healthy = Bench(MODELS, factory_of(RunOptions(CASES, CASES)), engine)
    assert not healthy.run(sequence).unexpected


def test_windows_keep_the_first_captures_together() -> None:
    captures = [Capture(bucket=size) for size in (8, 4, 2, 1)]
    replays = [Replay(bucket=1)] * 7
    assert [len(one) for one in windows([*captures, *replays], 3)] == [5, 3, 3]
    assert list(windows([], 3)) == []


def test_ends_of_a_trace_bring_their_captures() -> None:
    captures: list[Operation] = [Capture(bucket=4), Capture(bucket=2)]
    operations = [*captures, Replay(bucket=4), Replay(bucket=2), Replay(bucket=4)]
    assert with_captures(operations, 4) == (operations[0], operations[4])
    assert runnable(with_captures(operations, 3))
    assert not runnable(operations[2:])
    assert not runnable([])


def test_round_numbers() -> None:
    assert [round_number(name) for name in ("b4.123", "b8.capture07", "before", "b4.x")] == [123, 7, 0, 0]


def test_a_damaged_trace_is_a_usage_error(tmp_path: FilePath) -> None:
    trace = made(tmp_path, 200)
    content = bytearray(trace.file.read_bytes())
    content[len(content) // 2] ^= 0xFF
    trace.file.write_bytes(bytes(content))
    with pytest.raises(TraceError, match="is damaged in frame"):
        staged(trace)


def test_nothing_to_drive_is_an_empty_report(tmp_path: FilePath) -> None:
    _, stage = staged(made(tmp_path, 1))
    assert drive([], stage).windows == 0


def test_commands(tmp_path: FilePath, capsys: pytest.CaptureFixture[str]) -> None:
    file = str(tmp_path / "made.rank0.jsonl.zst")
    assert cli.main(["trace", "make", "--model", "tiny", "--rounds", "12", "--out", file]) == 0
    assert cli.main(["trace", "stat", file]) == 0
    assert "decode: 12 refreshes of 3 draft steps" in capsys.readouterr().out
    part = str(tmp_path / "part.rank0.jsonl.zst")
    assert cli.main(["trace", "cut", file, "--first", "2", "--last", "5", "--out", part]) == 0
    assert cli.main(["verify", "--trace", part, "--json", str(tmp_path / "report.json")]) == 0
    assert "OK: nothing unexpected; 8 records, 4 replays" in capsys.readouterr().out
    assert cli.main(["trace", "shrink", part]) == 0
    (tmp_path / "foreign").write_bytes(b"hello")
    assert cli.main(["verify", "--trace", str(tmp_path / "foreign")]) == 2
    assert "is no trace: it does not begin as zstd does" in capsys.readouterr().err
    assert cli.main(["verify", "--trace", part, "--bucket", "4"]) == 2
    assert "a trace has its own buckets" in capsys.readouterr().err
