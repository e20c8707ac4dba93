"""The catalogue holds together: ids, classes, sources, cases and texts."""

import re
from pathlib import Path

import pytest

from harness.axes import EMBEDDED_PATHS
from harness.casefile import load_models
from harness.checks.registry import CHECKS
from harness.errors import UsageError
from harness.faults import catalogue
from harness.faults.catalogue import Fault, Harmless, base_of, entries, place, select, systems
from harness.faults.embedded import ENTRIES
from harness.faults.geometry import P1, P4, at
from harness.faults.mechanisms.combined import Unchanged
from harness.faults.public import THREADS, links
from harness.faults.redundant import REASONS
from harness.faults.unexpressed import UNEXPRESSED
from harness.types import Drill, EngineKind, Kernel, Mode

ROOT = Path(__file__).parent.parent.parent
FAULTS = [entry for entry in ENTRIES if isinstance(entry, Fault)]
HARMLESS = [entry for entry in ENTRIES if isinstance(entry, Harmless)]


def test_ids_and_texts_are_unique() -> None:
    assert len({entry.id for entry in ENTRIES}) == len(ENTRIES)
    assert len({entry.text for entry in ENTRIES}) == len(ENTRIES)


def test_there_are_as_many_as_promised() -> None:
    assert len(FAULTS) >= 90
    assert len(HARMLESS) >= 20


def test_every_class_has_faults() -> None:
    assert {fault.cls for fault in FAULTS} == set("ABCDEFGHIJKLMNP")


def test_every_public_entry_is_expressed_or_has_its_reason_and_not_both() -> None:
    expressed = {base_of(entry.id) for system in systems() for entry in entries(system)}
    assert set(THREADS) - expressed == set(UNEXPRESSED)


def test_every_fault_is_a_public_entry_or_a_variant_of_one() -> None:
    assert {base_of(fault.id) for fault in FAULTS} <= set(THREADS)


def test_links_are_well_formed_and_only_mutants_of_our_own_have_none() -> None:
    for identity in THREADS:
        found = links(identity)
        assert bool(found) is (identity[0] != "X"), identity
        for link in found:
            assert re.fullmatch(r"https://github\.com/[\w.-]+/[\w.-]+/issues/\d+", link)


def test_what_unexpressed_entries_teach_is_tested_where_they_say() -> None:
    for identity, why in UNEXPRESSED.items():
        assert why.reason.strip() == why.reason
        assert not why.test or (ROOT / why.test).is_file(), identity


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.id)
def test_an_entry_is_one_sentence_with_a_mechanism_and_small_cases(entry: Fault | Harmless) -> None:
    assert re.fullmatch(r"[A-Z][^\n]*[^.]\.", entry.text)
    assert entry.injection.kind
    assert 1 <= len(entry.cases) <= 2
    for case in entry.cases:
        assert case.bucket <= 8
        assert case.geometry.width <= 4096
        assert case.engine is EngineKind.TAPE


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.id)
def test_checks_that_have_to_speak_exist(fault: Fault) -> None:
    assert set(fault.checks) <= {check.name for check in CHECKS}
    assert len(set(fault.checks)) == len(fault.checks)
    assert fault.golden is ("golden" in fault.checks)


def test_faults_lie_on_every_path_mode_and_pool_size() -> None:
    cases = [fault.case for fault in FAULTS]
    assert {case.path for case in cases} == set(EMBEDDED_PATHS)
    assert {case.mode for case in cases} == set(Mode)
    assert {case.model.index_kpool for case in cases} == {1, 4}
    assert {case.fusion for case in cases} == {True, False}
    assert {case.kernel for case in cases} == set(Kernel)
    assert {case.drill for case in cases} >= {
        Drill.PLAIN, Drill.BUCKET_SWITCH, Drill.PADDED, Drill.CHURN, Drill.OVERSIZE, Drill.RECAPTURE,
        Drill.DELAYED,
    }  # fmt: skip


def test_every_check_is_expected_by_some_fault() -> None:
    assert {fault.expected for fault in FAULTS} | set(REASONS) == {check.name for check in CHECKS}


def test_the_small_models_are_those_of_the_case_files() -> None:
    models = load_models(ROOT / "cases")
    assert models[P4.name] == P4
    assert models[P1.name] == P1


def test_faults_are_sorted_by_class_number_and_letter() -> None:
    assert sorted(FAULTS, key=place) == FAULTS
    ids = [fault.id for fault in FAULTS if fault.cls == "A"]
    assert ids.index("A4c") < ids.index("A6") < ids.index("A10") < ids.index("X4")


def test_only_ids_of_the_catalogues_form_are_known() -> None:
    assert base_of("A6b") == "A6"
    for wrong in ("A", "6", "a6", "A6bc", "AB6"):
        with pytest.raises(ValueError, match="no id"):
            base_of(wrong)
        with pytest.raises(ValueError, match="no id"):
            place(Fault(wrong, "Text.", at(), Unchanged(), "refresh"))


def test_entries_are_selected_by_class_and_id() -> None:
    chosen = select("embedded", ("N",), ("A1",))
    assert {entry.cls for entry in chosen} == {"A", "N"}
    assert [entry.id for entry in chosen if entry.cls == "A"] == ["A1"]
    assert select("embedded", (), ()) == ENTRIES
    assert all(isinstance(entry, Harmless) for entry in select("embedded", ("harmless",), ()))
    with pytest.raises(UsageError, match="--id A99"):
        select("embedded", (), ("A99",))


def test_a_system_without_faults_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalogue, "SYSTEMS", {"embedded": "harness.faults.embedded", "x": "harness.none"})
    with pytest.raises(UsageError, match=r"there are some for embedded$"):
        catalogue.part("x")
