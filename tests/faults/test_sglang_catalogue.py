"""SGLang's part of the catalogue holds together; no SGLang is needed for that."""

import re
from collections import Counter
from pathlib import Path as FilePath

import pytest

from harness.checks.registry import CHECKS
from harness.faults.catalogue import Fault, Harmless, base_of, place
from harness.faults.public import THREADS
from harness.faults.sglang import ENTRIES, FAULTS, seam
from harness.faults.sglang.geometry import P1, P4, at
from harness.known import load_known
from harness.sut.sglang.expected import released_route
from harness.types import Drill, EngineKind, Kernel, Mode, Path
from harness.worker import KNOWN_FILE

CASES = FilePath(__file__).parent.parent.parent / "cases"
HARMLESS = [entry for entry in ENTRIES if isinstance(entry, Harmless)]
SEAMS = [value for value in vars(seam).values() if isinstance(value, seam.Seam)]


def test_ids_and_texts_are_unique_and_sorted() -> None:
    assert len({entry.id for entry in ENTRIES}) == len(ENTRIES)
    assert len({entry.text for entry in ENTRIES}) == len(ENTRIES)
    faults = [entry for entry in ENTRIES if isinstance(entry, Fault)]
    assert sorted(faults, key=place) == faults


def test_there_are_as_many_as_promised_over_all_classes() -> None:
    assert len(FAULTS) >= 45
    assert len(HARMLESS) >= 6
    assert {fault.cls for fault in FAULTS} == set("ABCDEFGHIJKLMNP")


def test_every_fault_is_a_public_entry_or_a_variant_of_one() -> None:
    assert {base_of(fault.id) for fault in FAULTS} <= set(THREADS)


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.id)
def test_an_entry_is_one_sentence_with_a_mechanism_and_small_cases(entry: Fault | Harmless) -> None:
    assert re.fullmatch(r"[A-Z][^\n]*[^.]\.", entry.text)
    assert entry.injection.kind
    for case in entry.cases:
        assert case.sut == "sglang"
        assert case.engine is EngineKind.TAPE
        assert case.bucket <= 4
        assert case.geometry.width <= 1536
        assert case.mode is Mode.DECODE or case.path is Path.RELEASED
    if isinstance(entry, Fault):
        assert set(entry.checks) <= {check.name for check in CHECKS}
        assert len(set(entry.checks)) == len(entry.checks)


def test_faults_lie_on_every_path_route_mode_kernel_and_pool_size() -> None:
    cases = [fault.case for fault in FAULTS]
    assert {case.path for case in cases} == {Path.RELEASED, Path.SHARED, Path.SHARED_IN_GRAPH}
    routes = {released_route(case) for case in cases if case.path is Path.RELEASED}
    assert routes == {Path.INDEPENDENT, Path.SIBLING_COPY, Path.MULTI_DESTINATION_COPY}
    assert {case.mode for case in cases} == set(Mode)
    assert {case.kernel for case in cases} == set(Kernel)
    assert {(case.model.index_kpool, case.fusion) for case in cases} >= {(1, False), (4, False), (4, True)}
    assert {case.drill for case in cases} >= {
        Drill.PLAIN, Drill.BUCKET_SWITCH, Drill.PADDED, Drill.CHURN, Drill.OVERSIZE, Drill.RECAPTURE,
        Drill.DELAYED,
    }  # fmt: skip


def test_where_the_released_fault_is_known_another_field_or_check_has_to_speak() -> None:
    """What the multi-destination copy leaves stale by itself kills nothing that is planted beside it."""
    known = load_known(CASES / KNOWN_FILE)
    for fault in FAULTS:
        case = fault.case
        if case.path is Path.RELEASED and released_route(case) is Path.MULTI_DESTINATION_COPY:
            checks = {check for entry in known if entry.sut == "sglang" for check in entry.checks}
            assert fault.expected not in checks or fault.id in ("F4b",), fault.id


def test_the_general_mechanisms_act_on_sglang_as_well_as_its_own_seams() -> None:
    used = Counter(type(fault.injection).__module__ for fault in FAULTS)
    assert used["harness.faults.sglang.seam"] >= 40
    assert len([name for name in used if name.startswith("harness.faults.mechanisms.")]) >= 6


def test_pages_lie_where_neither_16_bits_nor_a_float_hold_their_ids() -> None:
    for model in (P1, P4):
        first = at(model=model).geometry.first_page
        assert first * model.index_kpool > 1 << 24, "physical pages"
        assert first * 64 > 1 << 24, "slots of pooled keys, too"
        assert (first + 1024) * model.page_tokens < 1 << 31, "tokens are 32 bits"


def test_every_seam_is_used() -> None:
    text = repr(ENTRIES)
    for one in SEAMS:
        assert f"name={one.name!r}" in text, one.name
