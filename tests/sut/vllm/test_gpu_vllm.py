"""On a GPU: vLLM's own loops under CUDA graphs, its released update, and the repaired one.

Run by itself, with the site of the GPU's Python ahead: `pytest -m gpu tests/sut/vllm` (docs/vllm.md).
"""

import pytest

from harness.findings import Verdict
from harness.sut.vllm import minimal
from harness.types import Drill, EngineKind, Path

from .support import CUDA, case, loaded, verified

pytestmark = [pytest.mark.gpu, pytest.mark.vllm]

ENGINE = EngineKind.CUDA_GRAPH


@pytest.mark.parametrize("pool", [1, 4])
@pytest.mark.parametrize("steps", [2, 3, 5])
@pytest.mark.parametrize("path", [Path.MULTI_STEP, Path.FUSED_REPAIRED])
def test_the_ordinary_and_the_repaired_loop_are_clean(path: Path, pool: int, steps: int) -> None:
    result = verified(case(path, pool, steps=steps, drill=Drill.PADDED, engine=ENGINE))
    assert result.findings == ()
    assert result.elements > 1000


@pytest.mark.parametrize("steps", [2, 3, 5])
def test_the_released_update_shows_the_known_finding_and_nothing_else(steps: int) -> None:
    result = verified(case(Path.FUSED_MULTI_STEP, steps=steps, drill=Drill.REPEAT, engine=ENGINE))
    assert result.verdict is Verdict.KNOWN


def test_the_reused_block_table_is_right() -> None:
    assert verified(case(Path.BLOCK_TABLE_REUSE, steps=2, engine=ENGINE)).findings == ()


def test_without_probes_the_graph_reads_what_the_capture_wrote_and_the_repaired_one_does_not() -> None:
    loaded(CUDA)
    assert not any(one.right for one in minimal.observe(case(Path.FUSED_MULTI_STEP, bucket=4, engine=ENGINE)))
    assert all(one.right for one in minimal.observe(case(bucket=4, engine=ENGINE)))
