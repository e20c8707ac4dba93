"""Leaves that hold other values than a refresh gives them."""

import torch

from harness.faults.geometry import P1, at
from harness.faults.mechanisms import formulas, keys, rules
from harness.faults.mechanisms.values import Rewritten, Rule
from harness.faults.mechanisms.when import ALWAYS, Nth, When
from harness.probe.ledger import Ledger
from harness.types import Path
from tests.faults.support import LENGTHS, Hand, inputs_of, right

LENGTH, SCHEDULE, PLAN = "cache_seqlens_int32", "paged_mqa_schedule_metadata", "topk_v2_plan"
OTHER = (1000, 300, 70, 5)


def rewritten(
    rule: Rule, leaf: str = LENGTH, steps: tuple[int, ...] | None = None, when: When = ALWAYS
) -> Rewritten:
    return Rewritten((leaf,), rule, "test", steps, when)


def test_a_value_is_kept_until_its_key_changes() -> None:
    hand = Hand(rewritten(rules.kept(keys.longest)))
    hand.round((900, 300, 70, 5))
    hand.round((900, 310, 80, 6))
    assert hand.value(LENGTH) == [900, 300, 70, 5]
    hand.round((901, 310, 80, 6))
    assert hand.value(LENGTH) == [901, 310, 80, 6]


def test_what_is_kept_is_kept_for_each_bucket() -> None:
    hand = Hand(rewritten(rules.kept(keys.longest)))
    hand.round((900, 300, 70, 5))
    hand.round((900, 8), bucket=2)
    assert hand.value(LENGTH, bucket=2) == [900, 8]
    hand.round((900, 1, 1, 1))
    assert hand.value(LENGTH) == [900, 300, 70, 5]


def test_rows_are_kept_each_by_its_own_key() -> None:
    length = rules.kept_rows(lambda inputs, row: int(inputs.lengths[row]) // 100)
    hand = Hand(rewritten(length))
    hand.round((900, 300, 70, 5))
    hand.round((950, 450, 71))
    assert hand.value(LENGTH) == [900, 450, 70, 1]


def test_rows_are_kept_by_request_across_buckets() -> None:
    hand = Hand(rewritten(rules.kept_rows(keys.row_request, by_request=True)))
    hand.round((600, 8), bucket=2)
    hand.round(LENGTHS)
    assert hand.value(LENGTH) == [600, 8, 70, 5]


def test_columns_are_made_anew_as_far_as_the_round_before_reached() -> None:
    hand = Hand(rewritten(rules.up_to_the_longest_before, "real_page_table"), at(model=P1))
    hand.round((100, 90, 80, 5), 1)
    first = hand.leaf("real_page_table").clone()
    hand.round(LENGTHS, 2)
    table = hand.leaf("real_page_table")
    assert torch.equal(table[:, 2:], first[:, 2:])
    assert not torch.equal(table[:, :2], first[:, :2])
    hand.round(LENGTHS, 2)
    now = torch.tensor(right("real_page_table", LENGTHS, 2, at(model=P1)))
    assert torch.equal(hand.leaf("real_page_table")[:, :15], now[:, :15].int())


def test_the_captured_value_comes_back() -> None:
    hand = Hand(rewritten(rules.captured))
    hand.round()
    assert hand.value(LENGTH) == [20, 20, 20, 20]


def test_a_late_value_is_the_one_of_the_refresh_before() -> None:
    hand = Hand(rewritten(rules.late))
    hand.round(LENGTHS)
    hand.round(OTHER)
    assert hand.value(LENGTH) == list(LENGTHS)
    hand.round(LENGTHS)
    assert hand.value(LENGTH) == list(OTHER)


def test_what_is_not_written_keeps_what_was_there() -> None:
    hand = Hand(rewritten(rules.unwritten))
    hand.leaf(LENGTH).fill_(-7)
    hand.round()
    assert hand.value(LENGTH) == [-7] * 4


def test_partial_rows() -> None:
    hand = Hand(rewritten(rules.partial(rules.live_rows)))
    hand.leaf(LENGTH).fill_(-7)
    hand.round((900, 300))
    assert hand.value(LENGTH) == [900, 300, -7, -7]
    hand = Hand(rewritten(rules.partial(rules.first_rows(1))))
    hand.leaf(LENGTH).fill_(-7)
    hand.round()
    assert hand.value(LENGTH) == [900, -7, -7, -7]


def test_partial_columns() -> None:
    hand = Hand(rewritten(rules.first_columns(2), "real_page_table"))
    hand.leaf("real_page_table").fill_(-7)
    hand.round()
    table = hand.leaf("real_page_table")
    assert (table[:, 2:] == -7).all()
    assert (table[0, :2] != -7).all()


def test_rows_can_be_exchanged_and_shifted() -> None:
    for rule, expected in ((rules.rolled(), [5, 900, 300, 70]), (rules.plus(3), [903, 303, 73, 8])):
        hand = Hand(rewritten(rule))
        hand.round()
        assert hand.value(LENGTH) == expected


def test_integers_wrap_at_their_width() -> None:
    hand = Hand(rewritten(rules.wrapped(8)))
    hand.round((127, 128, 255, 256))
    assert hand.value(LENGTH) == [127, -128, -1, 0]


def test_the_other_buckets_value() -> None:
    hand = Hand(rewritten(rules.other_bucket))
    hand.round((600, 8), bucket=2)
    hand.round(LENGTHS)
    assert hand.value(LENGTH) == [*hand.value(LENGTH, bucket=2), 70, 5]


def test_a_formula_is_converted_and_shaped() -> None:
    hand = Hand(rewritten(rules.computed(lambda spot: (spot.fresh.double() / 2).view(4, 1))))
    hand.round()
    assert hand.value(LENGTH) == [450, 150, 35, 2]


def test_host_formulas_agree_with_the_system_where_they_are_right() -> None:
    for formula, leaf in (
        (formulas.schedule(formulas.visible), SCHEDULE),
        (formulas.lengths(lambda spot, lengths: lengths), LENGTH),
        (
            lambda spot: formulas.on(spot, formulas.table_cells(spot, lambda _, flat: flat)),
            "real_page_table",
        ),
    ):
        hand = Hand(rewritten(formula, leaf), at(model=P1))
        hand.round()
        assert hand.value(leaf) == right(leaf, case=at(model=P1))
        assert (hand.trace.reached, hand.trace.changed) == (1, 0)


def test_only_the_chosen_steps_and_refreshes() -> None:
    hand = Hand(rewritten(rules.plus(1), steps=(1,), when=Nth(2)), at(Path.INDEPENDENT))
    hand.round()
    assert hand.value(LENGTH, 1) == list(LENGTHS)
    hand.round()
    assert hand.value(LENGTH, 0) == list(LENGTHS)
    assert hand.value(LENGTH, 1) == [901, 301, 71, 6]
    hand.round()
    assert hand.value(LENGTH, 1) == list(LENGTHS)
    assert (hand.trace.reached, hand.trace.changed) == (1, 1)


def test_a_shared_leaf_is_changed_once() -> None:
    hand = Hand(rewritten(rules.plus(1)))
    hand.round()
    assert hand.value(LENGTH, 1) == [901, 301, 71, 6]


def test_changes_where_nothing_is_defined_are_none() -> None:
    hand = Hand(rewritten(rules.first_columns(1020), "page_table_1"))
    hand.round()
    assert (hand.trace.reached, hand.trace.changed) == (1, 0)
    everything = Rewritten(("page_table_1",), rules.first_columns(1020), "test", everything=True)
    hand = Hand(everything)
    hand.round()
    assert hand.trace.changed == 1


def test_the_ledger_sees_the_systems_own_write_only() -> None:
    written = {}
    for name, rule in (("plain", lambda spot: None), ("changed", rules.plus(1))):
        hand = Hand(rewritten(rule, SCHEDULE))
        ledger = Ledger()
        with ledger:
            hand.round()
        entries = ledger.entries([(0, SCHEDULE, hand.leaf(SCHEDULE))])
        written[name] = [entry.writes for entry in entries]
    assert written == {"plain": [1], "changed": [1]}


def test_inside_a_graph_a_change_is_an_operation() -> None:
    hand = Hand(rewritten(rules.plus(1)), at(Path.SHARED_IN_GRAPH))
    hand.capture()
    hand.sut.stage(inputs_of(hand.case, LENGTHS))
    hand.replay()
    assert hand.value(LENGTH) == [901, 301, 71, 6]
    hand.replay()
    assert hand.value(LENGTH) == [901, 301, 71, 6]
