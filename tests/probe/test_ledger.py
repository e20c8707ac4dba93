from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from harness.observation import LeafFact, LedgerEntry, Span
from harness.probe.launches import Launch, Written, perform
from harness.probe.leaves import walk_roots
from harness.probe.ledger import Ledger
from harness.probe.regions import Regions
from harness.sut.protocol import StepRoots


def leaves_of(regions: Regions, *steps: dict[str, torch.Tensor]) -> tuple[LeafFact, ...]:
    return walk_roots(tuple(StepRoots({4: step}, step) for step in steps), regions).leaves


def ints(*shape: int) -> torch.Tensor:
    return torch.zeros(*shape, dtype=torch.int32)


def count(
    run: Callable[[torch.Tensor], object], tensor: torch.Tensor, leaf: torch.Tensor | None = None
) -> int:
    regions = Regions()
    facts = leaves_of(regions, {"leaf": tensor if leaf is None else leaf})
    ledger = Ledger(regions)
    with ledger:
        run(tensor)
    return sum(entry.writes for entry in ledger.entries(facts))


WRITERS: dict[str, tuple[Callable[[torch.Tensor], object], int]] = {
    "copy": (lambda t: t.copy_(torch.ones_like(t)), 1),
    "itself": (lambda t: t.copy_(t), 1),
    "in place twice": (lambda t: t.add_(1).mul_(2), 2),
    "view": (lambda t: t[1:2].fill_(7), 1),
    "slice assignment": (lambda t: t.__setitem__(slice(1, 3), 5), 1),
    "index assignment": (lambda t: t.__setitem__(torch.tensor([0, 2]), 5), 1),
    "out": (lambda t: torch.cumsum(t.clone(), 0, out=t), 1),
    "foreach": (lambda t: torch._foreach_copy_([t[0], t[1]], [t[2].clone(), t[3].clone()]), 1),
    "scatter": (lambda t: t.scatter_(0, torch.zeros(1, 3, dtype=torch.int64), t[:1].clone()), 1),
    "read only": (lambda t: (t + 1).sum(), 0),
    "temporary": (lambda t: torch.zeros_like(t).copy_(t).add_(1), 0),
    "view only": (lambda t: t.view(-1)[2:].unsqueeze_(0), 0),
}


@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.parametrize("inference", [False, True])
def test_every_kind_of_write_counts_once(name: str, inference: bool) -> None:
    run, expected = WRITERS[name]
    with torch.inference_mode(inference):
        assert count(run, ints(4, 3)) == expected


def test_compositions_are_seen_as_what_they_write() -> None:
    with torch.inference_mode():
        table = ints(4, 6)  # born in inference mode: compositions on it are dispatched whole
        assert count(lambda t: t[:, :3].reshape(-1).fill_(1), table) == 0, "reshape had to copy"
        assert count(lambda t: t.reshape(-1).fill_(1), table) == 1, "reshape is a view"


def test_only_leaves_whose_bytes_are_touched_count() -> None:
    table = ints(4, 8)
    assert count(lambda t: t[:, :4].fill_(1), table, table[:, 4:]) == 0
    assert count(lambda t: t[:, :4].fill_(1), table, table[:, 3:]) == 1
    assert count(lambda t: t[0].fill_(1), table, table[1:]) == 0


def test_a_write_through_foreign_storage_counts() -> None:
    owner = ints(8)
    foreign = torch.frombuffer(owner.numpy(), dtype=torch.int32)
    assert count(lambda _: foreign[:2].fill_(1), owner) == 1


def test_a_write_through_foreign_storage_counts_where_it_lies() -> None:
    regions, owner = Regions(), ints(8)
    facts = leaves_of(regions, {"low": owner[:4], "high": owner[4:]})
    ledger = Ledger(regions)

    def passing() -> None:
        foreign = torch.frombuffer(owner.numpy()[4:], dtype=torch.int32)
        foreign[1:3].fill_(1)
        launched = Launch("fused", lambda: (Written(foreign, torch.tensor([3])),), (foreign,))
        perform(launched)

    with ledger:
        passing()
    assert ledger.entries(facts) == (LedgerEntry(0, "high", 2),)
    assert ledger.written_mask(owner).tolist() == [False] * 5 + [True] * 3


def test_a_leaf_in_foreign_storage_is_judged_where_it_lies() -> None:
    regions, owner = Regions(), ints(8)
    leaves_of(regions, {"owner": owner})
    foreign = torch.frombuffer(owner.numpy()[4:], dtype=torch.int32)
    ledger = Ledger(regions)
    with ledger:
        owner[4:].fill_(1)
    assert ledger.covers(foreign)
    assert ledger.written_mask(foreign).tolist() == [True] * 4
    with ledger:
        owner[:4].fill_(1)
    assert not ledger.covers(foreign)
    assert ledger.written_mask(foreign).tolist() == [False] * 4


def test_a_ledger_may_number_regions_by_itself() -> None:
    written, other = ints(4), ints(4)
    ledger = Ledger()
    assert ledger.spans() == ()
    assert ledger.entries([(3, "written", written)]) == ()
    with ledger:
        written[1:].fill_(1)
        written.add_(1)
    assert ledger.entries([(3, "written", written), (4, "other", other)]) == (LedgerEntry(3, "written", 2),)


def test_what_was_asked_before_a_write_is_not_the_answer_after_it() -> None:
    regions, leaf = Regions(), ints(4)
    facts = leaves_of(regions, {"leaf": leaf})
    ledger = Ledger(regions)
    with ledger:
        assert ledger.entries(facts) == ()
        leaf.fill_(1)
        assert ledger.entries(facts) == (LedgerEntry(0, "leaf", 1),)
        leaf.fill_(2)
        assert ledger.entries(facts) == (LedgerEntry(0, "leaf", 2),)


def test_compositions_do_not_end_the_page_that_they_are_on() -> None:
    with torch.inference_mode():
        regions, leaf = Regions(), ints(4, 6)
        facts = leaves_of(regions, {"leaf": leaf})
        ledger = Ledger(regions)
        with ledger:
            for _ in range(3):
                leaf.reshape(-1).fill_(1)
            with ledger.span("after"):
                leaf.fill_(2)
    assert ledger.entries(facts) == (LedgerEntry(0, "leaf", 4),)
    assert ledger.spans() == (Span("after", -1, 1),)


def test_operations_are_named_in_order() -> None:
    regions, metadata = Regions(), {"leaf": ints(4), "other": ints(4)}
    facts = leaves_of(regions, metadata)
    ledger = Ledger(regions)
    with ledger:
        metadata["leaf"].fill_(1)
        metadata["leaf"][:2].copy_(torch.ones(2))
    leaf, other = facts
    names = ledger.operations(leaf)
    assert [name.split(".")[1] for name in names] == ["fill_", "copy_"]
    assert ledger.operations(other) == ()


def test_one_write_covers_what_lies_wholly_in_it() -> None:
    regions, table = Regions(), ints(4, 8)
    leaves_of(regions, {"table": table})
    ledger = Ledger(regions)
    assert not ledger.covers(table)
    with ledger:
        table[1:3].fill_(1)
    assert [ledger.covers(table[row]) for row in range(4)] == [False, True, True, False]
    assert [ledger.covers(table[top : top + 2]) for top in range(3)] == [False, True, False]
    with ledger:
        table[:, 2:6].fill_(1)
    assert ledger.covers(table[:, 2:6])
    assert ledger.covers(table.T[2:6])
    assert not ledger.covers(table[:, 2:7])
    assert not ledger.covers(table[:, 2:5]), "not plain to see"
    with ledger:
        table[:2].fill_(1)
        table[2:].fill_(1)
    assert not ledger.covers(table), "no single write did"
    assert ledger.written_mask(table).all()
    with ledger:
        perform(Launch("fused", lambda: (Written(table, torch.arange(32)),), (table,)))
    assert not ledger.covers(table), "a list of elements is not plain to see"


def test_a_mask_is_of_booleans_whatever_was_written() -> None:
    regions, table = Regions(), ints(3, 4)
    leaves_of(regions, {"table": table})
    ledger = Ledger(regions)
    with ledger:
        table[:, 1:3].fill_(1)
    for leaf, written in ((table[:, 1:3], True), (table[:, 3:], False), (table[:0], True)):
        mask = ledger.written_mask(leaf)
        assert mask.dtype == torch.bool
        assert mask.shape == leaf.shape
        assert mask.all() if written else not mask.any()


@pytest.mark.parametrize("byte", range(16))
def test_an_element_of_which_one_byte_was_written_was_written(byte: int) -> None:
    regions, leaf = Regions(), ints(4)
    leaves_of(regions, {"leaf": leaf})
    ledger = Ledger(regions)
    with ledger:
        leaf.view(torch.int8)[byte].fill_(1)
    assert ledger.written_mask(leaf).tolist() == [index == byte // 4 for index in range(4)]
    assert not ledger.covers(leaf)


def test_shared_leaves_are_reported_for_the_earlier_step_only() -> None:
    regions, shared = Regions(), {"lengths": ints(4), "same": ints(0)}
    shared["alias"] = shared["lengths"].view(4, 1)
    facts = leaves_of(regions, shared, shared, {"lengths": shared["lengths"][:3]})
    ledger = Ledger(regions)
    with ledger:
        shared["lengths"].add_(1)
    assert ledger.entries(facts) == (
        LedgerEntry(0, "lengths", 1),
        LedgerEntry(0, "alias", 1),
        LedgerEntry(2, "lengths", 1),
    )


def test_a_leaf_that_was_rebound_in_the_block_is_found_by_a_later_walk() -> None:
    regions, metadata = Regions(), {"lengths": ints(4)}
    leaves_of(regions, metadata)
    ledger = Ledger(regions)
    with ledger:
        metadata["lengths"] = ints(4)
        metadata["lengths"].fill_(3)
    assert ledger.entries(leaves_of(regions, metadata)) == (LedgerEntry(0, "lengths", 1),)


def test_spans_nest_and_count_temporaries() -> None:
    leaf = ints(4)
    ledger = Ledger(Regions())
    with ledger:
        with ledger.span("refresh", 0):
            with ledger.span("precompute"):
                (leaf + 1).view(2, 2)
                torch.empty(4)
            leaf.copy_(leaf + 1)
        with ledger.span("idle", 2):
            leaf[1:].view(-1)
        leaf.fill_(1)
    assert ledger.spans() == (Span("refresh", 0, 3), Span("precompute", -1, 1), Span("idle", 2, 0))
    assert ledger.spans(within="refresh") == (Span("precompute", -1, 1),)


def test_entries_inside_and_outside_a_span() -> None:
    regions, metadata = Regions(), {"a": ints(4), "b": ints(4)}
    facts = leaves_of(regions, metadata)
    ledger = Ledger(regions)
    with ledger:
        with ledger.span("refresh"), ledger.span("fused_copy", 1):
            metadata["a"].fill_(1)
        metadata["b"].fill_(1)
    assert ledger.entries(facts, within="refresh") == (LedgerEntry(0, "a", 1),)
    assert ledger.entries(facts, outside="refresh") == (LedgerEntry(0, "b", 1),)


def test_a_new_block_is_a_new_page_and_clear_forgets_the_warm_up() -> None:
    regions, metadata = Regions(), {"a": ints(4)}
    facts = leaves_of(regions, metadata)
    ledger = Ledger(regions)
    with ledger.span("outside"):
        metadata["a"].fill_(1)
    with ledger, ledger.span("refresh"):
        metadata["a"].fill_(1)
        ledger.clear()
        metadata["a"].fill_(2)
    assert ledger.entries(facts) == (LedgerEntry(0, "a", 1),)
    assert ledger.spans() == (Span("refresh", -1, 1),)
    with ledger:
        pass
    assert ledger.entries(facts) == ()
    assert ledger.spans() == ()


def test_launches_count_for_exactly_the_elements_they_wrote() -> None:
    regions, base = Regions(), ints(16)
    metadata = {"low": base[:8], "high": base[8:], "other": ints(4)}
    facts = leaves_of(regions, metadata)

    def run() -> tuple[Written, ...]:
        base[10] = 3
        metadata["other"].fill_(1)
        return (Written(base[8:], torch.tensor([10])), Written(metadata["other"]))

    ledger = Ledger(regions)
    with ledger, ledger.span("fused_copy"):
        perform(Launch("fused", run, (base, metadata["other"])))
    assert ledger.entries(facts) == (LedgerEntry(0, "high", 1), LedgerEntry(0, "other", 1))
    assert ledger.spans() == (Span("fused_copy", -1, 1),)
    assert ledger.operations(facts[1]) == ("fused",)
    assert ledger.written_mask(base).nonzero().flatten().tolist() == [10]


def test_written_mask_of_a_strided_leaf() -> None:
    regions, table = Regions(), ints(3, 8)
    ledger = Ledger(regions)
    leaf = table[:, 2:6]
    with ledger:
        table[1, 4:].fill_(1)
        table.view(torch.int64)[0, :2].fill_(1)
    leaves_of(regions, {"leaf": leaf})
    assert ledger.written_mask(leaf).tolist() == [
        [True, True, False, False],
        [False, False, True, True],
        [False] * 4,
    ]
    assert ledger.written_mask(table).sum() == 4 + 4
    assert not ledger.written_mask(ints(4)).any()
    assert ledger.written_mask(table[:0]).shape == (0, 8)


@given(
    st.lists(
        st.tuples(st.integers(0, 5), st.integers(0, 5), st.integers(0, 7), st.integers(0, 7)), max_size=4
    )
)
def test_written_mask_equals_what_changed(boxes: list[tuple[int, int, int, int]]) -> None:
    regions, table = Regions(), ints(5, 7)
    regions.locate(table)
    ledger = Ledger(regions)
    with ledger:
        for top, bottom, left, right in boxes:
            table[top:bottom, left:right].fill_(1)
    assert torch.equal(ledger.written_mask(table), table.bool())
    assert not ledger.covers(table) or bool(table.all())
    assert torch.equal(ledger.written_mask(table.T[::2]), table.T[::2].bool())
