"""A generation is the same on every path, and it is a generation: tokens vary, requests come and go."""

from __future__ import annotations

import dataclasses

import msgspec
import pytest

from harness.case import Case, Variant
from harness.engine.tape import TapeEngine
from harness.errors import CaseError
from harness.sut.embedded.generation import GenerationTrace, generate
from harness.types import Kernel, Path
from tests.helpers import make_case, tiny_model
from tests.sut.embedded.support import PATHS


def run(case: Case, rounds: int) -> GenerationTrace:
    return generate(case, TapeEngine(), rounds)


@pytest.mark.parametrize(("pool", "fusion"), [(1, False), (4, True)])
def test_every_path_generates_the_same(pool: int, fusion: bool) -> None:
    traces = [
        run(make_case(tiny_model(pool), path=path, fusion=fusion, steps=3, kernel=Kernel.TRTLLM), 8)
        for path in PATHS
    ]
    assert all(trace == traces[0] for trace in traces[1:])
    assert len({tokens for one in traces[0].rounds for tokens in one.drafts}) > 8


def test_sixty_four_rounds_are_the_same_shared_and_independent() -> None:
    shared, independent = (run(make_case(path=path, steps=3), 64) for path in (Path.SHARED, Path.INDEPENDENT))
    assert shared == independent
    assert len(shared.rounds) == 64
    assert 1.3 < shared.mean_accept_length < 4 - 0.5
    lengths = {length for one in shared.rounds for length in one.accept_lengths}
    assert lengths == {1, 2, 3, 4}
    assert shared.finished >= 8
    assert {len(one.requests) for one in shared.rounds} >= {3, 4}


def test_lengths_grow_by_what_was_accepted() -> None:
    trace = run(make_case(path=Path.SHARED, steps=3), 12)
    followed = 0
    for before, after in zip(trace.rounds, trace.rounds[1:], strict=False):
        grown = dict(
            zip(before.requests, zip(before.lengths, before.accept_lengths, strict=True), strict=True)
        )
        for request, length in zip(after.requests, after.lengths, strict=True):
            old, accepted = grown.get(request, (0, 0))
            if old and length >= old:
                assert length == old + accepted
                followed += 1
    assert followed > 20


def test_other_seeds_generate_otherwise() -> None:
    case = make_case(path=Path.SHARED, steps=3)
    assert run(case, 4) != run(dataclasses.replace(case, seed=1), 4)


def test_variants_and_tables_that_cannot_generate_are_refused() -> None:
    case = make_case()
    odd = dataclasses.replace(case, variant=Variant(steps=3, topk=1, draft_tokens=3))
    with pytest.raises(CaseError, match=r"N = S \+ 1"):
        run(odd, 1)
    narrow = dataclasses.replace(case, model=tiny_model(1, width=128))
    with pytest.raises(CaseError, match="width 128"):
        run(narrow, 1)
    geometry = msgspec.structs.replace(case.geometry, requests=3)
    few = msgspec.structs.replace(case.model, geometries={"tape": geometry, "cuda_graph": geometry})
    with pytest.raises(CaseError, match="requests 3"):
        run(dataclasses.replace(case, model=few), 1)
