"""Bytes owned: unions of intervals, shared bytes once, counters left out."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from harness.fields import COUNTER
from harness.measures import covered_bytes, owned_bytes
from harness.observation import LeafFact, Walk
from harness.types import Kernel, Path
from tests.faulty import Bends, bent_subject
from tests.helpers import make_case, make_program, tiny_model

INTERVALS = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 60), st.integers(0, 20)), max_size=12)


def leaf(region: int, start: int, size: int, name: str = "x") -> LeafFact:
    return LeafFact(0, 4, name, "uint8", (size,), (1,), region, start, start + size)


@given(INTERVALS)
def test_the_union_is_that_of_the_bytes(intervals: list[tuple[int, int, int]]) -> None:
    walk = Walk(tuple(leaf(*interval) for interval in intervals), (), ())
    taken = {(region, byte) for region, start, size in intervals for byte in range(start, start + size)}
    assert covered_bytes(walk) == len(taken)


def test_counters_do_not_count() -> None:
    assert covered_bytes(Walk((leaf(0, 0, 9, COUNTER), leaf(1, 0, 5)), (), ())) == 5


def test_sharing_owns_one_step_and_the_others_nothing() -> None:
    model = tiny_model()
    program = make_program(model, 4, (((65, 257, 900, 13), (3, 1, 4, 2)), ((600, 700, 10), (5, 6, 7))))
    owned = {
        path: owned_bytes(
            bent_subject(
                make_case(model, path=path, steps=5, kernel=Kernel.TRTLLM), program, Bends()
            ).observation
        )
        for path in (Path.INDEPENDENT, Path.SHARED)
    }
    assert owned[Path.SHARED] * 4 == owned[Path.INDEPENDENT]
