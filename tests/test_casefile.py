from __future__ import annotations

from pathlib import Path

import pytest

from harness.case import ExtraRound
from harness.casefile import load_model, load_models
from harness.errors import CaseError, UsageError
from harness.types import EngineKind, Mode
from tests.programs import CASES_DIR

TINY = (CASES_DIR / "tiny.toml").read_text(encoding="utf-8")
ROUND = """
[[rounds]]
bucket = 4
mode = "decode"
lengths = [3, 40]
requests = [5, 2]
"""


def write(folder: Path, text: str, name: str = "any.toml") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def error_of(path: Path) -> str:
    """Return the error of a file without the folder it lies in; it has to be one line of a usage error."""
    with pytest.raises(CaseError) as caught:
        load_model(path)
    text = str(caught.value)
    assert isinstance(caught.value, UsageError)
    assert "\n" not in text
    assert text.startswith(str(path))
    return text.removeprefix(f"{path.parent}/")


def test_the_projects_case_files() -> None:
    models = load_models(CASES_DIR)
    for_all = {name for name, model in models.items() if not model.systems}
    assert for_all == {"deepseek-v3.2", "glm-5", "glm-5.3", "glm-5.3-flash", "tiny", "tiny-p1"}
    assert {name: model.systems for name, model in models.items() if model.systems} == {
        "vllm-p1": ("vllm",),
        "vllm-p4": ("vllm",),
    }
    facts = {
        name: (model.index_kpool, model.page_size, model.heads, str(model.default_variant))
        for name, model in models.items()
        if model.matrix
    }
    assert facts == {
        "glm-5.3-flash": (4, 256, 64, "5/1/6"),
        "glm-5.3": (1, 64, 64, "5/1/6"),
        "glm-5": (1, 64, 64, "5/1/6"),
        "deepseek-v3.2": (1, 64, 128, "3/1/4"),
    }
    for name in facts:
        model = models[name]
        assert [str(variant) for variant in model.variants] == ["2/1/3", "3/1/4", "4/1/5", "5/1/6", "6/1/7"]
        assert model.buckets == (1, 2, 4, 8, 32)
        full = model.geometries["cuda_graph"]
        assert (full.width, full.topk, full.num_sms) == (131072, 2048, 132)
        assert (full.plan.min_rows, full.plan.max_rows) == (31, 512)
        assert full.plan.candidates[0] == (65536, 30)
        assert full.plan.candidates[-1] == (393216, 128)
        assert model.geometries["tape"].width == 4096


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("heads = 2", 'heads = "2"', "any.toml: heads: expected `int`, got `str`"),
        (
            "heads = 2",
            "heeds = 2",
            "any.toml: top level: object contains unknown field `heeds`; its keys are name,",
        ),
        ("heads = 2", "heads = 0", "any.toml: heads: 0 is not positive"),
        ("steps = 2", 'steps = "2"', "any.toml: variants[0].steps: expected `int`, got `str`"),
        (
            "steps = 2",
            "stops = 2",
            "any.toml: variants[0]: object contains unknown field `stops`; its keys are steps,",
        ),
        (
            "width = 1024",
            "widht = 1024",
            "any.toml: geometries.tape: object contains unknown field `widht`; its keys",
        ),
        ("width = 1024", "width = 1.5", "any.toml: geometries.tape.width: expected `int`, got `float`"),
        ("width = 1024", "width = 1100", "any.toml: geometries.tape.width: 1100 is not a multiple of 256"),
        (
            "width = 1024",
            "width = 768",
            "any.toml: geometries.tape.width: 768 is not a multiple of 256 (64 * index_k",
        ),
        (
            "topk = 64",
            "topk = 66",
            "any.toml: geometries.tape.topk: 66 is not a positive multiple of index_kpool 4",
        ),
        (
            "topk = 64",
            "topk = 516",
            "any.toml: geometries.tape.topk: 516 is not a positive multiple of index_kpool 4",
        ),
        (
            "requests = 16",
            "requests = 9",
            "any.toml: geometries.tape.requests: 9 rows cannot hold the largest bucket",
        ),
        ("num_sms = 8", "num_sms = 0", "any.toml: geometries.tape.num_sms: 0 is not positive"),
        (
            "min_rows = 2",
            "min_rows = 65",
            "any.toml: geometries.tape.plan.min_rows: 65 is not between 1 and max_rows",
        ),
        ("[32, 1]", "[999, 1]", "any.toml: geometries.tape.plan.candidates: thresholds [999, 64"),
        (
            "[32, 1]",
            "[32, 0]",
            "any.toml: geometries.tape.plan.candidates: a threshold or its cap of rows is not pos",
        ),
        (
            "[32, 1]",
            "[32]",
            "any.toml: geometries.tape.plan.candidates[0]: expected `array` of length 2, got 1",
        ),
        ("[geometries.tape]", "[geometries.tap]", "any.toml: geometries.tap: "),
        ("page_size = 256", "page_size = 64", "any.toml: page_size: 64 is not 64 * index_kpool = 256"),
        ("index_kpool = 4", "index_kpool = 3", "any.toml: index_kpool: 3 does not divide page_size 256"),
        (
            "buckets = [1, 2, 4, 8]",
            "buckets = [1, 4, 2, 8]",
            "any.toml: buckets: [1, 4, 2, 8] is not ascending",
        ),
        (
            "buckets = [1, 2, 4, 8]",
            "buckets = [1, 1]",
            "any.toml: buckets: [1, 1] is not ascending, distinct",
        ),
        ("buckets = [1, 2, 4, 8]", "buckets = []", "any.toml: buckets: [] is not ascending"),
        (
            "draft_tokens = 5",
            "draft_tokens = 9",
            "any.toml: default_variant: 4/1/9 is not one of variants (2/1/3,",
        ),
        (
            "topk = 1\ndraft_tokens = 3",
            "topk = 2\ndraft_tokens = 3",
            "any.toml: variants: 2/2/3 needs steps >= 2, top",
        ),
        ('name = "tiny"', 'name = "Tiny 1"', "any.toml: name: 'Tiny 1' becomes part of case ids"),
        ('name = "tiny"', "name = ", "any.toml: is no TOML: "),
    ],
)
def test_mistakes_name_file_key_and_what_is_allowed(
    old: str, new: str, expected: str, tmp_path: Path
) -> None:
    assert old in TINY
    assert error_of(write(tmp_path, TINY.replace(old, new, 1))).startswith(expected)


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (
            '"decode"',
            '"decod"',
            "rounds[0].mode: invalid enum value 'decod'; allowed are decode, target_verify, draft",
        ),
        ("bucket = 4", "bucket = 1", "rounds[0].lengths: 2 live requests do not fit into bucket 1"),
        ("bucket = 4", "bucket = 3", "rounds[0].bucket: 3 is not one of buckets [1, 2, 4, 8]"),
        ("[3, 40]", "[3, 5000]", "rounds[0].lengths[1]: length 5000 exceeds width 1024"),
        ("[3, 40]", "[0, 40]", "rounds[0].lengths[0]: 0 is below 1"),
        ("[3, 40]", "[3, 40, 5]", "rounds[0].requests: 2 request ids for 3 lengths"),
        ("[5, 2]", "[5, 16]", "rounds[0].requests[1]: 16 is out of range: 1 to 15 (0 is reserved)"),
        ("[5, 2]", "[0, 2]", "rounds[0].requests[0]: 0 is out of range: 1 to 15 (0 is reserved)"),
        ("[5, 2]", "[5, 5]", "rounds[0].requests: [5, 5] names a request twice"),
        ("bucket = 4", "bucket = 4\npages = -1", "rounds[0].pages: -1 is a seed: use 0 or more"),
        (
            "bucket = 4",
            "bucket = 4\naccepted = [1, 1]",
            "rounds[0].accepted[0]: 1 among 2: one value from 1 to 3 per",
        ),
        (
            "bucket = 4",
            "bucket = 4\npagez = 1",
            "rounds[0]: object contains unknown field `pagez`; its keys are bucket",
        ),
        (
            '"decode"',
            '"draft_extend"',
            "rounds[0].lengths[0]: 3 is below the 7 draft tokens that it includes",
        ),
        (
            '"decode"\nlengths = [3, 40]',
            '"target_verify"\nlengths = [3, 1020]',
            "rounds[0].lengths[1]: length 1020 + 7 draft tokens exceeds width 1024",
        ),
    ],
)
def test_mistakes_in_rounds_name_round_and_key(old: str, new: str, expected: str, tmp_path: Path) -> None:
    assert old in ROUND
    error = error_of(write(tmp_path, TINY + ROUND.replace(old, new, 1)))
    assert error.removeprefix("any.toml: ").startswith(expected)


def test_rounds_that_need_more_pages_than_the_pool_has(tmp_path: Path) -> None:
    text = (CASES_DIR / "glm-5.3.toml").read_text(encoding="utf-8")
    lengths, requests = [131000] * 32, list(range(1, 33))
    head = '[[rounds]]\nbucket = 32\nmode = "decode"\nengine = "cuda_graph"'
    rounds = f"{head}\nlengths = {lengths}\nrequests = {requests}\n"
    error = error_of(write(tmp_path, f"{text}\n{rounds}"))
    assert "rounds[0].pages: rounds with pages = 0 need 65504 model pages, geometries.cuda_graph has" in error


def test_rounds_are_read(tmp_path: Path) -> None:
    extra = 'mode = "draft_extend"\naccepted = [1, 3]\npages = 7\nengine = "tape"\nwhy = "shrunk"'
    text = TINY + ROUND.replace('mode = "decode"', extra).replace("[3, 40]", "[7, 40]")
    (found,) = load_model(write(tmp_path, text)).rounds
    assert found == ExtraRound(
        bucket=4, lengths=(7, 40), requests=(5, 2), mode=Mode.DRAFT_EXTEND, accepted=(1, 3), pages=7,
        engine=EngineKind.TAPE, why="shrunk",
    )  # fmt: skip


def test_a_new_file_is_a_new_model_and_other_files_are_left_alone(tmp_path: Path) -> None:
    write(tmp_path, TINY)
    write(tmp_path, TINY.replace('"tiny"', '"tinier"'), "b.toml")
    write(tmp_path, "[[finding]]\n", "known_findings.toml")
    write(tmp_path, "no case", "notes.txt")
    assert list(load_models(tmp_path)) == ["tiny", "tinier"]


def test_a_name_is_given_once(tmp_path: Path) -> None:
    write(tmp_path, TINY, "a.toml")
    path = write(tmp_path, TINY, "b.toml")
    with pytest.raises(CaseError, match=rf"{path}: name: 'tiny' is taken by .*a.toml"):
        load_models(tmp_path)


def test_folders_and_files_that_hold_nothing(tmp_path: Path) -> None:
    with pytest.raises(CaseError, match="holds no case file"):
        load_models(tmp_path)
    with pytest.raises(CaseError, match="no such folder"):
        load_models(tmp_path / "absent")
    assert "cannot be read (No such file or directory)" in error_of(tmp_path / "absent.toml")
    assert "cannot be read (Is a directory)" in error_of(tmp_path)
    broken = tmp_path / "latin.toml"
    broken.write_bytes('name = "ü"'.encode("latin-1"))
    assert "is no UTF-8 text (byte 8)" in error_of(broken)
