"""Captured on the tape: replays of every path give what an eager independent run gives."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch

from harness.case import Case
from harness.engine.tape import TapeEngine
from harness.types import Kernel, Mode, Path
from tests.helpers import make_case, tiny_model
from tests.sut.embedded.support import PATHS, built, eager_results, random_inputs, replayed

MOST_NODES = {1: 50, 4: 85}
"""Operations of one draft step, by P."""


@pytest.mark.parametrize("mode", list(Mode))
@pytest.mark.parametrize(("pool", "fusion", "kernel"), [(1, False, Kernel.TRTLLM), (4, True, Kernel.FA3)])
def test_replays_of_every_path_equal_an_eager_independent_run(
    mode: Mode, pool: int, fusion: bool, kernel: Kernel
) -> None:
    def case(path: Path) -> Case:
        return make_case(tiny_model(pool), path=path, fusion=fusion, mode=mode, kernel=kernel)

    right = eager_results(case(Path.INDEPENDENT))
    for path in PATHS:
        for one, other in zip(replayed(case(path), TapeEngine()), right, strict=True):
            assert one.keys() == other.keys()
            assert all(torch.equal(one[name], other[name]) for name in one), path


@pytest.mark.parametrize("pool", [1, 4])
def test_a_draft_step_is_few_operations_and_shared_paths_capture_one_refresh(pool: int) -> None:
    nodes = {}
    for path in (Path.SHARED, Path.SHARED_IN_GRAPH):
        for steps in (3, 4):
            case = make_case(tiny_model(pool), path=path, steps=steps, kernel=Kernel.TRTLLM)
            sut = built(case)
            graph, _ = TapeEngine().capture(partial(sut.forward, 4))
            nodes[path, steps] = graph.nodes()
    per_step = nodes[Path.SHARED, 4] - nodes[Path.SHARED, 3]
    assert per_step <= MOST_NODES[pool]
    refresh = [nodes[Path.SHARED_IN_GRAPH, steps] - nodes[Path.SHARED, steps] for steps in (3, 4)]
    assert refresh[0] == refresh[1] > 0


def test_staging_copies_changed_rows_exactly() -> None:
    case = make_case(path=Path.SHARED)
    sut = built(case)
    tables = [random_inputs(case, 4, 4, seed) for seed in (1, 1, 2)]
    mixed = random_inputs(case, 4, 4, 3)
    mixed.table[[1, 2, 5, 11]] = tables[2].table[[2, 1, 6, 11]]
    for inputs in (*tables, mixed):
        sut.stage(inputs)
        sut.refresh(4)
        metadata = sut.roots()[0].metadata[4]
        assert np.array_equal(metadata.page_table_1.numpy(), inputs.table[inputs.requests])
