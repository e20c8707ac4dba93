"""The generated programs: legal, varied, as servers make them, and shaped by the drill."""

from __future__ import annotations

from functools import cache
from itertools import pairwise, product

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.case import Case, ExtraRound, Geometry, Model, PlanRule, Variant
from harness.fields import Dims, plan_is_written
from harness.lengths import Scale
from harness.oracle import expected
from harness.pages import guard_page, page_columns, pool_pages
from harness.rounds import Program, Round
from harness.traffic import ALONE, build_program, other_bucket
from harness.types import Drill, EngineKind, Mode
from tests.programs import BY_POOL, MODELS, inputs_of, live_pages, project_case

SHAPES = list(product(BY_POOL, Mode, (1, 2, 4, 32)))
SAME_AS_PLAIN = (Drill.CHURN, Drill.OVERSIZE, Drill.RECAPTURE, Drill.DELAYED)


@cache
def programs(drill: Drill) -> list[tuple[Case, Program]]:
    """One drill's programs in all shapes, made once."""
    cases = [project_case(BY_POOL[pool], mode, bucket, drill) for pool, mode, bucket in SHAPES]
    return [(case, build_program(case)) for case in cases]


def of_bucket(program: Program, bucket: int) -> list[Round]:
    return [round_ for round_ in program.rounds if round_.bucket == bucket]


def check_legal(case: Case, program: Program) -> None:
    """Assert everything that the contracts of `Round` and `Program` promise."""
    geometry, drafts = case.geometry, case.variant.draft_tokens
    low = drafts if case.mode is Mode.DRAFT_EXTEND else 1
    high = geometry.width - {Mode.DECODE: 1, Mode.TARGET_VERIFY: drafts, Mode.DRAFT_EXTEND: 0}[case.mode]
    guard = guard_page(case.model, geometry)
    assert list(program.buckets) == sorted(program.capture, reverse=True)
    names = [round_.name for round_ in program.rounds]
    assert len(set(names)) == len(names)
    for table in program.tables.values():
        assert table.shape == (geometry.requests, page_columns(case.model, geometry))
        assert table.dtype == np.int32
        assert not table[0].any()
        assert table.min() >= 0
        assert table.max() < guard
    for round_ in (*program.rounds, *program.capture.values()):
        assert len(round_.lengths) <= round_.bucket
        assert len(set(round_.requests)) == len(round_.requests) == len(round_.lengths)
        assert all(1 <= request < geometry.requests for request in round_.requests)
        assert all(low <= length <= high for length in round_.lengths), round_
        wanted = len(round_.lengths) if case.mode is Mode.DRAFT_EXTEND else 0
        assert len(round_.accepted) == wanted
        assert all(1 <= accepted <= drafts for accepted in round_.accepted)
        pages = live_pages(case, program, round_)
        assert len(set(pages)) == len(pages), f"{round_.name}: two live columns share a page"
        assert min(pages, default=1) >= 1


@pytest.mark.parametrize("drill", list(Drill))
def test_programs_are_legal_and_no_longer_than_they_may_be(drill: Drill) -> None:
    for case, program in programs(drill):
        check_legal(case, program)
        others = () if drill in ALONE else (other_bucket(case),)
        assert program.buckets == tuple(sorted((case.bucket, *others), reverse=True))
        assert 7 <= len(program.rounds) <= 26
        if drill is Drill.PLAIN:
            fewest, most = (16, 26) if case.bucket <= 8 else (12, 19)
            assert fewest <= len(program.rounds) <= most


@pytest.mark.parametrize("pool", [1, 4])
@pytest.mark.parametrize("mode", list(Mode))
def test_programs_are_legal_at_full_width(mode: Mode, pool: int) -> None:
    case = project_case(BY_POOL[pool], mode, 32, engine=EngineKind.CUDA_GRAPH)
    program = build_program(case)
    check_legal(case, program)
    lengths = {length for round_ in program.rounds for length in round_.lengths}
    assert {65530, 65539} <= {length for round_ in program.rounds[:6] for length in round_.lengths}
    assert max(lengths) > case.geometry.width - 64


@settings(max_examples=40, deadline=None)
@given(
    pool=st.sampled_from([1, 2, 4]),
    mode=st.sampled_from(list(Mode)),
    bucket=st.sampled_from([1, 2, 3, 5, 9]),
    drafts=st.integers(2, 64),
    width=st.sampled_from([1024, 2048, 4096]),
    part=st.integers(1, 16),
    drill=st.sampled_from(list(Drill)),
    seed=st.integers(0, 2**32),
)
def test_programs_are_legal_at_every_size_that_case_files_allow(
    pool: int, mode: Mode, bucket: int, drafts: int, width: int, part: int, drill: Drill, seed: int
) -> None:
    plan = PlanRule(candidates=((100, 2), (300, 4)), min_rows=1, max_rows=64)
    topk = max(pool, width // 2 * part // 16 // pool * pool)
    sizes = Geometry(width=width, requests=bucket + 2, topk=topk, num_sms=4, plan=plan)
    variant = Variant(steps=3, topk=1, draft_tokens=drafts)
    model = Model(
        name="any", index_kpool=pool, page_size=64 * pool, heads=1, default_variant=variant,
        variants=(variant,), buckets=(bucket,), geometries={"tape": sizes, "cuda_graph": sizes},
    )  # fmt: skip
    case = project_case(model, mode, bucket, drill, draft_tokens=drafts, seed=seed)
    program = build_program(case)
    check_legal(case, program)
    assert other_bucket(case) == 0
    assert program.buckets == (bucket,)


@pytest.mark.parametrize("drill", [Drill.PLAIN, Drill.DEAD_COLUMNS])
def test_a_program_is_the_same_whenever_it_is_made(drill: Drill) -> None:
    case = project_case(BY_POOL[4], Mode.DRAFT_EXTEND, 4, drill)
    one, two = build_program(case), build_program(case)
    assert (one.rounds, one.buckets, dict(one.capture)) == (two.rounds, two.buckets, dict(two.capture))
    assert one.tables.keys() == two.tables.keys()
    assert all(np.array_equal(one.tables[key], two.tables[key]) for key in one.tables)


@pytest.mark.parametrize("drill", SAME_AS_PLAIN)
def test_disturbing_drills_run_a_part_of_the_plain_rounds(drill: Drill) -> None:
    for (case, plain), (_, disturbed) in zip(programs(Drill.PLAIN), programs(drill), strict=True):
        assert set(disturbed.rounds) < set(plain.rounds), case.id
        assert {round_.bucket for round_ in disturbed.rounds} == set(disturbed.buckets), case.id
        assert len(disturbed.rounds) >= 7, case.id
        assert all(np.array_equal(plain.tables[key], disturbed.tables[key]) for key in disturbed.tables)


def test_reordering_drills_keep_the_inputs_of_equal_names() -> None:
    for drill in (Drill.BUCKET_SWITCH, Drill.REPEAT):
        for (case, plain), (_, other) in zip(programs(Drill.PLAIN), programs(drill), strict=True):
            known = {round_.name: round_ for round_ in plain.rounds}
            shared = [round_ for round_ in other.rounds if round_.name in known]
            assert len(shared) >= 6
            assert all(known[round_.name] == round_ for round_ in shared), case.id
            assert all(np.array_equal(plain.tables[r.table], other.tables[r.table]) for r in shared)


def test_lengths_are_awkward_and_unequal_and_requests_in_no_order() -> None:
    for case, program in programs(Drill.PLAIN):
        scale = Scale.of(case)
        lengths = {length for round_ in program.rounds for length in round_.lengths}
        assert scale.near_full in lengths
        assert any(scale.topk - 3 <= length <= scale.topk for length in lengths)
        if case.bucket >= 8:
            assert set(scale.awkward()) <= lengths
        opening = of_bucket(program, case.bucket)[0]
        if case.bucket > 1:
            assert len(set(opening.lengths)) > 1
            assert list(opening.requests) != sorted(opening.requests)


def test_some_captures_are_like_the_fill_and_all_are_short() -> None:
    like_fill = []
    for case, program in programs(Drill.PLAIN):
        capture = program.capture[case.bucket]
        assert max(capture.lengths) < 100
        assert len(capture.lengths) == case.bucket
        like_fill.append(case.bucket > 1 and len(set(capture.lengths)) == 1)
    assert 3 <= sum(like_fill) <= len(like_fill) // 2


def test_live_batches_below_the_bucket_occur_in_every_program() -> None:
    for drill in Drill:
        for case, program in programs(drill):
            below = [round_ for round_ in program.rounds if len(round_.lengths) < round_.bucket]
            names = {round_.name.removesuffix("-again") for round_ in below}
            assert len(names) >= (2 if case.bucket > 1 else 1), case.id


def test_raw_4_is_followed_by_raw_3_and_leftovers_of_longer_batches() -> None:
    case = project_case(BY_POOL[4], bucket=4)
    rounds = of_bucket(build_program(case), 4)
    live = [len(round_.lengths) for round_ in rounds]
    assert (4, 3) in pairwise(live)
    totals = [sum(round_.lengths) for round_ in rounds]
    assert any(after * 20 < before for before, after in pairwise(totals))


def test_traffic_grows_by_accepted_tokens_and_reuses_rows_and_pages() -> None:
    for mode in Mode:
        case = project_case(BY_POOL[4], mode, 4)
        program = build_program(case)
        rounds = of_bucket(program, 4)
        grown = [
            all(0 < b - a <= case.variant.draft_tokens for a, b in zip(x.lengths, y.lengths, strict=True))
            for x, y in pairwise(rounds)
            if x.requests == y.requests
        ]
        assert any(grown)
        owners: dict[int, set[int]] = {}
        for round_ in rounds:
            for request in round_.requests:
                for page in program.tables[round_.table][request, :1]:
                    owners.setdefault(int(page), set()).add(request)
        assert any(len(requests) > 1 for requests in owners.values()), "no page was ever given to another"
        seen: set[int] = set()
        returned = False
        for before, after in pairwise(rounds):
            seen |= set(before.requests)
            returned |= bool((set(after.requests) - set(before.requests)) & seen)
        assert returned, "no request row was ever used again"


def test_pooled_lengths_of_zero_occur() -> None:
    for bucket in (1, 2, 8):
        case = project_case(BY_POOL[4], bucket=bucket)
        rounds = of_bucket(build_program(case), bucket)
        assert any(all(length < 4 for length in round_.lengths) for round_ in rounds)


@pytest.mark.parametrize(("engine", "bucket"), [(EngineKind.TAPE, 2), (EngineKind.TAPE, 32)])
@pytest.mark.parametrize("mode", list(Mode))
@pytest.mark.parametrize("pool", [1, 4])
def test_plans_hold_no_rows_some_rows_and_other_rows(
    pool: int, mode: Mode, engine: EngineKind, bucket: int
) -> None:
    case = project_case(BY_POOL[pool], mode, bucket, engine=engine)
    program, dims = build_program(case), Dims.of(case, bucket)
    assert plan_is_written(dims)
    plans: dict[str, list[np.ndarray]] = {}
    for round_ in of_bucket(program, bucket):
        for name, value in expected(dims, inputs_of(case, program, round_)).items():
            if name.endswith("topk_v2_plan"):
                plans.setdefault(name, []).append(value)
    assert len(plans) == (2 if pool > 1 else 1)
    for name, values in plans.items():
        counts = [int(value[0, 1]) for value in values]
        assert 0 in counts, name
        assert max(counts) > 0, name
        assert len({int(value[0, 0]) for value in values}) > 1, f"{name}: one threshold only"
        same_count = [(a, b) for a, b in pairwise(values) if a[0, 1] == b[0, 1] > 0]
        assert any(set(a[1 : a[0, 1] + 1, 0]) != set(b[1 : b[0, 1] + 1, 0]) for a, b in same_count), name


def test_the_schedule_changes_for_256_to_257_in_the_same_batch() -> None:
    for pool in BY_POOL:
        case = project_case(BY_POOL[pool], bucket=2)
        rounds = of_bucket(build_program(case), 2)
        steps = [
            (a, b)
            for x, y in pairwise(rounds)
            if x.requests == y.requests
            for a, b in zip(x.lengths, y.lengths, strict=True)
        ]
        assert (256, 257) in steps


def test_bucket_switch_alternates() -> None:
    for case, program in programs(Drill.BUCKET_SWITCH):
        buckets = [round_.bucket for round_ in program.rounds]
        assert len(set(buckets)) == 2, case.id
        assert all(a != b for a, b in pairwise(buckets)), case.id


def test_padded_programs_are_mostly_below_the_bucket() -> None:
    for case, program in programs(Drill.PADDED):
        wide = [round_ for round_ in program.rounds if round_.bucket > 1]
        below = [round_ for round_ in wide if len(round_.lengths) < round_.bucket]
        assert len(below) > len(wide) / 2, case.id
        if case.bucket > 1:
            assert len(below) < len(wide), "a full batch belongs to it as well"


def test_repeat_gives_every_batch_twice() -> None:
    for _, program in programs(Drill.REPEAT):
        for first, again in zip(program.rounds[::2], program.rounds[1::2], strict=True):
            assert again.name == f"{first.name}-again"
            assert (first.bucket, first.lengths, first.requests, first.table, first.accepted) == (
                again.bucket, again.lengths, again.requests, again.table, again.accepted,
            )  # fmt: skip


def test_dead_columns_are_rewritten_every_round_and_live_ones_kept() -> None:
    for (case, plain), (_, junk) in zip(programs(Drill.PLAIN), programs(Drill.DEAD_COLUMNS), strict=True):
        scale = Scale.of(case)
        known = {round_.name: round_ for round_ in plain.rounds}
        for after in junk.rounds:
            before = known[after.name]
            assert live_pages(case, plain, before) == live_pages(case, junk, after)
            table = junk.tables[after.table]
            for request, length in zip(after.requests, after.lengths, strict=True):
                live = scale.columns(length)
                assert not set(table[request, live:]) & set(table[request, :live])
                assert (table[request, live:] > 0).all()
        tables = [junk.tables[round_.table] for round_ in junk.rounds]
        assert all((a != b).mean() > 0.5 for a, b in pairwise(tables))


@pytest.mark.parametrize("name", sorted(MODELS))
def test_the_guard_page_is_the_last_of_the_pool(name: str) -> None:
    model = MODELS[name]
    for geometry in model.geometries.values():
        assert guard_page(model, geometry) - geometry.first_page + 2 == pool_pages(model, geometry)
        full = geometry.requests * page_columns(model, geometry)
        assert 3 * page_columns(model, geometry) < pool_pages(model, geometry) <= full + 2


def with_rounds(*rounds: ExtraRound) -> Model:
    return msgspec.structs.replace(MODELS["tiny"], rounds=rounds)


def test_rounds_of_the_case_file_come_last_in_their_mode_and_bucket_only() -> None:
    extra = ExtraRound(bucket=2, lengths=(300, 7), requests=(9, 4), mode=Mode.DECODE, pages=3, why="shrunk")
    model = with_rounds(extra, msgspec.structs.replace(extra, lengths=(301, 7)))
    program = build_program(project_case(model, bucket=2))
    *_, first, second = program.rounds
    assert (first.name, first.lengths, first.requests, first.why) == ("b2.x00", (300, 7), (9, 4), "shrunk")
    assert (second.name, second.lengths) == ("b2.x01", (301, 7))
    assert first.table == second.table, "equal seeds, equal pages"
    check_legal(project_case(model, bucket=2), program)
    for other in (project_case(model, bucket=4), project_case(model, Mode.TARGET_VERIFY, 2)):
        assert not any(".x" in round_.name for round_ in build_program(other).rounds)


def test_rounds_of_the_case_file_may_be_for_one_engine_and_carry_accepted_tokens() -> None:
    extra = ExtraRound(
        bucket=1, lengths=(300,), requests=(9,), mode=Mode.DRAFT_EXTEND, engine=EngineKind.CUDA_GRAPH
    )
    model = with_rounds(extra)
    assert build_program(project_case(model, Mode.DRAFT_EXTEND, 1)).rounds[-1].name != "b1.x00"
    on_gpu = project_case(model, Mode.DRAFT_EXTEND, 1, engine=EngineKind.CUDA_GRAPH)
    assert build_program(on_gpu).rounds[-1].accepted == (6,)
    given_tokens = with_rounds(msgspec.structs.replace(extra, engine=None, accepted=(2,)))
    assert build_program(project_case(given_tokens, Mode.DRAFT_EXTEND, 1)).rounds[-1].accepted == (2,)
