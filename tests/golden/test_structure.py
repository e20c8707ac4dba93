from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from harness.golden.model import Structure
from harness.golden.structure import (
    across_buckets,
    alias_map,
    facts,
    ledger_map,
    overlapping,
    span_map,
    words,
)
from harness.observation import LeafFact, LedgerEntry, Span


def leaf(step: int, name: str, start: int, stop: int, *, bucket: int = 4, region: int = 0) -> LeafFact:
    return LeafFact(step, bucket, name, "int32", ((stop - start) // 4,), (1,), region, start, stop)


def test_ledger_by_step_adds_entries_of_one_leaf() -> None:
    ledger = [LedgerEntry(2, "b", 1), LedgerEntry(0, "a", 2), LedgerEntry(0, "a", 1)]
    assert ledger_map(ledger, 3) == {"a": [3, 0, 0], "b": [0, 0, 1]}


def test_a_step_beyond_the_case_makes_a_longer_row() -> None:
    assert ledger_map([LedgerEntry(3, "a", 1)], 2) == {"a": [0, 0, 0, 1]}


def test_spans_count_all_steps_first_and_keep_empty_ones_apart() -> None:
    spans = [Span("precompute", -1, 5), Span("copy", 1, 2), Span("copy", 1, 0)]
    assert span_map(spans, 2) == {
        "copy": [0, 0, 1], "copy (wrote nothing)": [0, 0, 1], "precompute": [1, 0, 0]
    }  # fmt: skip


def test_shared_steps_point_at_step_0() -> None:
    leaves = [leaf(step, "a", 0, 16) for step in range(3)]
    assert alias_map(leaves, 4, 3) == {"a": ["own", "@0", "@0"]}


def test_disjoint_steps_own_their_leaves() -> None:
    leaves = [leaf(step, "a", 16 * step, 16 * step + 16) for step in range(3)]
    assert alias_map(leaves, 4, 3) == {"a": ["own", "own", "own"]}


def test_same_interval_of_another_region_is_not_shared() -> None:
    assert alias_map([leaf(0, "a", 0, 16), leaf(1, "a", 0, 16, region=1)], 4, 2) == {"a": ["own", "own"]}


def test_a_view_names_the_leaf_it_lies_in() -> None:
    leaves = [leaf(step, name, 32 * step, 32 * step + 16) for step in (0, 1) for name in ("view", "lengths")]
    assert alias_map(leaves, 4, 2) == {"lengths": ["own", "own"], "view": ["lengths@0", "lengths@1"]}


def test_a_step_without_the_leaf_and_empty_leaves() -> None:
    leaves = [leaf(1, "a", 0, 16), leaf(0, "empty", 0, 0), leaf(1, "empty", 0, 0)]
    assert alias_map(leaves, 4, 2) == {"a": ["-", "own"], "empty": ["own", "own"]}


def test_slices_of_one_state_buffer_are_tied_together() -> None:
    buffer = leaf(0, "table", 0, 64, bucket=0)
    leaves = [buffer, leaf(0, "page_table_1", 0, 16), leaf(1, "page_table_1", 32, 48)]
    assert alias_map(leaves, 4, 2) == {
        "page_table_1": ["own", "@0"], "state.table": ["page_table_1@0", "-"]
    }  # fmt: skip


def test_leaves_of_other_buckets_are_not_in_the_alias_map() -> None:
    leaves = [
        leaf(0, "a", 0, 16),
        leaf(0, "a", 0, 8, bucket=2),
        leaf(0, "b", 16, 32),
        leaf(0, "b", 32, 40, bucket=2),
    ]
    assert alias_map(leaves, 4, 1) == {"a": ["own"], "b": ["own"]}
    assert across_buckets(leaves, 4) == ["a"]
    assert across_buckets(leaves[::2], 4) is None


intervals = st.tuples(st.integers(0, 2), st.integers(0, 40), st.integers(0, 12))


@given(st.lists(intervals, max_size=12))
def test_groups_are_the_connected_components(parts: list[tuple[int, int, int]]) -> None:
    leaves = [leaf(0, str(i), a, a + n, region=r) for i, (r, a, n) in enumerate(parts)]

    def touch(one: LeafFact, other: LeafFact) -> bool:
        return one.region == other.region and max(one.start, other.start) < min(one.stop, other.stop)

    groups = overlapping(leaves)
    assert sorted(leaf.name for group in groups for leaf in group) == sorted(leaf.name for leaf in leaves)
    number = {leaf.name: i for i, group in enumerate(groups) for leaf in group}
    for one in leaves:
        for other in leaves:
            assert not touch(one, other) or number[one.name] == number[other.name]
    for group in groups:
        reached, frontier = {group[0].name}, [group[0]]
        while frontier:
            now = frontier.pop()
            near = [leaf for leaf in group if leaf.name not in reached and touch(leaf, now)]
            reached.update(leaf.name for leaf in near)
            frontier += near
        assert len(reached) == len(group)


def make(**changes: object) -> Structure:
    parts: dict[str, object] = {
        "ledger": {"a": [1, 0], "b": [1, 1]},
        "spans": {"precompute": [1, 0, 0]},
        "capture_ledger": {},
        "capture_spans": {},
        "alias": {"a": ["own", "@0"]},
        "across": ["a"],
    }
    return Structure(**{**parts, **changes})  # type: ignore[arg-type]


def test_equal_structures_have_no_words() -> None:
    assert words(make(), make()) == {}
    assert facts(make()) == 4 + 3 + 2 + 1


def test_differences_in_words() -> None:
    other = make(
        ledger={"a": [1, 2], "c": [1, 1]},
        spans={"precompute": [0, 0, 1]},
        alias={"a": ["own", "own"]},
        across=["a", "b"],
    )
    assert words(make(), other) == {
        "refresh ledger": ["a, step 1: 0 -> 2", "b: [1, 1] is gone", "c: [1, 1] is new"],
        "spans": ["precompute, all steps: 1 -> 0", "precompute, step 1: 0 -> 1"],
        "alias map": ["a, step 1: @0 -> own"],
        "leaves shared across buckets": ["b is new"],
    }


def test_sharing_across_buckets_is_compared_only_where_both_saw_it() -> None:
    assert words(make(across=None), make()) == {}
    assert words(make(), make(across=None)) == {}
    assert list(words(make(), make(across=[]))) == ["leaves shared across buckets"]
