"""Bad traces: one clear line each. Good ones: what they hold, and slices of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from harness.errors import UsageError
from harness.record.format import FORMAT, IDS, VERSION, Header, zstandard
from harness.trace.frames import TraceError
from harness.trace.reader import Moment, Trace
from harness.trace.stat import describe
from harness.trace.write import cut, write_trace


def header() -> Header:
    return Header(
        format=FORMAT, version=VERSION, rank=0, world=1, started="2030-01-01T00:00:00+00:00", system="test",
        software={"torch": "2"}, pool=1, page_tokens=64, width=1024, requests=16, steps=4, draft_tokens=5,
        pages=IDS,
    )  # fmt: skip


def moment(n: int, *, capture: bool = False, bucket: int = 2) -> Moment:
    return Moment(
        n, 10 * n, capture, "decode", bucket, 3, (60 + n, 130), (3, 5),
        ((7, 8, 9)[: -(-(60 + n) // 64)], (10, 11, 12)),
    )  # fmt: skip


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "run.rank0.jsonl.zst"
    numbered = [moment(0, capture=True), *(moment(n) for n in range(1, 100))]
    write_trace(file, header(), numbered)
    return file


def test_round_trip(file: Path) -> None:
    assert list(Trace(file).moments()) == [moment(0, capture=True), *(moment(n) for n in range(1, 100))]


def test_a_truncated_trace_is_readable_and_says_so(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-20])
    trace = Trace(file)
    assert len(list(trace.moments())) == 64  # one whole frame
    assert trace.note == f"{file}: is truncated within frame 3; what comes before it is whole"


def damaged(content: bytes) -> bytes:
    changed = bytearray(content)
    changed[len(content) // 2] ^= 0xFF
    return bytes(changed)


def other_version(content: bytes) -> bytes:
    line = b'{"kind":"header","format":"replay-harness-trace","version":7,"whatever":[]}\n'
    return bytes(zstandard().ZstdCompressor().compress(line))


BAD: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "corrupt": (damaged, "is damaged in frame"),
    "wrong version": (other_version, "is a trace of version 7; this package reads version 1"),
    "foreign": (lambda content: b"PAR1 something else", "is no trace: it does not begin as zstd does"),
    "foreign zstd": (
        lambda content: bytes(zstandard().ZstdCompressor().compress(b'{"a": 1}\n')),
        "is no trace of this package: its first line is no replay-harness-trace header",
    ),
    "empty": (lambda content: b"", "is no trace: it is empty"),
    "garbage after the header": (
        lambda content: (
            content[:0] + bytes(zstandard().ZstdCompressor().compress(b'{"kind":"refresh","n":"x"}\n'))
        ),
        "is no trace of this package",
    ),
}


@pytest.mark.parametrize("kind", list(BAD))
def test_bad_traces_end_in_one_line(file: Path, kind: str) -> None:
    change, message = BAD[kind]
    file.write_bytes(change(file.read_bytes()))
    with pytest.raises(TraceError) as caught:
        list(Trace(file).moments())
    text = str(caught.value)
    assert message in text
    assert str(file) in text
    assert "\n" not in text


def test_a_missing_file_ends_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="cannot be read"):
        Trace(tmp_path / "nowhere.rank0.jsonl.zst")


def test_a_record_that_contradicts_itself(tmp_path: Path) -> None:
    file = tmp_path / "bad.rank0.jsonl.zst"
    short = Moment(0, 0, True, "decode", 2, 3, (200,), (3,), ((7,),))
    write_trace(file, header(), [short])
    with pytest.raises(TraceError, match="record 0 tells 1 of 4 pages of request 3"):
        list(Trace(file).moments())


def test_cut(file: Path, tmp_path: Path) -> None:
    target = tmp_path / "slice.rank0.jsonl.zst"
    assert cut(Trace(file), 10, 12, target) == 4
    assert [one.n for one in Trace(target).moments()] == [0, 11, 12, 13]
    with pytest.raises(UsageError, match="holds no refresh from 500 to 600"):
        cut(Trace(file), 500, 600, tmp_path / "none.rank0.jsonl.zst")
    with pytest.raises(UsageError, match="cannot be written"):
        cut(Trace(file), 1, 2, target)


def test_stat(file: Path) -> None:
    text = "\n".join(describe(Trace(file)))
    assert "decode: 1 captures of 3 draft steps" in text
    assert "decode: 99 refreshes of 3 draft steps" in text
    assert "batches   99: 0 bucket switches, 0 padded, 0 idle" in text
    assert "lengths   61 to 159 tokens" in text
