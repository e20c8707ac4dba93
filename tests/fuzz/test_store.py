"""Sequences as TOML: what is written is read back, and mistakes end in one line."""

from __future__ import annotations

from pathlib import Path as FilePath

import pytest

from harness.errors import CaseError
from harness.fuzz.sequence import Capture, Churn, Eager, Pause, Replay, Sequence, Setting
from harness.fuzz.store import dump_sequence, load_sequence, problems, sequence_name
from harness.types import Kernel, Mode, Path
from tests.fuzz.samples import EXTEND, MODELS, captured, replayed, sequence_of

EVERYTHING = Sequence(
    setting=Setting(
        model="unit-p4", path=Path.INDEPENDENT, fusion=True, steps=4, mode=Mode.DRAFT_EXTEND,
        kernel=Kernel.TRTLLM, seed=3, buckets=(2, 4),
    ),
    operations=(
        Capture(bucket=4, lengths=(9, 60), requests=(3, 1), pages=2, accepted=(1, 2)),
        Replay(
            bucket=4, lengths=(900,), requests=(5,), pages=((9, 2, 7, 4),), accepted=(3,), junk=2,
            exchange=(0, 1, 3), delayed=True,
        ),
        Replay(bucket=4),
        Eager(rows=9000),
        Churn(),
        Pause(),
    ),
    ordinary=True,
    why='a "quoted" reason\nwith two lines',
)  # fmt: skip


def read(tmp_path: FilePath, text: str) -> Sequence:
    file = tmp_path / "sequence.toml"
    file.write_text(text)
    return load_sequence(file, MODELS)


def test_what_is_written_is_read_back(tmp_path: FilePath) -> None:
    assert read(tmp_path, dump_sequence(EVERYTHING)) == EVERYTHING


def test_defaults_are_left_out_of_the_text() -> None:
    text = dump_sequence(sequence_of(captured(), replayed(5)))
    assert "delayed" not in text
    assert "junk" not in text
    assert "ordinary" not in text
    assert text.count("[[operations]]") == 2


def test_names_tell_sequences_apart() -> None:
    one, other = sequence_of(captured(), replayed(5)), sequence_of(captured(), replayed(6))
    assert sequence_name(one) != sequence_name(other)
    assert sequence_name(one).startswith("embedded-unit-p4-shared-decode-s3-")


BROKEN = [
    ("[setting]", "[settings]", "top level: object contains unknown field `settings`"),
    ('do = "replay"', 'do = "replays"', "operations[1].do: invalid value 'replays'"),
    ("requests = [2]", "requests = [2, 3]", "operations[1].requests: 2 request ids for 1 lengths"),
    ("lengths = [5]", "lengths = [2000]", "operations[1].lengths[0]: 2000 is out of range: 1 to 1023"),
    ("requests = [2]", "requests = [0]", "operations[1].requests[0]: 0 is out of range: 1 to 11"),
    ("steps = 3", "steps = 9", "setting.steps: 9 is no variant of unit-p4"),
    ('model = "unit-p4"', 'model = "unit"', "setting.model: 'unit' is not one of unit-p4, unit-p1"),
    ("pages = 1", "pages = -1", "operations[1].pages: -1 is a seed"),
    ("pages = 1", "pages = [[3, 3]]", "operations[1].pages[0]: pages are distinct"),
    ("pages = 1", "pages = [[3], [4]]", "operations[1].pages: 2 lists of pages for 1 lengths"),
    ("pages = 1", "pages = 1\naccepted = [1]", "operations[1].accepted: [1]: one value from 1 to 6"),
    ("pages = 1", "pages = 1\nlenght = 3", "operations[1]: object contains unknown field `lenght`"),
]


@pytest.mark.parametrize(("right", "wrong", "said"), BROKEN)
def test_a_mistake_ends_in_one_line_that_names_file_and_key(
    right: str, wrong: str, said: str, tmp_path: FilePath
) -> None:
    text = dump_sequence(sequence_of(captured(), replayed(5)))
    assert right in text
    before, _, after = text.rpartition(right)
    with pytest.raises(CaseError) as caught:
        read(tmp_path, before + wrong + after)
    assert str(caught.value).startswith(f"{tmp_path}/sequence.toml: {said}")
    assert "\n" not in str(caught.value)


IMPOSSIBLE = [
    (sequence_of(Churn()), "operations", "captures nothing"),
    (sequence_of(captured(2), replayed(5, bucket=4)), "operations[1].bucket", "before it is captured"),
    (sequence_of(replayed(5), captured(2)), "operations[0].bucket", "before it is captured"),
    (sequence_of(captured(2), replayed(5, 6, 7)), "operations[1].lengths", "do not fit into bucket 2"),
    (sequence_of(captured(2), Eager(rows=0)), "operations[1].rows", "not between 1"),
    (
        sequence_of(captured(2), Replay(bucket=2, lengths=(5, 6), requests=(3, 3))),
        "operations[1].requests",
        "names a request twice",
    ),
    (
        sequence_of(captured(2), Replay(bucket=2, lengths=(300,), requests=(3,), exchange=(0, 1, 2))),
        "operations[1].exchange",
        "[0, 1, 2] is not a live row and two of the columns",
    ),
    (
        sequence_of(captured(2), Replay(bucket=2, lengths=(900,), requests=(3,), exchange=(1, 0, 1))),
        "operations[1].exchange",
        "[1, 0, 1] is not",
    ),
    (sequence_of(Capture(bucket=3)), "operations[0].bucket", "3 is not one of buckets [1, 2, 4, 8]"),
    (
        sequence_of(Capture(bucket=2, lengths=(3,), requests=(1,)), setting=EXTEND),
        "operations[0].lengths[0]",
        "3 is out of range: 4 to",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("sequence", "key", "said"), IMPOSSIBLE)
def test_what_cannot_be_run_is_said_beforehand(sequence: Sequence, key: str, said: str) -> None:
    found = dict(problems(sequence, MODELS))
    assert said in found[key]


def test_files_that_are_no_sequences_are_refused(tmp_path: FilePath) -> None:
    (tmp_path / "latin.toml").write_bytes("why = 'é'".encode("latin-1"))
    (tmp_path / "broken.toml").write_text("[setting")
    for name, said in (
        ("absent.toml", "cannot be read"),
        ("latin.toml", "UTF-8"),
        ("broken.toml", "no TOML"),
    ):
        with pytest.raises(CaseError, match=said):
            load_sequence(tmp_path / name, MODELS)
