"""Systems as subjects, on a CPU: what they own, what a refresh writes, what is right; turns alternate."""

from __future__ import annotations

from pathlib import Path as FilePath

import pytest

from harness.bench.figures import NOTHING, ONE
from harness.bench.gpu import Request, measure, run
from harness.bench.settings import Effort, Point, case_at, inputs_at, models_of
from harness.bench.subjects import EMBEDDED, FUSED, PATHS, SGLANG, Staging, Subject, embedded
from harness.bench.weigh import bytes_owned, bytes_written, wrong_fields
from harness.case import Model
from harness.engine.tape import TapeEngine
from harness.errors import UsageError
from harness.fields import Dims
from harness.rounds import Inputs
from harness.types import Path
from tests.bench.support import FakeMeter
from tests.sut.embedded.fused_support import need_interpreter

CASES = FilePath(__file__).parent.parent.parent / "cases"
MODELS = models_of(CASES, ["glm-5.3-flash", "glm-5.3"])


def at(model: str, steps: int = 4, bucket: int = 2) -> tuple[Point, Model, Dims, Staging]:
    pool = MODELS[model].index_kpool
    point = Point(model, pool, pool > 1, steps, bucket, 1024)
    case = case_at(point, MODELS[model], EMBEDDED, Path.SHARED)
    inputs = inputs_at(case, point.lengths())
    return point, MODELS[model], Dims.of(case, bucket), Staging(inputs_at(case, [1] * bucket), inputs)


def built(system: str, path: Path, model: str, steps: int = 4) -> tuple[Subject, Dims, Inputs]:
    point, one, dims, staging = at(model, steps)
    return embedded(system, path, point, one, staging, TapeEngine(), FakeMeter()), dims, staging.inputs


@pytest.mark.parametrize("model", list(MODELS))
def test_sharing_owns_one_step_and_every_path_says_what_it_leaves_wrong(model: str) -> None:
    owned, wrong = {}, {}
    for path in PATHS[EMBEDDED]:
        subject, dims, inputs = built(EMBEDDED, path, model)
        subject.refresh()
        owned[path], wrong[path] = bytes_owned(subject), wrong_fields(subject, dims, inputs)
    assert owned[Path.INDEPENDENT] == 3 * owned[Path.SHARED] == 3 * owned[Path.SHARED_IN_GRAPH]
    stale = wrong.pop(Path.MULTI_DESTINATION_COPY)
    assert stale == ("paged_mqa_schedule_metadata",)
    assert set(wrong.values()) == {()}


@pytest.mark.parametrize("model", list(MODELS))
def test_the_fused_refresh_writes_live_columns_only(model: str) -> None:
    need_interpreter()
    written = {}
    for system in (EMBEDDED, FUSED):
        subject, dims, inputs = built(system, Path.SHARED, model)
        written[system] = bytes_written(subject, dims)
        assert wrong_fields(subject, dims, inputs) == ()  # of what was left after weighing
    # The wide table's and the physical pages' dead columns, at four bytes each, and those of pooled pages.
    tokens = sum(dims.width - int(length) for length in inputs.lengths)
    pages = sum(dims.width // 64 - -(-int(length) // 64) for length in inputs.lengths)
    pool = 64 * dims.pool
    pooled = sum(dims.width // pool - -(-int(length) // pool) for length in inputs.lengths)
    dead = 4 * (tokens + pages + (pooled if dims.pool > 1 else 0))
    assert written[EMBEDDED] - written[FUSED] == dead


def test_outside_the_graph_a_refresh_inside_it_only_points() -> None:
    subject, dims, inputs = built(EMBEDDED, Path.SHARED_IN_GRAPH, "glm-5.3")
    subject.eager()
    assert wrong_fields(subject, dims, inputs) != ()
    assert subject.following is not None
    subject.following()
    assert wrong_fields(subject, dims, inputs) == ()


def test_subjects_take_turns_in_alternating_order() -> None:
    point, _, dims, staging = at("glm-5.3")
    meter, calls = FakeMeter(), []

    def subject(name: str) -> Subject:
        real, _, _ = built(EMBEDDED, Path.SHARED, "glm-5.3")

        def refresh() -> None:
            calls.append(name)
            real.refresh()

        return Subject(EMBEDDED, name, refresh, refresh, real.roots)

    subjects = (subject("a"), subject("b"))
    launches = {NOTHING: lambda: None, ONE: lambda: None}
    effort = Effort(rounds=4, host=1, spans=1, gaps=1, warmup=0)
    result = measure(point, dims, staging.inputs, subjects, launches, meter, effort)
    taken = calls[calls.index("b") :]
    turns = [name for index, name in enumerate(taken[-24:]) if index % 3 == 0]
    assert turns == ["a", "b", "b", "a", "a", "b", "b", "a"]
    assert [one.path for one in result.floors] == [NOTHING, ONE]
    assert [one.path for one in result.figures] == ["a", "b"]
    assert all(one.host.count == one.span.count == one.gap.count == 4 for one in result.figures)
    assert all(one.wrong == () and one.bytes_owned > 0 for one in result.figures)


def test_an_unknown_system_is_refused_in_one_line() -> None:
    with pytest.raises(
        UsageError, match="bench gpu measures embedded, embedded-fused, sglang; there is no vllm"
    ):
        next(run(Request(MODELS, (), systems=("vllm",)), print))


@pytest.mark.sglang
def test_sglang_is_a_subject_on_all_its_paths() -> None:
    from harness.bench.packages import sglang
    from harness.sut.sglang.loader import load

    need_interpreter()
    point, model, dims, staging = at("glm-5.3")
    engine = TapeEngine()
    loaded = load(None, engine.device)
    owned = {}
    for path in PATHS[SGLANG]:
        subject = sglang(path, point, model, staging, engine, FakeMeter(), loaded)
        with subject.ready():
            subject.refresh()
            stale = ("paged_mqa_schedule_metadata",) if path is Path.RELEASED else ()
            assert wrong_fields(subject, dims, staging.inputs) == stale
        owned[path] = bytes_owned(subject)
    assert owned[Path.RELEASED] == 3 * owned[Path.SHARED] == 3 * owned[Path.SHARED_IN_GRAPH]
