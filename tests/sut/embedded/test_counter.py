"""The KV counter: only with `trtllm`, sized once, zero between launches, never bound to another buffer."""

from __future__ import annotations

import pytest
import torch

from harness.errors import HarnessError
from harness.fields import COUNTER
from harness.sut.embedded.counter import FIRST_ROWS, HEADS, KVCounter, counter_elements
from harness.types import Kernel, Mode, Path
from tests.helpers import make_case, tiny_model
from tests.sut.embedded.support import built, random_inputs, refreshed

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("rows", "elements"), [(1, 8192 * HEADS), (8192, 8192 * HEADS), (8193, 8193 * HEADS)]
)
def test_declared_size(rows: int, elements: int) -> None:
    counter = KVCounter(CPU)
    counter.size(rows)
    assert counter.buffer.shape == (elements,)
    assert counter_elements(rows) == elements


def test_sizing_twice_is_refused() -> None:
    counter = KVCounter(CPU)
    counter.size(8)
    with pytest.raises(HarnessError, match="sized once"):
        counter.size(9000)


def test_unsized_counter_is_refused() -> None:
    with pytest.raises(HarnessError, match="before init_graph_state"):
        KVCounter(CPU).for_rows(1)


def test_more_rows_than_it_serves_take_a_private_counter() -> None:
    counter = KVCounter(CPU)
    counter.size(8)
    storage = counter.buffer.untyped_storage().data_ptr()
    assert counter.for_rows(FIRST_ROWS).untyped_storage().data_ptr() == storage
    assert counter.for_rows(FIRST_ROWS + 1).untyped_storage().data_ptr() != storage
    assert counter.buffer.untyped_storage().data_ptr() == storage


@pytest.mark.parametrize("kernel", list(Kernel))
def test_counter_exists_with_trtllm_only(kernel: Kernel) -> None:
    for root in built(make_case(tiny_model(1), kernel=kernel)).roots():
        assert (COUNTER in root.state) == (kernel is Kernel.TRTLLM)


@pytest.mark.parametrize("mode", list(Mode))
def test_counter_is_zero_and_in_place_after_forwards_and_eager_calls(mode: Mode) -> None:
    case = make_case(path=Path.SHARED, kernel=Kernel.TRTLLM, mode=mode)
    sut = built(case)
    before = [root.state[COUNTER].data_ptr() for root in sut.roots()]
    sut.eager(2 * FIRST_ROWS)
    assert all(root.active not in root.metadata.values() for root in sut.roots())
    refreshed(sut, random_inputs(case, 4, 4, 3))
    sut.forward(4)
    assert before == [root.state[COUNTER].data_ptr() for root in sut.roots()]
    assert not any(bool(root.state[COUNTER].any()) for root in sut.roots())


def test_a_dirty_counter_spoils_its_row_and_stays_dirty() -> None:
    case = make_case(path=Path.SHARED, kernel=Kernel.TRTLLM)
    sut = built(case)
    refreshed(sut, random_inputs(case, 4, 4, 3))
    clean = sut.forward(4)[0].computed["attention"].clone()
    counter = sut.roots()[0].state[COUNTER]
    counter[2 * HEADS] = 1
    dirty = sut.forward(4)[0].computed["attention"]
    assert [bool((dirty[row] == clean[row]).all()) for row in range(4)] == [True, True, False, True]
    assert int(counter.sum()) == 1
