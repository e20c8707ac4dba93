from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from harness.cli import cli
from harness.errors import GoldenError
from harness.golden.model import Golden
from harness.golden.pending import Pending, Review
from harness.golden.store import GoldenStore
from harness.golden.update import GoldenUpdate
from harness.observation import Observation
from harness.oracle import expected
from harness.types import Mode
from tests.golden.sample import BATCHES, ENVIRON, at, lying_oracle, make_store, observe, plus_one, sample_case

NAME, PAIR = "unit-p4.tape", ("unit-p4", "tape")
FIELD = "kpool_write_plan.write_start"


def moved(dims: Any, inputs: Any) -> Any:
    """An oracle of a specification that changed in round b4.01, so that it confirms `changed`."""
    other = inputs.lengths[0] == BATCHES[1][0][0]
    return lying_oracle(FIELD)(dims, inputs) if other else expected(dims, inputs)


def made(
    store: GoldenStore, *observations: Observation, oracle: Callable[[Any, Any], Any] = expected
) -> Mapping[tuple[str, str], Golden]:
    update = GoldenUpdate(store, "all", "pending", oracle, environ=ENVIRON)
    for observation in observations:
        update.add(observation, ())
    return update.candidates()


def changed() -> Observation:
    return observe(sample_case(), edit=at("b4.01", None, FIELD, plus_one))


def propose_changed(store: GoldenStore) -> tuple[Pending, ...]:
    return Review(store).propose(made(store, changed(), oracle=moved))


@pytest.fixture
def store(tmp_path: Path) -> GoldenStore:
    return make_store(tmp_path, observe(sample_case()))


def test_what_is_as_accepted_is_not_pending(store: GoldenStore) -> None:
    review = Review(store)
    assert review.propose(made(store, observe(sample_case()))) == ()
    assert review.pending() == ()


def test_a_changed_value_is_pending_and_the_accepted_one_stays(store: GoldenStore) -> None:
    before = {path.name: path.read_bytes() for path in store.root.iterdir() if path.is_file()}
    review = Review(store)
    (one,) = propose_changed(store)
    assert one.status == f"{NAME}: 1 x value changed"
    assert review.pending()[0].status == one.status
    assert {path.name: path.read_bytes() for path in store.root.iterdir() if path.is_file()} == before
    assert store.problems([PAIR]) == ()


def test_the_difference_has_numbers(store: GoldenStore) -> None:
    (one,) = propose_changed(store)
    head, line = one.diff()
    assert head.startswith(f"{NAME}: value {FIELD}: 1 changed, first tape/decode/6/4/0/plain/b4.01")
    assert line.strip() == (
        "tape/decode/6/4/0/plain/b4.01: 1 differ, first element 1: 254 -> 255;"
        " largest difference 1 at element 1"
    )


def test_a_changed_ledger_is_told_in_words(store: GoldenStore) -> None:
    fewer = observe(sample_case(), ledger=lambda ledger: ledger[1:])
    (one,) = Review(store).propose(made(store, fewer))
    assert "structure changed" in one.status
    text = "\n".join(one.diff())
    assert "structure refresh ledger: 1 changed" in text
    assert "is gone" in text or " -> 0" in text


def test_a_new_golden_is_pending_as_new(tmp_path: Path) -> None:
    store = GoldenStore(tmp_path / "golden")
    (one,) = Review(store).propose(made(store, observe(sample_case())))
    assert one.status.startswith(f"{NAME}: new, ")
    Review(store).accept(NAME, "the first", environ=ENVIRON)
    assert store.load(*PAIR).reason == "the first"


def test_accepting_takes_the_change_with_its_reason_and_nothing_is_pending_after(store: GoldenStore) -> None:
    review = Review(store)
    propose_changed(store)
    lines = review.accept(NAME, "write starts\nmoved", environ=ENVIRON)
    assert lines[-1] == f"accepted: {NAME}; why: write starts moved"
    assert store.load(*PAIR).reason == "write starts moved"
    assert review.pending() == ()
    assert propose_changed(store) == ()


def test_accepting_keeps_what_the_run_did_not_produce(tmp_path: Path) -> None:
    store = make_store(tmp_path, observe(sample_case()), observe(sample_case(mode=Mode.TARGET_VERIFY)))
    review = Review(store)
    propose_changed(store)
    review.accept(NAME, "moved", environ=ENVIRON)
    assert {key.split("/")[0] for key in store.load(*PAIR).entries} == {"decode", "target_verify"}


def test_a_later_run_that_is_as_accepted_takes_the_pending_one_back(store: GoldenStore) -> None:
    review = Review(store)
    propose_changed(store)
    review.propose(made(store, observe(sample_case())))
    assert review.pending() == ()


def test_acceptance_is_refused_in_ci_by_workers_without_reason_and_for_other_names(
    store: GoldenStore,
) -> None:
    review = Review(store)
    propose_changed(store)
    with pytest.raises(GoldenError, match="never updated in CI"):
        review.accept(NAME, "why", environ={"CI": "true"})
    with pytest.raises(GoldenError, match="parallel workers"):
        review.accept(NAME, "why", environ={"PYTEST_XDIST_WORKER": "gw0"})
    with pytest.raises(GoldenError, match="needs a reason"):
        review.accept(NAME, " ", environ=ENVIRON)
    with pytest.raises(GoldenError, match=f"no golden 'else.tape' is pending; pending are: {NAME}"):
        review.accept("else.tape", "why", environ=ENVIRON)
    assert len(review.pending()) == 1


def test_the_command_line_reviews(store: GoldenStore, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("CI", "PYTEST_XDIST_WORKER"):
        monkeypatch.delenv(variable, raising=False)
    propose_changed(store)

    def run(*arguments: str) -> tuple[int, str]:
        result = CliRunner().invoke(
            cli, ["golden", *arguments, "--golden-dir", str(store.root)], standalone_mode=False
        )
        assert result.exception is None, result.exception
        return int(result.return_value), result.output

    assert run("status") == (1, f"{NAME}: 1 x value changed\n")
    code, text = run("diff", NAME)
    assert (code, "254 -> 255" in text) == (0, True)
    code, text = run("accept", NAME, "--reason", "moved")
    assert (code, text.splitlines()[-1]) == (0, f"accepted: {NAME}; why: moved")
    assert run("status") == (0, "nothing is pending\n")


def test_dropping_forgets_the_pending_one_only(store: GoldenStore) -> None:
    review = Review(store)
    propose_changed(store)
    review.drop(NAME)
    assert review.pending() == ()
    assert store.find(*PAIR) is not None
    with pytest.raises(GoldenError, match="none; `replay-harness golden propose` makes some"):
        review.drop(NAME)


def test_pruning_removes_orphans_pending_and_accepted(
    store: GoldenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("CI", "PYTEST_XDIST_WORKER"):
        monkeypatch.delenv(variable, raising=False)
    propose_changed(store)
    result = CliRunner().invoke(cli, ["golden", "prune", "--golden-dir", str(store.root)])
    assert result.output.splitlines() == [f"removed: {NAME}", f"removed: {NAME} (pending)"]
    assert store.stems() == ()


def test_what_the_oracle_contradicts_is_not_even_proposed(store: GoldenStore) -> None:
    with pytest.raises(GoldenError, match="no golden was updated"):
        made(store, changed())
