from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from safetensors.numpy import load, save

from harness.errors import GoldenError
from harness.golden import store as store_module
from harness.golden.manifest import manifest_of, seal, tensors_of, write
from harness.golden.model import Golden
from harness.golden.store import MAX_FILE, GoldenStore
from harness.types import Mode
from harness.types import Path as RefreshPath
from tests.golden.sample import accept, at, make_store, observe, plus_one, sample_case, sample_program
from tests.helpers import tiny_model

NAME = "unit-p4.tape"
PAIR = ("unit-p4", "tape")


@pytest.fixture(scope="module")
def accepted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("accepted")
    independent = sample_case(path=RefreshPath.INDEPENDENT)
    return make_store(folder, observe(sample_case()), observe(independent)).root


@pytest.fixture
def store(accepted: Path, tmp_path: Path) -> GoldenStore:
    shutil.copytree(accepted, tmp_path / "golden")
    return GoldenStore(tmp_path / "golden")


@pytest.fixture(scope="module")
def new(tmp_path_factory: pytest.TempPathFactory) -> Golden:
    """Another golden of the same name."""
    observation = observe(sample_case(), edit=at("b4.00", None, "attention", plus_one))
    return make_store(tmp_path_factory.mktemp("new"), observation).load(*PAIR)


def tensors(store: GoldenStore) -> Path:
    return store.root / f"{NAME}.safetensors"


def manifest(store: GoldenStore) -> Path:
    return store.root / f"{NAME}.manifest.json"


def content(golden: Golden) -> bytes:
    """Everything a golden holds, as the bytes of its two files."""
    values = tensors_of(golden)
    data = save(values)
    return data + write(manifest_of(golden, values, data))


def reseal(store: GoldenStore, change: Callable[[dict[str, Any]], None]) -> None:
    """Edit a manifest as someone would who also mends its seal."""
    body = json.loads(manifest(store).read_text())
    change(body)
    manifest(store).write_bytes(seal(body))


def test_a_golden_comes_back_as_it_was_saved(store: GoldenStore) -> None:
    golden = store.load(*PAIR)
    assert len(golden.entries) == 4
    assert len(golden.structures) == 2
    assert not golden.interrupted
    before = manifest(store).read_bytes(), tensors(store).read_bytes()
    store.save(golden)
    assert (manifest(store).read_bytes(), tensors(store).read_bytes()) == before
    assert content(store.load(*PAIR)) == content(golden)


def test_two_updates_from_the_same_run_give_the_same_bytes(tmp_path: Path) -> None:
    files = []
    for folder in ("one", "other"):
        made = make_store(tmp_path / folder, observe(sample_case()))
        files.append({path.name: path.read_bytes() for path in made.root.iterdir()})
    assert files[0] == files[1]
    assert sorted(files[0]) == [f"{NAME}.manifest.json", f"{NAME}.safetensors"]


def test_the_order_of_cases_does_not_matter(tmp_path: Path) -> None:
    cases = [sample_case(mode=mode) for mode in (Mode.DECODE, Mode.TARGET_VERIFY)]
    one = make_store(tmp_path / "one", *map(observe, cases))
    other = make_store(tmp_path / "other", *map(observe, reversed(cases)))
    assert tensors(one).read_bytes() == tensors(other).read_bytes()


def test_the_manifest_is_json_with_sorted_keys_and_a_newline(store: GoldenStore) -> None:
    text = manifest(store).read_text()
    body = json.loads(text)
    assert text.endswith("}\n")
    assert list(body) == sorted(body)
    assert {row["name"] for row in body["tensors"]} == set(load(tensors(store).read_bytes()))
    assert body["reason"] == "first goldens"
    assert {"numpy", "replay-harness", "safetensors", "torch"} == set(body["tools"])


def test_tensors_own_their_memory(store: GoldenStore) -> None:
    arrays = list(tensors_of(store.load(*PAIR)).values())
    assert all(array.flags.c_contiguous and array.flags.owndata for array in arrays)


def test_a_missing_golden_says_how_to_make_it(store: GoldenStore) -> None:
    assert store.find("other", "tape") is None
    with pytest.raises(GoldenError, match=r"other\.tape\.manifest\.json: no such golden; make it with mode"):
        store.load("other", "tape")


def one_error(store: GoldenStore) -> str:
    with pytest.raises(GoldenError) as raised:
        store.load(*PAIR)
    text = str(raised.value)
    assert "\n" not in text
    assert text in store.problems([PAIR])
    return text


def test_every_flipped_byte_is_found(store: GoldenStore) -> None:
    rng = np.random.default_rng(0)
    for path in (tensors(store), manifest(store)):
        whole = path.read_bytes()
        for position in (0, 7, 8, 9, *rng.integers(0, len(whole), 60).tolist(), len(whole) - 1):
            damaged = bytearray(whole)
            damaged[position] ^= 1 << int(rng.integers(0, 8))
            path.write_bytes(damaged)
            assert str(path) in one_error(store)
        path.write_bytes(whole)
    assert store.problems([PAIR]) == ()


def test_a_flipped_value_names_its_tensor(store: GoldenStore) -> None:
    data = bytearray(tensors(store).read_bytes())
    data[-1] ^= 1
    tensors(store).write_bytes(data)
    assert "is damaged or belongs to another update: the bytes of tensor " in one_error(store)


def test_a_truncated_tensor_file(store: GoldenStore) -> None:
    data = tensors(store).read_bytes()
    tensors(store).write_bytes(data[:100])
    assert f"is truncated, 100 of {len(data)} bytes" in one_error(store)


def test_a_truncated_manifest(store: GoldenStore) -> None:
    manifest(store).write_bytes(manifest(store).read_bytes()[:500])
    assert "no readable JSON" in one_error(store)


@pytest.mark.parametrize("file", [tensors, manifest])
def test_an_lfs_pointer(store: GoldenStore, file: Callable[[GoldenStore], Path]) -> None:
    file(store).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n")
    assert "is a Git LFS pointer, not the file; fetch it with `git lfs pull`" in one_error(store)


def test_another_schema(store: GoldenStore) -> None:
    reseal(store, lambda body: body.update(schema=2))
    assert "schema 2, this version reads 1" in one_error(store)


def test_json_that_is_no_manifest(store: GoldenStore) -> None:
    manifest(store).write_text("[1]\n")
    assert "schema None" in one_error(store)


def test_an_edit_by_hand(store: GoldenStore) -> None:
    text = manifest(store).read_text().replace("first goldens", "other goldens")
    manifest(store).write_text(text)
    assert "was damaged or edited by hand" in one_error(store)


def test_a_key_of_the_wrong_type(store: GoldenStore) -> None:
    reseal(store, lambda body: body.update(reason=1))
    assert "Expected `str`, got `int` - at `$.reason`" in one_error(store)


def test_an_unknown_key(store: GoldenStore) -> None:
    reseal(store, lambda body: body.update(extra=1))
    assert "unknown field `extra`" in one_error(store)


def test_an_entry_that_the_tensors_lack(store: GoldenStore) -> None:
    def add(body: dict[str, Any]) -> None:
        body["entries"]["decode/N5/bs4/00"] = {"by": "x", "fields": 1, "labels": []}

    reseal(store, add)
    assert "has 4 entries, the manifest lists 5" in one_error(store)


def test_an_entry_that_the_manifest_lacks(store: GoldenStore) -> None:
    reseal(store, lambda body: body["entries"].popitem())
    assert "has 4 entries, the manifest lists 3" in one_error(store)


def test_a_field_that_the_manifest_does_not_count(store: GoldenStore) -> None:
    def miscount(body: dict[str, Any]) -> None:
        next(iter(body["entries"].values()))["fields"] += 1

    reseal(store, miscount)
    assert "has 20 fields, the manifest lists 21" in one_error(store)


def test_a_structure_part_that_is_not_there(store: GoldenStore) -> None:
    reseal(store, lambda body: body["parts"].popitem())
    assert "is not in the manifest" in one_error(store)


def test_tensors_of_another_update(store: GoldenStore, new: Golden) -> None:
    tensors(store).write_bytes(save(tensors_of(new)) + b" ")  # at least as long
    assert "is damaged or belongs to another update" in one_error(store)


def edited(store: GoldenStore, change: Callable[[dict[str, Any]], object]) -> bytes:
    content = load(tensors(store).read_bytes())
    change(content)
    return save(content)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda t: t.update({"field/a:int32/index": np.zeros(9, np.int16)}), "is not in the manifest"),
        (lambda t: t.pop("field/topk_v2_plan:int32/index"), "/index is missing"),
        (lambda t: t.update({"field/topk_v2_plan:int32/index": np.zeros(4, np.int64)}), r"is int64[4], the"),
        (lambda t: t.update({"field/topk_v2_plan:int32/index": np.ones(4, np.int16)}), "the bytes of tensor"),
    ],
    ids=["extra", "missing", "dtype", "bytes"],
)
def test_tensors_that_are_not_those_of_the_table(
    store: GoldenStore, change: Callable[[dict[str, Any]], object], complaint: str
) -> None:
    data = edited(store, change)
    tensors(store).write_bytes(data)
    file = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    reseal(store, lambda body: body.update(file=file))
    text = one_error(store)
    assert "does not fit its manifest: tensor" in text or "does not fit its manifest: the bytes" in text
    assert complaint in text


def test_a_manifest_without_tensors_and_the_reverse(store: GoldenStore) -> None:
    data = tensors(store).read_bytes()
    tensors(store).unlink()
    assert "is missing, its manifest is there" in one_error(store)
    tensors(store).write_bytes(data)
    manifest(store).unlink()
    assert "has no manifest beside it" in one_error(store)


def test_a_golden_under_another_name(store: GoldenStore) -> None:
    for path in (tensors(store), manifest(store)):
        path.rename(path.with_name(path.name.replace("unit-p4", "renamed")))
    with pytest.raises(GoldenError, match="is the golden of another model or engine"):
        store.load("renamed", "tape")


def test_an_orphan_and_a_stranger_are_problems(store: GoldenStore) -> None:
    assert store.problems([PAIR]) == ()
    (orphan,) = store.problems([("other", "tape")])
    assert "an orphan, no known model and engine have this name" in orphan
    (store.root / "notes.txt").write_text("x")
    (store.root / "README.md").write_text("x")
    (store.root / "folder").mkdir()
    stranger = store.problems([PAIR])
    assert [line.partition(": ")[2] for line in stranger] == [
        "not a file; only goldens belong here",
        "no golden; only goldens belong here",
    ]


def test_an_empty_or_absent_folder_has_no_problems(tmp_path: Path) -> None:
    assert GoldenStore(tmp_path / "none").problems([PAIR]) == ()
    assert GoldenStore(tmp_path / "none").stems() == ()


def test_a_file_too_large_is_refused_and_the_old_stays(
    store: GoldenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = content(store.load(*PAIR))
    monkeypatch.setattr(store_module, "MAX_FILE", 2000)
    with pytest.raises(GoldenError, match=r"bytes, more than 2000; prune it, or lower the policy's"):
        store.save(store.load(*PAIR))
    assert content(store.load(*PAIR)) == before
    assert "more than 2000" in store.problems([PAIR])[0]


def test_all_goldens_too_large_is_refused(store: GoldenStore, monkeypatch: pytest.MonkeyPatch) -> None:
    size = sum(path.stat().st_size for path in store.root.iterdir())
    (store.root / ".filler").write_bytes(b"x" * 100)
    monkeypatch.setattr(store_module, "MAX_TOTAL", size + 50)
    with pytest.raises(GoldenError, match=f"would have {size + 100} bytes, more than {size + 50}"):
        store.save(store.load(*PAIR))
    assert "prune some" in store.problems([PAIR])[0]


# A crash at each step of an update


class Crash(Exception):
    """Stands for a process that is killed."""


class Crashing:
    """Counts what the store does to files and raises at the n-th."""

    def __init__(self, at_step: int, half: bool) -> None:
        self.at_step, self.half, self.step = at_step, half, 0

    def check(self) -> None:
        self.step += 1
        if self.step == self.at_step:
            raise Crash

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        replace, unlink, written = os.replace, Path.unlink, GoldenStore._written

        def crashing_written(store: GoldenStore, name: str, suffix: str, data: bytes) -> Path:
            if self.half and self.step + 1 == self.at_step:
                (store.root / (name + suffix)).write_bytes(data[: len(data) // 2])
            self.check()
            return written(store, name, suffix, data)

        def crashing_replace(source: Any, target: Any) -> None:
            self.check()
            replace(source, target)

        def crashing_unlink(path: Path, missing_ok: bool = False) -> None:
            self.check()
            unlink(path, missing_ok=missing_ok)

        monkeypatch.setattr(GoldenStore, "_written", crashing_written)
        monkeypatch.setattr(os, "replace", crashing_replace)
        monkeypatch.setattr(Path, "unlink", crashing_unlink)


STEPS = 3 + 3 + 2 + 1
"""Removals of leftovers, files written, files replaced, the previous tensors removed."""


@pytest.mark.parametrize("half", [False, True], ids=["before", "half-written"])
@pytest.mark.parametrize("at_step", range(1, STEPS + 1))
def test_a_crash_leaves_one_whole_golden(
    store: GoldenStore, new: Golden, monkeypatch: pytest.MonkeyPatch, at_step: int, half: bool
) -> None:
    old = store.load(*PAIR)
    assert content(old) != content(new)
    with monkeypatch.context() as patch:
        Crashing(at_step, half).install(patch)
        with pytest.raises(Crash):
            store.save(new)
    committed = at_step == STEPS  # only then was the manifest replaced
    found = store.load(*PAIR)
    assert content(found) == content(new if committed else old)
    between = at_step == STEPS - 1  # the new tensors are there, the old manifest too
    assert found.interrupted == between
    leftovers = [line for line in store.problems([PAIR]) if "interrupted" in line]
    assert bool(leftovers) == (at_step > 3 + 1 or (half and at_step > 3))
    store.save(new)
    assert content(store.load(*PAIR)) == content(new)
    assert store.problems([PAIR]) == ()
    assert len(list(store.root.iterdir())) == 2


def test_no_step_is_left_out_of_the_crash_test(
    store: GoldenStore, new: Golden, monkeypatch: pytest.MonkeyPatch
) -> None:
    counter = Crashing(0, half=False)
    counter.install(monkeypatch)
    store.save(new)
    assert counter.step == STEPS


def test_mending_puts_the_old_pair_back(
    store: GoldenStore, new: Golden, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = store.load(*PAIR)
    with monkeypatch.context() as patch:
        Crashing(STEPS - 1, half=False).install(patch)
        with pytest.raises(Crash):
            store.save(new)
    assert store.mend() == (f"{NAME}: undid an interrupted update",)
    assert store.problems([PAIR]) == ()
    found = store.load(*PAIR)
    assert content(found) == content(old)
    assert not found.interrupted


@pytest.mark.parametrize("at_step", range(1, STEPS - 1))
def test_a_crash_in_the_first_write_leaves_no_golden(
    tmp_path: Path, new: Golden, monkeypatch: pytest.MonkeyPatch, at_step: int
) -> None:
    store = GoldenStore(tmp_path / "golden")
    with monkeypatch.context() as patch:
        Crashing(at_step, half=True).install(patch)
        with pytest.raises(Crash):
            store.save(new)
    assert store.find(*PAIR) is None
    store.save(new)
    assert content(store.load(*PAIR)) == content(new)
    assert store.problems([PAIR]) == ()


def test_two_updates_at_once_are_refused(store: GoldenStore) -> None:
    with store.lock(), pytest.raises(GoldenError, match="another update is writing here"):
        accept(store, observe(sample_case()), mode="all")
    accept(store, observe(sample_case()), mode="all")


def test_a_sample_golden_is_far_below_the_limit(store: GoldenStore) -> None:
    assert 0 < max(path.stat().st_size for path in store.root.iterdir()) < MAX_FILE / 4


def test_unchanged_files_are_decoded_once(store: GoldenStore) -> None:
    golden = store.load(*PAIR)
    assert store.load(*PAIR) is golden
    accept(store, observe(sample_case(mode=Mode.TARGET_VERIFY)))
    assert store.load(*PAIR) is not golden


def test_a_system_with_a_geometry_of_its_own_has_its_own_golden(store: GoldenStore) -> None:
    model = tiny_model()
    narrow = tiny_model(width=512).geometries["tape"]
    own = msgspec.structs.replace(model, geometries={**model.geometries, "package_tape": narrow})
    case = sample_case(own, sut="package")
    assert store.for_case(case) is None
    accept(store, observe(case, sample_program(sample_case(tiny_model(width=512)), SHORT)))
    assert store.stems() == ("unit-p4.package_tape", "unit-p4.tape")
    golden = store.for_case(case)
    assert golden is not None
    assert golden.config.geometry.width == 512
    assert store.for_case(sample_case(own)) is store.load(*PAIR)


SHORT = (((5, 64, 300, 257), (3, 1, 4, 2)),)
