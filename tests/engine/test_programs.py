"""Random programs: a replay on changed inputs leaves what running the program on them leaves."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.engine.tape import TapeEngine

Tensors = list[torch.Tensor]
Operation = Callable[[torch.Tensor, torch.Tensor, int], torch.Tensor]

SIZE = 4
STATE = 3
"""Rows of the persistent table; programs start with its rows as registers."""


def _filled(a: torch.Tensor, b: torch.Tensor, k: int) -> torch.Tensor:
    made = torch.empty_like(a)
    made.copy_(b)
    made[k % SIZE :].fill_(k)
    return made


def _foreach(a: torch.Tensor, b: torch.Tensor, k: int) -> torch.Tensor:
    torch._foreach_copy_([a], [b.clone()])
    torch._foreach_add_([a], k)
    return a


def _assigned(a: torch.Tensor, b: torch.Tensor, k: int) -> torch.Tensor:
    a[k % SIZE :] = k
    return a


OPERATIONS: tuple[Operation, ...] = (
    lambda a, b, k: a + b * k,
    lambda a, b, k: a.cumsum(0) - k,
    lambda a, b, k: torch.where(a > k, a, b),
    lambda a, b, k: a[b.remainder(SIZE)],
    lambda a, b, k: a.view(2, 2).t().reshape(-1) + 0,
    lambda a, b, k: a.view(2, 2).t().contiguous().view(-1),
    lambda a, b, k: torch.cat([a[k % SIZE :], b[: k % SIZE]]),
    lambda a, b, k: a.to(torch.float64).mul(0.5).floor().to(torch.int64),
    lambda a, b, k: torch.sort(a - b).values,
    lambda a, b, k: a + torch.tensor([k, 2, 3, 4]),
    lambda a, b, k: torch.stack([a, b]).sum(0),
    lambda a, b, k: a,
    _filled,
    _foreach,
    lambda a, b, k: a.add_(b),
    lambda a, b, k: a.copy_(b.flip(0)),
    lambda a, b, k: a.index_add_(0, torch.tensor([k % SIZE]), b[:1].clone()),
    lambda a, b, k: a.masked_fill_(b > k, k),
    lambda a, b, k: torch.add(b, k, out=a),
    lambda a, b, k: torch.cumsum(b.clone(), 0, out=a),
    lambda a, b, k: a.scatter_(0, b[:2].remainder(SIZE), k),
    lambda a, b, k: (a[1:3].mul_(k), a)[1],
    _assigned,
)

instructions = st.lists(
    st.tuples(
        st.integers(0, len(OPERATIONS) - 1), st.integers(0, 30), st.integers(0, 30), st.integers(-3, 9)
    ),
    min_size=1,
    max_size=12,
)
tables = st.lists(
    st.lists(st.integers(-50, 50), min_size=SIZE, max_size=SIZE), min_size=STATE, max_size=STATE
)


def execute(table: torch.Tensor, program: Sequence[tuple[int, int, int, int]]) -> Tensors:
    """Run a program on the rows of `table`; every result is a register that later instructions may name."""
    registers = list(table)
    for operation, first, second, scalar in program:
        a, b = registers[first % len(registers)], registers[second % len(registers)]
        registers.append(OPERATIONS[operation](a, b, scalar))
    return registers


@settings(max_examples=150, deadline=None)
@given(instructions, tables, st.lists(tables, min_size=1, max_size=3), st.booleans())
def test_replay_equals_eager_execution(
    program: Sequence[tuple[int, int, int, int]],
    captured: list[list[int]],
    rounds: list[list[list[int]]],
    inference: bool,
) -> None:
    engine = TapeEngine()
    table = torch.tensor(captured)

    def run() -> Tensors:
        with torch.inference_mode(inference):
            return execute(table, program)

    graph, registers = engine.capture(run)
    for values in rounds:
        expected_table = torch.tensor(values)
        expected = execute(expected_table, program)
        table.copy_(torch.tensor(values))
        engine.launch(graph)
        engine.synchronize()
        assert torch.equal(table, expected_table)
        for got, want in zip(registers, expected, strict=True):
            assert torch.equal(got, want)


@settings(max_examples=50, deadline=None)
@given(instructions, tables)
def test_a_capture_leaves_memory_as_its_warm_up_did(
    program: Sequence[tuple[int, int, int, int]], captured: list[list[int]]
) -> None:
    table, once = torch.tensor(captured), torch.tensor(captured)
    TapeEngine().capture(lambda: execute(table, program))
    execute(once, program)
    assert torch.equal(table, once)
