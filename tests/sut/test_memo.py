import numpy as np
import pytest
import torch

from harness.errors import HarnessError
from harness.sut.memo import Effect, Memory, Part, Trace, effect_of, launch_key


@pytest.fixture(autouse=True)
def _interpreting_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton may be imported here for the first time in this process: as the loader would import it."""
    monkeypatch.setenv("TRITON_INTERPRET", "1")


def address(tensor: torch.Tensor, *elements: int) -> np.ndarray:
    return np.array([tensor.data_ptr() + tensor.element_size() * e for e in elements], np.uint64)


def traced(source: torch.Tensor, target: torch.Tensor) -> Trace:
    """The trace of a kernel that copies elements 1 and 3 of `source` to 0 and 2 of `target`."""
    read = source[torch.tensor([1, 3])]
    target[0], target[2] = read[0], read[1]
    trace = Trace()
    trace.loads.append((address(source, 1, 3), read.numpy().copy()))
    trace.stores.append((address(target, 0, 2), np.dtype(np.int32)))
    return trace


def test_an_effect_holds_for_equal_reads_and_gives_equal_writes() -> None:
    source, target = torch.arange(4, dtype=torch.int64), torch.full((4,), -1, dtype=torch.int32)
    effect = effect_of("copy", traced(source, target), [source, target])
    assert effect.repeatable
    other, fresh = torch.tensor([9, 1, 9, 3]), torch.full((4,), -5, dtype=torch.int32)
    assert effect.holds([other, fresh])
    effect.apply([other, fresh])
    assert fresh.tolist() == [1, -5, 3, -5]
    other[3] = 7
    assert not effect.holds([other, fresh])


def test_written_elements_count_from_the_storage() -> None:
    whole = torch.zeros(10, dtype=torch.int32)
    source, view = torch.arange(4, dtype=torch.int64), whole[4:8]
    effect = effect_of("copy", traced(source, view), [source, view])
    (part,) = effect.writes
    written = part.written([source, view])
    assert written.elements is not None
    assert written.elements.tolist() == [4, 6]


def test_a_store_outside_the_arguments_is_an_error() -> None:
    source, target = torch.arange(4, dtype=torch.int64), torch.zeros(4, dtype=torch.int32)
    with pytest.raises(HarnessError, match="copy stored 2 elements outside"):
        effect_of("copy", traced(source, target), [source])


def test_atomics_and_reads_of_own_stores_are_not_repeatable() -> None:
    source, target = torch.arange(4, dtype=torch.int64), torch.zeros(4, dtype=torch.int32)
    trace = traced(source, target)
    trace.atomic = True
    assert not effect_of("copy", trace, [source, target]).repeatable
    trace = traced(source, target)
    trace.loads.append((address(target, 0), target[:1].numpy().copy()))
    assert not effect_of("copy", trace, [source, target]).repeatable


def test_memory_finds_the_effect_that_read_what_is_there_now() -> None:
    memory = Memory()
    targets = torch.zeros(4, dtype=torch.int32)
    for first in (0, 10):
        source = torch.arange(first, first + 4, dtype=torch.int64)
        memory.keep("k", effect_of("copy", traced(source, targets), [source, targets]))
    source = torch.arange(4, dtype=torch.int64)
    effect = memory.find("k", [source, targets])
    assert effect is not None
    effect.apply([source, targets])
    assert targets.tolist() == [1, 0, 3, 0]
    assert memory.find("k", [source + 1, targets]) is None
    assert memory.find("other kernel", [source, targets]) is None
    assert (memory.hits, memory.misses) == (1, 2)


def test_memory_forgets_the_oldest_beyond_its_limit_and_keeps_nothing_unrepeatable() -> None:
    source, targets = torch.arange(4, dtype=torch.int64), torch.zeros(4, dtype=torch.int32)
    effect = effect_of("copy", traced(source, targets), [source, targets])
    memory = Memory(limit=effect.nbytes)
    memory.keep("first", effect)
    memory.keep("second", effect)
    assert memory.find("first", [source, targets]) is None
    assert memory.find("second", [source, targets]) is effect
    memory.keep("third", Effect(effect.reads, effect.writes, repeatable=False))
    assert memory.find("third", [source, targets]) is None


def test_a_part_lies_where_the_arguments_memory_is() -> None:
    tensor = torch.zeros(6, dtype=torch.int32)
    part = Part(0, np.array([0, 8], np.int64), np.array([1, 2], np.int32))
    assert part.addresses([tensor[2:]]).tolist() == address(tensor, 2, 4).tolist()


def test_keys_tell_scalars_types_grids_and_shared_storage_apart() -> None:
    a, b = torch.zeros(8), torch.zeros(8)
    key = launch_key("kernel", (4,), [a, b, 3])
    assert key == launch_key("kernel", (4,), [b, a, 3])
    assert key != launch_key("kernel", (5,), [a, b, 3])
    assert key != launch_key("kernel", (4,), [a, b, True])
    assert key != launch_key("kernel", (4,), [a, a, 3])
    assert key != launch_key("kernel", (4,), [a, b.to(torch.int32), 3])
    assert launch_key("kernel", (4,), [a, a[2:], 3]) != launch_key("kernel", (4,), [a, a[3:], 3])


def test_memory_keeps_no_more_effects_than_it_may() -> None:
    memory = Memory(most=3)
    for value in range(10):
        target = torch.full((1,), value, dtype=torch.int32)
        part = Part(0, np.zeros(1, np.int64), np.full(1, value, np.int32))
        memory.keep(("kernel", value % 2), Effect((part,), (part,), repeatable=True))
        assert memory.find(("kernel", value % 2), [target]) is not None
    assert memory.find(("kernel", 0), [torch.zeros(1, dtype=torch.int32)]) is None
    assert len(memory._order) == 3
    assert sum(len(effects) for effects in memory._effects.values()) == 3
