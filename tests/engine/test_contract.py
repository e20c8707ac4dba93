"""One contract for both engines. Results exist only after the first replay, so all tests launch first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from harness.engine.cuda_graph import CudaGraphEngine
from harness.engine.protocol import Engine
from harness.engine.tape import TapeEngine
from harness.errors import CaptureError, UsageError

ENGINES: tuple[type[Engine], ...] = (TapeEngine, CudaGraphEngine)
NO_CUDA = "no CUDA device" if not torch.cuda.is_available() else ""


@pytest.fixture(
    params=[
        pytest.param(ENGINES[0], id="tape"),
        pytest.param(
            ENGINES[1],
            id="cuda_graph",
            marks=[pytest.mark.gpu, pytest.mark.skipif(bool(NO_CUDA), reason=NO_CUDA or "has one")],
        ),
    ]
)
def engine(request: pytest.FixtureRequest) -> Engine:
    made: Engine = request.param()
    return made


def replay(engine: Engine, graph: Any) -> None:
    engine.launch(graph)
    engine.synchronize()


def ints(engine: Engine, *values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32, device=engine.device)


def test_inputs_changed_in_place_are_seen(engine: Engine) -> None:
    x = ints(engine, 1, 2, 3)
    graph, out = engine.capture(lambda: x * 2 + 1)
    replay(engine, graph)
    assert out.tolist() == [3, 5, 7]
    x.copy_(ints(engine, 10, 20, 30))
    replay(engine, graph)
    assert out.tolist() == [21, 41, 61]


def test_a_rebound_input_is_not_seen(engine: Engine) -> None:
    box = {"x": ints(engine, 1, 2)}
    kept = box["x"]
    graph, out = engine.capture(lambda: box["x"] + 1)
    box["x"] = ints(engine, 50, 60)
    replay(engine, graph)
    assert out.tolist() == [2, 3]
    assert kept.tolist() == [1, 2]


def test_scalars_are_frozen(engine: Engine) -> None:
    x = ints(engine, 1, 2)
    state = {"factor": 3, "rows": 1}
    graph, out = engine.capture(lambda: x[: state["rows"]] * state["factor"])
    state["factor"], state["rows"] = 100, 2
    replay(engine, graph)
    assert out.tolist() == [3]


def test_branches_are_frozen(engine: Engine) -> None:
    x = ints(engine, 5)
    state = {"long": False}
    graph, out = engine.capture(lambda: x - 1 if state["long"] else x + 1)
    state["long"] = True
    replay(engine, graph)
    assert out.tolist() == [6]


def test_results_keep_their_address(engine: Engine) -> None:
    x = torch.arange(6, dtype=torch.float32, device=engine.device)
    graph, (total, nested) = engine.capture(lambda: (x.cumsum(0), {"sorted": x.sort(descending=True)}))
    addresses = total.data_ptr(), nested["sorted"].indices.data_ptr()
    for factor in (1, -1):
        x.copy_(torch.arange(6, device=engine.device) * factor)
        replay(engine, graph)
        assert torch.equal(total, x.cumsum(0))
        assert torch.equal(nested["sorted"].indices, x.sort(descending=True).indices)
    assert addresses == (total.data_ptr(), nested["sorted"].indices.data_ptr())


def test_warm_up_runs_once_and_the_capture_leaves_no_trace(engine: Engine) -> None:
    calls: list[int] = []
    counter = ints(engine, 0)
    table = torch.zeros(4, 3, dtype=torch.int32, device=engine.device)
    row = torch.tensor([2], device=engine.device)

    def step() -> None:
        calls.append(len(calls))
        counter.add_(1)
        table.index_add_(0, row, table.new_ones(1, 3))

    graph, _ = engine.capture(step)
    engine.synchronize()
    assert len(calls) == 2
    assert counter.tolist() == [1]
    assert table.sum().item() == 3
    replay(engine, graph)
    replay(engine, graph)
    assert len(calls) == 2
    assert counter.tolist() == [3]
    assert table[2].tolist() == [3, 3, 3]


def test_temporaries_and_views_follow(engine: Engine) -> None:
    table = torch.arange(24, dtype=torch.int32, device=engine.device).view(4, 6)
    rows = torch.tensor([3, 1], device=engine.device)
    window = torch.zeros(2, 2, dtype=torch.int32, device=engine.device)

    def gather() -> torch.Tensor:
        picked = table[rows]
        window.copy_(picked[:, 2:4])
        picked[:, 0] = 7
        return torch.cat([picked.reshape(-1), window.flatten()])

    graph, out = engine.capture(gather)
    rows.copy_(torch.tensor([0, 2], device=engine.device))
    table.add_(100)
    replay(engine, graph)
    assert torch.equal(out, gather())


def test_two_graphs_share_a_buffer_in_launch_order(engine: Engine) -> None:
    buffer = ints(engine, 1)
    double, _ = engine.capture(lambda: buffer.mul_(2))
    add, _ = engine.capture(lambda: buffer.add_(3))
    buffer.fill_(1)
    for graph in (double, add, double):
        engine.launch(graph)
    engine.synchronize()
    assert buffer.tolist() == [10]


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
def test_functions_may_bring_their_own_grad_mode(engine: Engine, context: Callable[[], Any]) -> None:
    x = torch.ones(2, 3, device=engine.device)
    weight = torch.nn.Parameter(torch.ones(3, 3, device=engine.device))

    def forward() -> torch.Tensor:
        with context():
            return torch.matmul(x, weight).reshape(-1).to(torch.float64)

    graph, out = engine.capture(forward)
    x.fill_(2)
    replay(engine, graph)
    assert out.tolist() == [6.0] * 6


HOST_READS: dict[str, Callable[[torch.Tensor], object]] = {
    "item": lambda t: t[0].item(),
    "int": lambda t: int(t[0]),
    "float": lambda t: float(t[0]),
    "bool": lambda t: bool(t[0]),
    "branch": lambda t: 1 if (t > 0).all() else 2,
    "index": lambda t: [10, 20, 30][t[0]],
    "tolist": lambda t: t.tolist(),
    "cpu": lambda t: t.cpu(),
    "to cpu": lambda t: t.to("cpu"),
    "equal": lambda t: torch.equal(t, t.clone()),
    "print": repr,
    "contains": lambda t: 2 in t,
}
DATA_SHAPES: dict[str, Callable[[torch.Tensor], object]] = {
    "nonzero": lambda t: t.nonzero(),
    "argwhere": torch.argwhere,
    "where": lambda t: torch.where(t > 1),
    "mask index": lambda t: t[t > 1],
    "masked_select": lambda t: torch.masked_select(t, t > 1),
    "mask assignment of a tensor": lambda t: t.__setitem__(t > 0, t.clone()),
    "mask assignment of a computed value": lambda t: t.__setitem__(t > 0, t.max()),
    "unique": torch.unique,
    "repeat_interleave": lambda t: torch.repeat_interleave(t, t),
}


@pytest.mark.parametrize("inference", [False, True], ids=["grad", "inference"])
@pytest.mark.parametrize("name", [*HOST_READS, *DATA_SHAPES])
def test_what_a_graph_cannot_hold_is_refused_in_one_line(engine: Engine, name: str, inference: bool) -> None:
    x = ints(engine, 1, 2, 2)
    run = (HOST_READS | DATA_SHAPES)[name]

    def forward() -> None:
        with torch.inference_mode(inference):
            run(x + 0)

    with pytest.raises(CaptureError, match=r"^capture: [^\n]+$"):
        engine.capture(forward)
    graph, out = engine.capture(lambda: x + 1)  # the engine is as good as before
    replay(engine, graph)
    assert out.tolist() == [2, 3, 3]
    assert torch.rand(3, device=engine.device).shape == (3,)


def test_a_refusal_that_the_function_swallows_still_fails_the_capture(engine: Engine) -> None:
    x = ints(engine, 1)

    def forgiving() -> torch.Tensor:
        try:
            return x * int(x)
        except (CaptureError, RuntimeError):
            return x * 2

    with pytest.raises(CaptureError):
        engine.capture(forgiving)


def test_other_exceptions_pass_and_leave_the_engine_usable(engine: Engine) -> None:
    x = ints(engine, 1)
    calls: list[int] = []

    def failing() -> torch.Tensor:
        calls.append(1)
        if len(calls) == 2:
            raise KeyError("lost")
        return x + 1

    with pytest.raises(KeyError, match="lost"):
        engine.capture(failing)
    graph, out = engine.capture(lambda: x + 1)
    replay(engine, graph)
    assert out.tolist() == [2]


def test_fixed_shapes_and_lifted_scalars_are_legal(engine: Engine) -> None:
    x = ints(engine, 1, 0, 2)

    def legal() -> tuple[torch.Tensor, ...]:
        y = x.clone()
        y[1:2] = 5
        y[y > 4] = 9
        repeated = torch.repeat_interleave(x.clamp(min=1), torch.ones_like(x), output_size=3)
        return y, repeated, torch.where(x > 0, x, -x), x + (x.data_ptr() == 0)

    graph, out = engine.capture(legal)
    x.copy_(ints(engine, 7, 7, 3))
    replay(engine, graph)
    assert [t.tolist() for t in out] == [[9, 9, 3], [7, 7, 3], [7, 7, 3], [7, 7, 3]]


def test_a_delayed_replay_is_ordered_before_what_follows(engine: Engine) -> None:
    x = ints(engine, 1)
    graph, out = engine.capture(lambda: x + 0)
    engine.launch(graph, delayed=True)
    with engine.ordering():
        x.fill_(2)
    engine.synchronize()
    assert out.tolist() == [1]


def test_a_side_stream_that_waits_comes_after(engine: Engine) -> None:
    x = ints(engine, 1)
    graph, out = engine.capture(lambda: x + 0)
    engine.launch(graph, delayed=True)
    with engine.ordering(), engine.side_stream(wait=True):
        x.fill_(2)
    engine.synchronize()
    assert out.tolist() == [1]


def test_a_side_stream_that_does_not_wait_overtakes(engine: Engine) -> None:
    x = ints(engine, 1)
    graph, out = engine.capture(lambda: x + 0)
    engine.launch(graph, delayed=True)
    with engine.ordering():
        view = x[:1].view(-1)  # no work: orders nothing
        with engine.side_stream(wait=False):
            view.fill_(2)
        assert tuple(view.shape) == (1,)
    engine.synchronize()
    assert out.tolist() == [2], "the write did not overtake the replay: the race cannot be shown"


def test_leaving_a_side_stream_orders_what_follows_after_its_block(engine: Engine) -> None:
    x = ints(engine, 1)
    graph, out = engine.capture(lambda: x + 0)
    engine.launch(graph, delayed=True)
    with engine.ordering():
        with engine.side_stream(wait=False):
            x.fill_(2)
        x.fill_(3)
    engine.synchronize()
    assert out.tolist() == [2]
    assert x.tolist() == [3]


def test_launches_run_in_order_delayed_or_not(engine: Engine) -> None:
    buffer = ints(engine, 1)
    double, _ = engine.capture(lambda: buffer.mul_(2))
    add, _ = engine.capture(lambda: buffer.add_(3))
    buffer.fill_(1)
    engine.launch(double, delayed=True)
    engine.launch(add)
    engine.launch(double, delayed=True)
    engine.synchronize()
    assert buffer.tolist() == [10]


@pytest.mark.parametrize(("wait", "seen"), [(True, 1), (False, 2)])
def test_two_graphs_in_flight_keep_the_order_that_streams_give_them(
    engine: Engine, wait: bool, seen: int
) -> None:
    """As a refresh that is a graph of its own, launched while the one that reads is still held back."""
    planned, plan = ints(engine, 1), ints(engine, 1)
    reads, out = engine.capture(lambda: plan + 0)
    refreshes, _ = engine.capture(lambda: plan.copy_(planned))
    planned.fill_(2)
    plan.fill_(1)
    engine.launch(reads, delayed=True)
    with engine.ordering(), engine.side_stream(wait=wait):
        engine.launch(refreshes)
    engine.synchronize()
    assert (out.item(), plan.item()) == (seen, 2)


@pytest.mark.gpu
@pytest.mark.skipif(bool(NO_CUDA), reason=NO_CUDA or "has one")
@pytest.mark.parametrize("waits", [True, False])
def test_a_host_buffer_is_read_when_the_copy_runs_not_when_it_is_queued(waits: bool) -> None:
    engine = CudaGraphEngine()
    staging = torch.tensor([1], dtype=torch.int32, pin_memory=True)
    lengths = ints(engine, 0)
    held, _ = engine.capture(lambda: lengths + 0)
    engine.launch(held, delayed=True)
    lengths.copy_(staging, non_blocking=True)
    copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
    copied.record()
    if waits:
        copied.synchronize()
    staging.fill_(2)
    engine.synchronize()
    assert lengths.item() == (1 if waits else 2)


def test_a_graph_of_another_engine_is_refused(engine: Engine) -> None:
    class Foreign:
        def nodes(self) -> int:
            return 0

    with pytest.raises(UsageError, match=f"engine {engine.name}: a Foreign"):
        engine.launch(Foreign())


@pytest.mark.skipif(not NO_CUDA, reason="has a CUDA device")
def test_without_a_device_the_cuda_engine_says_what_to_do() -> None:
    with pytest.raises(UsageError, match=r"^engine cuda_graph needs a CUDA device; .*--engine tape$"):
        CudaGraphEngine()


def test_work_that_nothing_orders_is_a_race_on_the_tape() -> None:
    engine = TapeEngine()
    x, staged, other = (ints(engine, 1) for _ in range(3))
    graph, _ = engine.capture(lambda: x + 0)

    def held_back(work: Callable[[], object], *, wait: bool) -> tuple[str, ...]:
        engine.launch(graph, delayed=True)
        with engine.ordering():
            staged.fill_(2)
            with engine.side_stream(wait=wait):
                work()
        engine.synchronize()
        return engine.races()

    (overwrites,) = held_back(lambda: x.fill_(3), wait=False)
    assert "aten.fill_ overwrites, without waiting, memory that a replay in flight uses" in overwrites
    (reads,) = held_back(lambda: other.copy_(staged), wait=False)
    assert "aten.copy_ reads, without waiting, what the current stream has yet to write" in reads
    assert not held_back(lambda: x.copy_(staged), wait=True)
    assert not held_back(lambda: other.fill_(3), wait=False)
    assert not engine.races()


def test_an_old_graph_that_lives_on_does_not_keep_later_pools_in_use(engine: Engine) -> None:
    x = ints(engine, 1)
    kept, _ = engine.capture(lambda: x + 1)
    with pytest.raises(CaptureError):
        engine.capture((x + 1).item)  # the engine takes another pool after a refusal
    for _ in range(3):
        graph, out = engine.capture(lambda: x + 2)
        engine.launch(graph)
        engine.synchronize()
        assert out.tolist() == [int(x[0]) + 2]
        del graph, out
    engine.launch(kept)
    engine.synchronize()
