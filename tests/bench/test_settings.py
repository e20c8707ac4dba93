"""Points, lengths and inputs of `bench gpu`."""

from __future__ import annotations

from pathlib import Path as FilePath

import numpy as np
import pytest

from harness.bench.settings import (
    FEW,
    SWEPT_BUCKETS,
    SWEPT_STEPS,
    SWEPT_WIDTHS,
    Point,
    case_at,
    inputs_at,
    models_of,
    points,
    sweeps,
)
from harness.errors import UsageError
from harness.types import Mode, Path

CASES = FilePath(__file__).parent.parent.parent / "cases"
POOLED = models_of(CASES, ["glm-5.3-flash"])
BOTH = models_of(CASES, ["glm-5.3-flash", "glm-5.3"])


def test_one_model_for_each_pool_size_unless_named() -> None:
    assert sorted(model.index_kpool for model in models_of(CASES, []).values()) == [1, 4]
    assert list(BOTH) == ["glm-5.3-flash", "glm-5.3"]
    with pytest.raises(UsageError, match=r"no model is called 'nope'; there are .*tiny"):
        models_of(CASES, ["nope"])


def test_fusion_that_does_not_apply_makes_no_point_of_its_own() -> None:
    chosen = points(list(BOTH.values()), [True, False], [5], [4], [131072])
    assert [(point.pool, point.fusion) for point in chosen] == [(4, True), (4, False), (1, False)]


def test_sweeps_go_through_a_point_one_size_at_a_time() -> None:
    (first,) = points(list(POOLED.values()), [True], [5], [4], [131072])
    chosen = (first, *sweeps(first))
    assert len(chosen) == len(set(chosen))
    for name, values in (("steps", SWEPT_STEPS), ("bucket", SWEPT_BUCKETS), ("width", SWEPT_WIDTHS)):
        others = [other for other in ("steps", "bucket", "width") if other != name]
        alike = [p for p in chosen if all(getattr(p, o) == getattr(first, o) for o in others)]
        assert {getattr(point, name) for point in alike} >= set(values)


def test_a_width_that_is_no_multiple_of_a_page_is_refused() -> None:
    with pytest.raises(UsageError, match=r"--width 64 is not a multiple of 256, glm-5\.3-flash's page"):
        points(list(POOLED.values()), [True], [5], [4], [64])


@pytest.mark.parametrize("bucket", [1, 4, 7, 32])
@pytest.mark.parametrize("width", [1024, 131072, 1048576])
def test_lengths_fit_the_table_and_scale_with_it(bucket: int, width: int) -> None:
    lengths = Point("tiny", 4, True, 5, bucket, width).lengths()
    assert len(lengths) == bucket
    assert all(1 <= length <= width for length in lengths)
    assert max(lengths) > width // 128
    if (bucket, width) == (4, 131072):
        assert lengths == FEW


def test_a_case_has_just_this_bucket_width_and_depth() -> None:
    point = Point("glm-5.3-flash", 4, True, 8, 3, 2048)
    case = case_at(point, POOLED[point.model], "embedded", Path.SHARED)
    assert (case.backends, case.bucket, case.model.buckets, case.geometry.width) == (7, 3, (3,), 2048)
    assert case.mode is Mode.DECODE
    assert case.fusion_in_force
    inputs = inputs_at(case, (5, 700, 2048))
    assert inputs.table.shape == (4, 2048)
    used = inputs.table[inputs.requests]
    firsts = used[:, ::256] // 256
    live = [row[: -(-length // 256)] for row, length in zip(firsts, inputs.lengths, strict=True)]
    assert len(np.unique(np.concatenate(live))) == sum(map(len, live))
    assert sorted(inputs.requests.tolist()) == [1, 2, 3]
