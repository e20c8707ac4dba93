from __future__ import annotations

import numpy as np
import pytest
import torch

from harness.probe.ledger import Ledger
from harness.probe.poison import Poison, remaining, unattributed
from harness.truth import RoundTruth, Truth
from harness.types import Mode, Role
from tests.helpers import make_case, make_program, tiny_model

GUARD = 999


def round_truth(mode: Mode = Mode.DECODE, bucket: int = 4) -> RoundTruth:
    model = tiny_model()
    lengths = (700, 64, 257, 9)[:bucket]
    program = make_program(model, bucket, ((lengths, (2, 5, 3, 4)[:bucket]),))
    return Truth().of(make_case(model, mode=mode, bucket=bucket), program, program.rounds[0])


def right_leaves(truth: RoundTruth) -> dict[str, torch.Tensor]:
    """Leaves of the right shapes, with the overlaps of decode; values are junk."""
    leaves = {
        name: torch.full(field.shape(truth.dims), -7, dtype=getattr(torch, field.dtype))
        for name, field in truth.fields.items()
    }
    leaves["dsa_seqlens_expanded"] = leaves["cache_seqlens_int32"]
    leaves["paged_mqa_ctx_lens_2d"] = leaves["cache_seqlens_int32"].view(-1, 1)
    return leaves


@pytest.mark.parametrize("salt", [0, 1])
def test_every_refreshed_leaf_is_filled_and_proved(salt: int) -> None:
    truth = round_truth()
    leaves = right_leaves(truth)
    poison = Poison(truth, salt, GUARD)
    facts = {fact.name: fact for fact in poison.apply([leaves])}
    assert all(fact.landed and fact.elements > 0 for fact in facts.values())
    assert {"dsa_seqlens_expanded", "paged_mqa_ctx_lens_2d"}.isdisjoint(facts)
    for name, field in truth.fields.items():
        sentinel = poison.sentinel(0, name)
        if field.role is Role.INIT_ONCE:
            assert sentinel is None
            assert (leaves[name] == -7).all()
        else:
            assert sentinel is not None
            first = 1 if field.init_once_first else 0
            assert (leaves[name][first:] == sentinel).all()
            assert (leaves[name][:first] == -7).all()
            assert not np.any(truth.expected[name].live == sentinel)


def test_shared_steps_are_filled_once_and_own_steps_each() -> None:
    truth = round_truth()
    shared, own = right_leaves(truth), right_leaves(truth)
    poison = Poison(truth, 0, GUARD)
    facts = poison.apply([shared, shared, own])
    assert {fact.step for fact in facts} == {0, 2}
    assert poison.sentinel(1, "page_table_1") == poison.sentinel(0, "page_table_1")


def test_leaves_that_overlap_by_mistake_do_not_land() -> None:
    truth = round_truth()
    leaves = right_leaves(truth)
    joint = torch.zeros(7, dtype=torch.int32)
    leaves["cache_seqlens_int32"], leaves["dsa_cache_seqlens_int32"] = joint[:4], joint[3:]
    facts = {fact.name: fact.landed for fact in Poison(truth, 0, GUARD).apply([leaves])}
    assert not facts["cache_seqlens_int32"]
    assert facts["dsa_cache_seqlens_int32"]


def test_plans_that_no_refresh_writes_are_left_alone() -> None:
    truth = round_truth(bucket=1)
    leaves = right_leaves(truth)
    poison = Poison(truth, 0, GUARD)
    poison.apply([leaves])
    assert poison.sentinel(0, "topk_v2_plan") is None
    assert (leaves["topk_v2_plan"] == -7).all()


def test_bytes_that_change_without_a_ledger_entry_are_found() -> None:
    truth = round_truth()
    leaves = right_leaves(truth)
    poison, ledger = Poison(truth, 0, GUARD), Ledger()
    poison.apply([leaves])
    with ledger:
        leaves["page_table_1"][1:].fill_(3)
        leaves["cu_seqlens_k"][1:].fill_(3)
    assert poison.unattributed(ledger) == ()
    leaves["page_table_1"].numpy()[0, :5] = 3
    leaves["page_table_1"].numpy()[1, :5] = 3
    leaves["kpool_write_plan.req"].numpy()[2] = 3
    assert poison.unattributed(ledger) == ((0, "page_table_1", 20), (0, "kpool_write_plan.req", 8))


def test_poison_keeps_no_leaf_alive() -> None:
    truth = round_truth()
    leaves = right_leaves(truth)
    poison, ledger = Poison(truth, 0, GUARD), Ledger()
    poison.apply([leaves])
    leaves.clear()
    assert poison.unattributed(ledger) == ()


def test_helpers_count_elements_and_bytes() -> None:
    assert remaining(np.array([5, 1, 5]), 5) == 2
    leaf = torch.tensor([0, 5, 1, 2], dtype=torch.int64)
    mask = torch.tensor([False, False, True, False])
    assert unattributed(leaf, 5, mask) == 16
    assert unattributed(leaf, 5, mask, spare_first=True) == 8
