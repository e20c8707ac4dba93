"""What only the tape shows: freed storage, memory nobody wrote, opaque launches, the ledger beside it."""

from __future__ import annotations

import re
import weakref
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef

from harness.engine.protocol import Graph
from harness.engine.tape import TapeEngine
from harness.engine.tape_memory import UNINITIALISED_INT
from harness.errors import CaptureError, FreedStorageError, HarnessError
from harness.probe.launches import Launch, Written, perform
from harness.probe.ledger import Ledger
from harness.probe.regions import Regions


@pytest.fixture
def engine() -> TapeEngine:
    return TapeEngine()


def replay(engine: TapeEngine, graph: Graph) -> None:
    engine.launch(graph)
    engine.synchronize()


def ints(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def test_a_replay_that_reads_freed_storage_names_operation_and_tensor(engine: TapeEngine) -> None:
    box = {"table": torch.zeros(2, 3, dtype=torch.int32), "rows": ints(1)}
    engine.label({"page_table_1 of step 0": box["table"]})
    graph, out = engine.capture(lambda: (box["rows"] + 1, box["table"].sum(), box["table"].amax())[0])
    replay(engine, graph)
    del box["table"]
    engine.launch(graph)
    out.fill_(-1)
    who, fate = "aten.sum, uses page_table_1 of step 0", "whose storage was freed after the capture"
    with pytest.raises(FreedStorageError, match=f"^replay: node 2 of 3, {re.escape(who)}, {fate}$"):
        engine.synchronize()
    engine.synchronize()  # reported once


def test_unlabelled_storage_is_described(engine: TapeEngine) -> None:
    box = [torch.zeros(2, 3)]
    graph, _ = engine.capture(lambda: box[0] + 1)
    box.clear()
    engine.launch(graph)
    with pytest.raises(FreedStorageError, match=r"uses a tensor \(float32, shape \(2, 3\)\)"):
        engine.synchronize()


def test_storage_that_moved_is_as_good_as_freed(engine: TapeEngine) -> None:
    table, keep = torch.zeros(2), torch.zeros(2)
    graph, _ = engine.capture(lambda: table + keep)
    table.resize_(1 << 20)
    engine.launch(graph)
    with pytest.raises(FreedStorageError, match="was given other memory"):
        engine.synchronize()


def test_a_view_that_dies_does_not_count_as_freed(engine: TapeEngine) -> None:
    table = ints(1, 2, 3)
    graph, out = engine.capture(lambda: table[1:] + 1)
    replay(engine, graph)
    assert out.tolist() == [3, 4]


def test_the_tape_keeps_the_memory_of_others_no_longer_than_they_do(engine: TapeEngine) -> None:
    box = [torch.zeros(1000)]
    storage = StorageWeakRef(box[0].untyped_storage())  # type: ignore[no-untyped-call]
    graph, _ = engine.capture(lambda: box[0] + 1)
    replay(engine, graph)
    assert not storage.expired()  # type: ignore[no-untyped-call]
    box.clear()
    assert storage.expired()  # type: ignore[no-untyped-call]


def test_the_tape_keeps_its_own_memory_after_its_results_are_gone(engine: TapeEngine) -> None:
    x, target = ints(1, 2), ints(0, 0)

    def forward() -> None:
        temporary = x + 1
        target.copy_(temporary * 2)

    graph, _ = engine.capture(forward)
    replay(engine, graph)
    assert target.tolist() == [4, 6]
    held = weakref.ref(graph)
    del graph
    assert held() is None


def test_results_are_junk_until_the_first_replay(engine: TapeEngine) -> None:
    x = ints(1)
    graph, (number, real, half, flag, constant) = engine.capture(
        lambda: (x + 1, x / 2, (x / 2).to(torch.float8_e4m3fn), x > 0, torch.tensor(7))
    )
    assert number.tolist() == [UNINITIALISED_INT]
    assert real.isnan().all()
    assert half.float().isnan().all()
    assert flag.all()
    assert constant.item() == 7
    replay(engine, graph)
    assert number.tolist() == [2]


@pytest.mark.parametrize(
    ("make", "junk"),
    [
        (lambda x: torch.empty(4, dtype=torch.int32), UNINITIALISED_INT),
        (torch.empty_like, UNINITIALISED_INT),
        (lambda x: x.new_empty(4, dtype=torch.int64), UNINITIALISED_INT),
        (lambda x: torch.empty(4, dtype=torch.int16), UNINITIALISED_INT & 0x7FFF),
        (lambda x: torch.empty(4, dtype=torch.uint8), 0x5A),
        (
            lambda x: torch.empty_strided((2, 2), (1, 2), dtype=torch.int32).as_strided((4,), (1,)),
            UNINITIALISED_INT,
        ),
    ],
)
def test_reads_of_memory_that_nobody_wrote_show(
    engine: TapeEngine, make: Callable[[torch.Tensor], torch.Tensor], junk: int
) -> None:
    x = ints(1, 2, 3, 4)

    def forward() -> torch.Tensor:
        buffer = make(x)
        buffer[:3].copy_(x[:3])
        return buffer + 0

    graph, out = engine.capture(forward)
    for _ in range(2):
        replay(engine, graph)
        assert out.tolist() == [1, 2, 3, junk]


def test_memory_that_nobody_wrote_is_junk_during_the_capture_too(engine: TapeEngine) -> None:
    seen: list[list[int]] = []

    def forward() -> None:
        buffer = torch.empty(2, dtype=torch.int32)

        def peek() -> tuple[Written, ...]:
            seen.append(buffer.tolist())
            return ()

        perform(Launch("peek", peek, (buffer,)))

    engine.capture(forward)
    assert seen[1] == [UNINITIALISED_INT] * 2


def test_allocations_and_views_are_no_nodes(engine: TapeEngine) -> None:
    x = torch.zeros(4, 6)

    def forward() -> torch.Tensor:
        torch.empty(5)
        return x.view(-1)[3:].unsqueeze(0).expand(2, -1).t()

    graph, _ = engine.capture(forward)
    assert graph.nodes() == 0


def test_python_values_become_constants_of_the_graph(engine: TapeEngine) -> None:
    x = ints(0, 0, 0)

    def forward() -> torch.Tensor:
        x[1:3] = 5
        return x + torch.tensor([1, 2, 3], dtype=torch.int32) + torch.tensor(10)

    graph, out = engine.capture(forward)
    for _ in range(2):
        x.zero_()
        replay(engine, graph)
        assert out.tolist() == [11, 17, 18]


def test_lists_and_out_arguments(engine: TapeEngine) -> None:
    sources = [ints(1, 2), ints(3)]
    targets = [ints(0, 0), ints(0)]
    total = ints(0, 0)
    grown = torch.empty(0, dtype=torch.int32)

    def forward() -> list[torch.Tensor]:
        torch._foreach_copy_(targets, sources)
        torch.cumsum(sources[0], 0, out=total)
        torch.add(sources[0], 1, out=grown)
        return list(torch._foreach_add(sources, 10)) + list(torch.split(sources[0], 1))

    graph, out = engine.capture(forward)
    sources[0].copy_(ints(5, 6))
    sources[1].fill_(7)
    replay(engine, graph)
    assert [t.tolist() for t in targets] == [[5, 6], [7]]
    assert total.tolist() == [5, 11]
    assert grown.tolist() == [6, 7]
    assert [t.tolist() for t in out] == [[15, 16], [17], [5], [6]]


def test_later_changes_of_geometry_do_not_reach_recorded_nodes(engine: TapeEngine) -> None:
    x = ints(1, 2)

    def forward() -> torch.Tensor:
        y = x + 1
        z = y * 2
        y.unsqueeze_(0)
        return y + z

    graph, out = engine.capture(forward)
    x.fill_(5)
    replay(engine, graph)
    assert out.tolist() == [[18, 18]]


class Fused:
    """A kernel outside the dispatcher: doubles `source` into the first elements of `target` through NumPy."""

    def __init__(self, source: torch.Tensor, target: torch.Tensor) -> None:
        self.runs = 0
        self.launch = Launch("double", lambda: self._run(source, target), (source, target))

    def _run(self, source: torch.Tensor, target: torch.Tensor) -> tuple[Written, ...]:
        self.runs += 1
        values = np.array(source.tolist(), np.int32)  # a host read, legal inside a kernel
        target.numpy()[: len(values)] = 2 * values
        return (Written(target, torch.arange(len(values))),)


def test_launches_are_opaque_nodes(engine: TapeEngine) -> None:
    source, target = ints(1, 2), ints(0, 0, 9)
    kernel = Fused(source, target)

    def forward() -> torch.Tensor:
        perform(kernel.launch)
        return target + 1

    graph, out = engine.capture(forward)
    assert (kernel.runs, graph.nodes()) == (2, 2)
    source.copy_(ints(5, 6))
    replay(engine, graph)
    assert kernel.runs == 3
    assert out.tolist() == [11, 13, 10]


def test_a_capture_undoes_what_its_launches_wrote(engine: TapeEngine) -> None:
    source, target = ints(1), ints(0)
    calls: list[int] = []

    def forward() -> None:
        calls.append(1)
        if len(calls) == 2:
            source.fill_(100)
            perform(Fused(source, target).launch)

    engine.capture(forward)
    assert (source.tolist(), target.tolist()) == ([1], [0])


def test_a_delayed_replay_goes_before_a_launch(engine: TapeEngine) -> None:
    x, source = ints(1), ints(4)
    graph, out = engine.capture(lambda: x + 0)
    engine.launch(graph, delayed=True)
    with engine.ordering():
        perform(Fused(source, x).launch)
    engine.synchronize()
    assert (out.tolist(), x.tolist()) == ([1], [8])


def test_a_delayed_replay_goes_before_a_host_read(engine: TapeEngine) -> None:
    x = ints(1)
    graph, out = engine.capture(lambda: x + 0)
    out.zero_()
    engine.launch(graph, delayed=True)
    with engine.ordering():
        assert out.tolist() == [1]


def test_a_delayed_replay_stays_pending_without_anything_after_it(engine: TapeEngine) -> None:
    x = ints(1)
    graph, out = engine.capture(lambda: x + 0)
    out.zero_()
    engine.launch(graph, delayed=True)
    with engine.ordering():
        x.view(-1)
        torch.empty(3)
    assert out.numpy()[0] == 0
    engine.synchronize()
    assert out.numpy()[0] == 1


@pytest.mark.parametrize(
    "read",
    [
        lambda t: t.numpy(),
        np.asarray,
        lambda t: t.to("cpu", torch.int64),
        lambda t: t.to(device="cpu"),
        lambda t: f"{t}",
        print,
        lambda t: t.__dlpack__(),
        np.from_dlpack,
    ],
)
def test_host_reads_that_the_dispatcher_never_sees(
    engine: TapeEngine, read: Callable[[torch.Tensor], object]
) -> None:
    x = ints(1)
    with pytest.raises(CaptureError, match="reads device data on the host"):
        engine.capture(lambda: read(x + 1))
    engine.capture(lambda: x + 1)


def test_moving_to_the_engine_device_is_no_host_read(engine: TapeEngine) -> None:
    x = ints(1)
    _, out = engine.capture(lambda: x.to(engine.device) + 0)
    assert out.shape == (1,)


@pytest.mark.parametrize(
    ("run", "reason"),
    [
        (lambda t: t.resize_(5), "another size or storage"),
        (lambda t: t.clone().set_(t), "another size or storage"),
        (lambda t: torch.nonzero(t, out=torch.empty(0, dtype=torch.int64)), "result shape"),
        (torch.bincount, "result shape"),
        (lambda t: torch.rand(3), "random"),
        (lambda t: t.float().normal_(), "random"),
        (lambda t: torch.nn.functional.dropout(t.float(), 0.5), "random"),
        (lambda t: torch.randperm(3), "random"),
    ],
)
def test_refusals_say_why(engine: TapeEngine, run: Callable[[torch.Tensor], object], reason: str) -> None:
    x = ints(1, 2)
    with pytest.raises(CaptureError, match=reason):
        engine.capture(lambda: run(x))


def test_attention_without_dropout_is_not_random(engine: TapeEngine) -> None:
    query = torch.ones(1, 1, 4, 8)
    graph, out = engine.capture(lambda: torch.nn.functional.scaled_dot_product_attention(query, query, query))
    query.fill_(3)
    replay(engine, graph)
    assert out.allclose(query)


def test_a_failing_node_is_reported_once_and_ends_the_queue(engine: TapeEngine) -> None:
    table, row, after = ints(1, 2), torch.tensor([0]), ints(0)
    pick, _ = engine.capture(lambda: table[row])
    count, _ = engine.capture(lambda: after.add_(1))
    after.zero_()
    row.fill_(77)
    engine.launch(pick)
    engine.launch(count)
    with pytest.raises(HarnessError, match=r"^replay: node 1 of 1, aten\.index, failed: IndexError: .*77"):
        engine.synchronize()
    assert after.tolist() == [0]
    replay(engine, count)
    assert after.tolist() == [1]


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("inference", [False, True])
def test_ledger_and_tape_see_the_same_operations(engine: TapeEngine, inside: bool, inference: bool) -> None:
    ledger = Ledger(Regions())
    leaf = torch.zeros(2, 3, dtype=torch.int32)
    source, target = ints(1), ints(0)
    kernel = Fused(source, target)

    def forward() -> None:
        with torch.inference_mode(inference):
            leaf.reshape(-1)[2:].fill_(4)
            perform(kernel.launch)
            leaf.add_(torch.matmul(leaf.float(), torch.ones(3, 3)).to(torch.int32))

    def watched() -> None:
        with ledger:
            forward()

    def cleared() -> None:
        ledger.clear()
        forward()

    if inside:
        graph, _ = engine.capture(watched)
    else:
        with ledger:
            graph, _ = engine.capture(cleared)
    leaves = [(0, "leaf", leaf), (0, "target", target), (0, "source", source)]
    assert {entry.name: entry.writes for entry in ledger.entries(leaves)} == {"leaf": 2, "target": 1}
    leaf.zero_()
    with ledger:
        replay(engine, graph)
    assert ledger.entries(leaves) == ()
    assert leaf.tolist() == [[4, 4, 8], [16, 16, 16]]
