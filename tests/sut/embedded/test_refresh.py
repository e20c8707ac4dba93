"""Every path leaves every live element as the oracle has it, its declared fault excepted."""

from __future__ import annotations

import pytest

from harness.case import Case
from harness.fields import Dims, fields_for
from harness.sut.embedded.metadata import named_leaves
from harness.types import Kernel, Mode, Path
from tests.helpers import make_case, tiny_model
from tests.sut.embedded.support import (
    PATHS,
    built,
    known_stale,
    random_inputs,
    reference_values,
    refreshed,
    wrong_leaves,
)

ROUNDS = ((4, 4, 1), (8, 5, 2), (4, 3, 3))
"""(bucket, live, seed): another bucket in between, live batch below the bucket."""


def faults(case: Case) -> dict[tuple[int, int], set[str]]:
    """Refresh some rounds; return wrong leaves by (round, step)."""
    sut = built(case, buckets=(8, 4))
    found = {}
    for index, (bucket, live, seed) in enumerate(ROUNDS):
        inputs = random_inputs(case, bucket, live, seed)
        refreshed(sut, inputs)
        right = reference_values(case, inputs, sut)
        for step, root in enumerate(sut.roots()):
            leaves = dict(named_leaves(root.metadata[bucket]))
            assert leaves.keys() == fields_for(Dims.of(case, bucket)).keys()
            found[index, step] = wrong_leaves(case, inputs, leaves, right)
    return found


@pytest.mark.parametrize(
    ("pool", "fusion", "steps"),
    [(1, False, 2), (1, False, 3), (1, False, 5), (4, True, 2), (4, False, 4), (4, True, 4), (4, True, 6)],
)
@pytest.mark.parametrize("path", PATHS)
def test_decode_equals_the_oracle(path: Path, pool: int, fusion: bool, steps: int) -> None:
    case = make_case(tiny_model(pool), path=path, fusion=fusion, steps=steps)
    for (index, step), wrong in faults(case).items():
        bucket = ROUNDS[index][0]
        assert wrong == known_stale(case, step, Dims.of(case, bucket)), (index, step)


@pytest.mark.parametrize("mode", [Mode.TARGET_VERIFY, Mode.DRAFT_EXTEND])
@pytest.mark.parametrize(("pool", "fusion"), [(1, False), (4, False), (4, True)])
@pytest.mark.parametrize("path", PATHS)
def test_single_backends_equal_the_oracle(path: Path, pool: int, fusion: bool, mode: Mode) -> None:
    case = make_case(tiny_model(pool), path=path, fusion=fusion, mode=mode)
    assert set().union(*faults(case).values()) == set()


@pytest.mark.parametrize("mode", list(Mode))
@pytest.mark.parametrize("path", PATHS)
def test_flashmla_leaves_follow_the_planner(path: Path, mode: Mode) -> None:
    case = make_case(tiny_model(1), path=path, mode=mode, kernel=Kernel.FLASHMLA_KV)
    for (_, step), wrong in faults(case).items():
        assert not {name for name in wrong if name.startswith("flashmla")}, step


@pytest.mark.parametrize("steps", [4, 5, 6])
def test_multi_destination_copy_is_right_again_at_the_captured_lengths(steps: int) -> None:
    case = make_case(tiny_model(1), path=Path.MULTI_DESTINATION_COPY, steps=steps)
    sut = built(case, seed=9)
    inputs = random_inputs(case, 4, 4, 9)
    refreshed(sut, inputs)
    right = reference_values(case, inputs, sut)
    for root in sut.roots():
        assert wrong_leaves(case, inputs, dict(named_leaves(root.metadata[4])), right) == set()
