"""vLLM's metadata by hand: every formula on two live requests and a padded row."""

from dataclasses import replace

import numpy as np
import pytest

from harness.fields import Dims, FieldSpec, Padding, Sharing, live_mask
from harness.oracle import schedule
from harness.rounds import Inputs, expand_table
from harness.sut.vllm.specification import (
    SPECIFICATION,
    advance,
    draft_fields,
    expected,
    fields,
    native,
    ring_slots,
)
from harness.types import Drill, Path, Role

from .support import case, models

PAGES = np.array([[0, 0, 0, 0], [9, 4, 7, 8], [11, 12, 13, 14]], np.int32)


def dims_of(path: Path, pool: int, steps: int) -> Dims:
    states = path in (Path.INDEPENDENT, Path.BLOCK_TABLE_REUSE)
    of = case(path, pool, steps=2 if states else 3, bucket=4)
    return replace(Dims.of(of, 4), bucket=3, width=64 * pool * 4, steps=steps)


def inputs(pool: int, lengths: tuple[int, int] = (64, 130)) -> Inputs:
    """Requests 2 and 1, and a padded row."""
    return Inputs(
        bucket=3, live=2, lengths=np.array([*lengths, 0], np.int64), requests=np.array([2, 1, 0], np.int64),
        accepted=np.ones(3, np.int32), table=expand_table(PAGES, 64 * pool),
    )  # fmt: skip


def values(path: Path, pool: int, steps: int, step: int = 0) -> dict[str, list[int]]:
    dims = dims_of(path, pool, steps)
    found = expected(dims, advance(dims, inputs(pool), step))
    return {name: np.asarray(value).reshape(-1).tolist() for name, value in found.items()}


def test_plain_slots_are_block_times_64_plus_the_position_in_it() -> None:
    now = values(Path.MULTI_STEP, 1, 3)
    assert now["main.slot_mapping"] == [11 * 64 + 63, 7 * 64 + 1, -1]
    assert now["indexer.slot_mapping"] == now["main.slot_mapping"]
    later = values(Path.MULTI_STEP, 1, 3, step=1)
    assert later["main.slot_mapping"] == [12 * 64, 7 * 64 + 2, -1]


def test_a_pooled_key_is_stored_with_the_last_token_of_its_pool() -> None:
    assert values(Path.MULTI_STEP, 4, 5)["indexer.slot_mapping"] == [11 * 64 + 15, -1, -1]
    assert values(Path.MULTI_STEP, 4, 5, step=2)["indexer.slot_mapping"] == [-1, 9 * 64 + 32, -1]


def test_a_pooled_slot_of_a_padded_row_grows_on_null_blocks_in_the_graph() -> None:
    slots = [values(Path.FUSED_REPAIRED, 4, 6, step)["indexer.slot_mapping"][2] for step in range(5)]
    assert slots == [0, -1, -1, -1, 0]


@pytest.mark.parametrize(("drafts", "slots"), [(2, 8), (3, 8), (5, 16), (12, 16), (13, 32)])
def test_a_ring_has_room_for_the_drafts_and_an_open_pool(drafts: int, slots: int) -> None:
    assert ring_slots(4, drafts) == slots


def test_tail_slots_lie_in_the_requests_ring_whatever_step_it_is() -> None:
    first, later = values(Path.FUSED_REPAIRED, 4, 3), values(Path.FUSED_REPAIRED, 4, 3, step=1)
    assert first["tail.slot_mapping"] == [11 * 8 + 63 % 8, 9 * 8 + 129 % 8, -1]
    assert later["tail.slot_mapping"] == [11 * 8 + 64 % 8, 9 * 8 + 130 % 8, -1]


def test_padded_rows_are_as_their_policy_says() -> None:
    built, fused = values(Path.MULTI_STEP, 4, 3, 1), values(Path.FUSED_REPAIRED, 4, 3, 1)
    assert built["indexer.decode.decode_lens"] == [1, 1, 0]
    assert fused["indexer.decode.decode_lens"] == [1, 1, 1]
    assert built["main.req_id_per_token"] == [0, 1, 0]
    assert fused["main.req_id_per_token"] == [0, 1, 2]
    assert built["main.seq_lens"] == fused["main.seq_lens"] == [65, 131, 1]


def test_context_lengths_of_padded_rows_depend_on_layout_and_path() -> None:
    flattened = values(Path.MULTI_STEP, 1, 5, 2), values(Path.FUSED_MULTI_STEP, 1, 5, 2)
    assert [found["indexer.decode.seq_lens"] for found in flattened] == [[66, 132, 0], [66, 132, 2]]
    together = values(Path.MULTI_STEP, 1, 3, 1)["indexer.decode.seq_lens"]
    assert together == [65, 131, 1]
    dims = dims_of(Path.MULTI_STEP, 1, 3)
    wanted = schedule(np.array(together), dims.num_sms).reshape(-1).tolist()
    assert values(Path.MULTI_STEP, 1, 3, 1)["indexer.decode.schedule_metadata"] == wanted


def test_lengths_stop_at_the_longest_that_the_model_takes() -> None:
    dims = dims_of(Path.MULTI_STEP, 1, 5)
    near = inputs(1, (dims.width - 1, 3))
    assert [advance(dims, near, step).lengths.tolist() for step in (1, 2)] == [[256, 4, 1], [256, 5, 2]]
    last = expected(dims, advance(dims, near, 2))
    assert np.asarray(last["main.slot_mapping"]).tolist()[0] == 14 * 64 + 63


def test_layout_follows_from_the_drafts() -> None:
    assert [steps for steps in range(1, 8) if native(dims_of_steps(steps))] == [1, 3]


def dims_of_steps(steps: int) -> Dims:
    return replace(dims_of(Path.MULTI_STEP, 1, 3), steps=steps)


@pytest.mark.parametrize("pool", [1, 4])
@pytest.mark.parametrize("path", list(SPECIFICATION.ordinary))
def test_every_field_has_a_value_of_its_shape(path: Path, pool: int) -> None:
    dims = dims_of(path, pool, 2)
    found = expected(dims, inputs(pool))
    for field in fields(dims):
        assert np.asarray(found[field.name]).size == np.prod(field.shape(dims)), field.name


def test_staged_leaves_are_views_of_the_runners_buffers() -> None:
    together = draft_fields(dims_of(Path.MULTI_STEP, 4, 3))
    by_name: dict[str, FieldSpec] = {field.name: field for field in together}
    staged = {name for name, field in by_name.items() if field.role is Role.STAGED}
    assert "indexer.decode.block_table" in staged
    assert all(by_name[name].view_of for name in staged)
    flattened = {field.name: field for field in draft_fields(dims_of(Path.MULTI_STEP, 4, 5))}
    copied = flattened["indexer.decode.block_table"]
    assert copied.role is Role.REFRESHED
    assert copied.sharing(dims_of(Path.MULTI_STEP, 4, 5)) is Sharing.BUCKET_SLICE


def test_padded_positions_are_never_compared() -> None:
    dims = dims_of(Path.MULTI_STEP, 4, 3)
    field = next(field for field in draft_fields(dims) if field.name == "tail.positions")
    assert field.padding is Padding.FREE
    mask = live_mask(field, dims, inputs(4))
    assert mask is not None
    assert mask.tolist() == [True, True, False]


def test_the_matrix_takes_the_models_that_are_for_vllm_alone() -> None:
    own = [model.name for model in models().values() if "vllm" in model.systems]
    assert own == ["vllm-p1", "vllm-p4"]
    assert case(drill=Drill.PADDED).backends == 2
