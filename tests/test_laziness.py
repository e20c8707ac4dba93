"""The generated rounds expose every lazy refresh that logic lets them expose."""

from __future__ import annotations

from itertools import combinations, pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.case import PlanRule
from harness.fields import Dims, canonical, fields_for
from harness.keys import KEYS
from harness.laziness import RULES, Seen, excluded, exposed, judged_fields, required_pairs, see, uncovered
from harness.oracle import expected
from harness.rounds import Inputs, expand_table, length_fill
from harness.traffic import build_program
from harness.types import Drill, EngineKind, Kernel, Mode
from tests.programs import BY_POOL, project_case, seen_rounds

SHAPES = [(bucket, 6) for bucket in (1, 2, 4, 8, 32)] + [(2, 3)]


def seen_main(pool: int, mode: Mode, bucket: int, draft_tokens: int = 6) -> tuple[list[Seen], Dims, Seen]:
    case = project_case(BY_POOL[pool], mode, bucket, draft_tokens=draft_tokens)
    program = build_program(case)
    rounds = [round_ for round_ in program.rounds if round_.bucket == bucket]
    (capture,) = seen_rounds(case, program, [program.capture[bucket]])
    return seen_rounds(case, program, rounds), Dims.of(case, bucket), capture


@pytest.mark.parametrize(("bucket", "draft_tokens"), SHAPES)
@pytest.mark.parametrize("mode", list(Mode))
@pytest.mark.parametrize("pool", [1, 4])
def test_every_field_changes_under_every_equal_key(
    pool: int, mode: Mode, bucket: int, draft_tokens: int
) -> None:
    rounds, dims, capture = seen_main(pool, mode, bucket, draft_tokens)
    assert not uncovered(rounds, dims)
    assert all(a.values != b.values for a, b in pairwise(rounds)), "a round changes nothing"
    wrongly_excluded = {
        pair
        for a, b in combinations([capture, *rounds], 2)
        for pair in exposed(a, b)
        if excluded(*pair, dims)
    }
    assert not wrongly_excluded


@pytest.mark.parametrize("pool", [1, 4])
def test_every_field_changes_under_every_equal_key_at_full_width(pool: int) -> None:
    case = project_case(BY_POOL[pool], bucket=2, engine=EngineKind.CUDA_GRAPH)
    program = build_program(case)
    rounds = [round_ for round_ in program.rounds if round_.bucket == 2]
    assert not uncovered(seen_rounds(case, program, rounds), Dims.of(case, 2))


@pytest.mark.parametrize("mode", list(Mode))
def test_deceptive_rounds_stand_next_to_each_other(mode: Mode) -> None:
    """Also a key that is remembered across buckets is deceived: no other bucket's round lies between."""
    case = project_case(BY_POOL[4], mode, 4)
    program = build_program(case)
    seen = dict(zip(program.rounds, seen_rounds(case, program, program.rounds), strict=True))
    neighbours = [(a, b) for a, b in pairwise(program.rounds) if a.bucket == b.bucket == 4]
    found = {pair for a, b in neighbours for pair in exposed(seen[a], seen[b])}
    assert not required_pairs(Dims.of(case, 4)) - found


@pytest.mark.parametrize("bucket", [2, 8])
@pytest.mark.parametrize("mode", list(Mode))
def test_batches_of_capture_come_back_changed(mode: Mode, bucket: int) -> None:
    """A refresh that trusts what capture left behind is exposed, too."""
    rounds, dims, capture = seen_main(4, mode, bucket)
    found = {pair for later in rounds for pair in exposed(capture, later)}
    missing = required_pairs(dims) - found
    keys = {"bucket", "live_batch", "requests", "request_set", "accepted"}
    assert not {(field, key) for field, key in missing if key in keys}
    inputs = {"kpool_write_plan.req", "kpool_write_plan.effective_n_per_batch"}
    of_table = {"table", "table_and_requests"}
    assert not {(field, key) for field, key in missing if key in of_table and field not in inputs}
    tables = {"page_table_1", "real_page_table", "kpool_write_plan.write_loc"}
    assert {(name, "lengths_and_requests") for name in tables} <= found


@pytest.mark.parametrize(("pool", "bucket"), [(1, 4), (4, 1), (4, 8)])
@pytest.mark.parametrize("mode", list(Mode))
def test_skipping_every_nth_refresh_shows_in_every_field(pool: int, mode: Mode, bucket: int) -> None:
    case = project_case(BY_POOL[pool], mode, bucket)
    program = build_program(case)
    dims = Dims.of(case, bucket)
    last = {key: seen_rounds(case, program, [round_])[0].values for key, round_ in program.capture.items()}
    changed: list[set[str]] = []
    for round_, seen in zip(program.rounds, seen_rounds(case, program, program.rounds), strict=True):
        before, last[round_.bucket] = last[round_.bucket], seen.values
        changed.append({name for name in seen.values if seen.values[name] != before[name]})
    own = [names for round_, names in zip(program.rounds, changed, strict=True) if round_.bucket == bucket]
    for name in judged_fields(dims):
        if excluded(name, "bucket", dims):
            continue  # constant at this geometry
        for n in range(2, 9):
            shows = [any(name in names for names in rounds[n - 1 :: n]) for rounds in (changed, own)]
            assert any(shows), f"{name}, every {n}th"
            assert all(shows) or n > 4, f"{name}, every {n}th"


def test_a_program_without_its_swap_is_found_out() -> None:
    rounds, dims, _ = seen_main(4, Mode.DECODE, 4)
    swap = next(
        i for i, (a, b) in enumerate(pairwise(rounds)) if ("cu_seqlens_k", "sum_length") in exposed(a, b)
    )
    missing = uncovered(rounds[: swap + 1], dims)
    assert ("paged_mqa_schedule_metadata", "sum_length") in missing


def test_a_repeated_batch_exposes_nothing_by_its_values() -> None:
    case = project_case(BY_POOL[4], drill=Drill.REPEAT)
    program = build_program(case)
    first, second = seen_rounds(case, program, program.rounds[:2])
    assert not list(exposed(first, second))
    assert first.keys == second.keys


def test_rules_speak_of_keys_that_exist() -> None:
    assert all(rule.keys <= KEYS.keys() and rule.reason for rule in RULES)


@pytest.mark.parametrize("number", range(len(RULES)))
def test_every_rule_is_needed(number: int) -> None:
    """Each rule excludes something, in some mode and bucket of some model, at one of its widths."""
    rule = RULES[number]
    found = [
        (field, key)
        for name in (*BY_POOL.values(), "tiny")
        for engine in EngineKind
        for mode in Mode
        for bucket in (1, 4, 32)
        for dims in [Dims.of(project_case(name, mode, bucket, engine=engine), bucket)]
        for field in judged_fields(dims)
        if rule.covers(field, dims)
        for key in rule.keys
    ]
    assert found


PLAN = PlanRule(candidates=((40, 1), (150, 3)), min_rows=1, max_rows=64)


@st.composite
def neighbours(draw: st.DrawFn) -> tuple[Dims, Inputs, Inputs]:
    """Two rounds, the second changed in few respects, so that keys often stay equal."""
    mode, pool = draw(st.sampled_from(list(Mode))), draw(st.sampled_from([1, 4]))
    bucket, tokens = draw(st.integers(1, 3)), draw(st.integers(2, 5))
    width = 1280 if pool == 4 else 640
    dims = Dims(
        mode=mode, kernel=Kernel.FA3, pool=pool, topk=64, width=width, bucket=bucket,
        draft_tokens=tokens, num_sms=4, plan=PLAN,
    )  # fmt: skip
    low = tokens if mode is Mode.DRAFT_EXTEND else 1
    lengths = st.lists(st.integers(low, width - 16), min_size=bucket, max_size=bucket)
    first = draw(lengths)
    small = st.sampled_from([0, 0, 1, -1, 2, 3, 64, -64, 256])
    second = [min(max(length + draw(small), low), width - 16) for length in first]
    if draw(st.booleans()):
        second.reverse()
    seeds = draw(st.tuples(st.integers(0, 3), st.integers(0, 3)))
    ids = [draw(st.permutations(range(1, 5))) for _ in range(2)]
    accepted = [draw(st.lists(st.integers(1, tokens), min_size=bucket, max_size=bucket)) for _ in range(2)]
    made = []
    for size, seed, requests, taken in zip((first, second), seeds, ids, accepted, strict=True):
        columns = width // (64 * pool)
        pages = np.random.default_rng(seed).permutation(5 * columns).astype(np.int32).reshape(5, columns)
        live = draw(st.integers(1, bucket))
        padded = np.full(bucket, length_fill(mode, pool, tokens), np.int64)
        padded[:live] = size[:live]
        rows = np.zeros(bucket, np.int64)
        rows[:live] = requests[:live]
        counts = np.full(bucket, tokens, np.int32)
        counts[:live] = taken[:live]
        made.append(Inputs(bucket, live, padded, rows, counts, expand_table(pages, 64 * pool)))
    return dims, made[0], made[1]


@settings(max_examples=60, deadline=None)
@given(neighbours())
def test_no_excluded_pair_has_a_counterexample(case: tuple[Dims, Inputs, Inputs]) -> None:
    dims, *rounds = case
    seen = []
    for inputs in rounds:
        fields, values = fields_for(dims), expected(dims, inputs)
        live = {name: canonical(fields[name], dims, inputs, value) for name, value in values.items()}
        seen.append(see(inputs, dims, live))
    assert not {pair for pair in exposed(*seen) if excluded(*pair, dims)}
