"""Simulated servers: every batch is legal, and what a server has happens."""

from __future__ import annotations

from collections import Counter
from itertools import islice, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.case import Case
from harness.errors import UsageError
from harness.fuzz.sequence import Capture, Churn, Eager, Operation, Replay, Sequence, Setting, case_of
from harness.fuzz.store import problems
from harness.load.pool import SharedPages
from harness.load.profile import MIXED, PROFILES, profile_of
from harness.load.server import Server
from harness.types import Mode, Path
from tests.trace.samples import MODELS

BUCKETS = (1, 2, 4, 8)


def setting_of(mode: Mode, model: str = "tiny") -> Setting:
    path = Path.SHARED if mode is Mode.DECODE else Path.INDEPENDENT
    return Setting(model=model, path=path, steps=4, mode=mode)


def case(mode: Mode = Mode.DECODE) -> Case:
    return case_of(setting_of(mode), MODELS["tiny"])


def traffic(name: str, count: int, seed: int = 1, mode: Mode = Mode.DECODE) -> list[Operation]:
    server = Server(case(mode), BUCKETS, profile_of(name), seed)
    return list(islice(server.operations(), count))


def replays(name: str, count: int, seed: int = 1) -> list[Replay]:
    return [one for one in traffic(name, count, seed) if isinstance(one, Replay)]


@settings(max_examples=40, deadline=None)
@given(st.sampled_from([*PROFILES, MIXED]), st.integers(0, 10**6), st.sampled_from(list(Mode)))
def test_every_batch_is_legal(name: str, seed: int, mode: Mode) -> None:
    operations = tuple(traffic(name, 150, seed, mode))
    sequence = Sequence(setting=setting_of(mode), operations=operations)
    assert next(problems(sequence, MODELS), None) is None


def test_the_seed_decides() -> None:
    assert traffic(MIXED, 300, 5) == traffic(MIXED, 300, 5)
    assert traffic(MIXED, 300, 5) != traffic(MIXED, 300, 6)


def test_captures_come_first_largest_first() -> None:
    first = traffic("server", 4)
    assert [one.bucket for one in first if isinstance(one, Capture)] == [8, 4, 2, 1]


def test_the_smallest_bucket_that_holds_the_batch() -> None:
    for one in replays("server", 1000):
        if one.lengths:
            assert one.bucket == min(size for size in BUCKETS if size >= len(one.lengths))


def test_requests_grow_by_accepted_tokens_and_keep_slot_and_pages() -> None:
    grown = 0
    served = replays("server", 800)
    for before, after in pairwise(served):
        for request in set(before.requests) & set(after.requests):
            old, new = before.requests.index(request), after.requests.index(request)
            gain = after.lengths[new] - before.lengths[old]
            if not 1 <= gain <= 5:
                continue  # another request has the slot now
            assert isinstance(before.pages, tuple)
            assert isinstance(after.pages, tuple)
            grown += after.pages[new][: len(before.pages[old])] == before.pages[old]
    assert grown > 500


def test_prefixes_are_shared_and_pages_are_nobody_elses_otherwise() -> None:
    shared = Counter[bool]()
    for one in replays("prefix", 600):
        rows = one.pages if isinstance(one.pages, tuple) else ()
        pages = [page for row in rows for page in row]
        shared[len(set(pages)) < len(pages)] += 1
        for row in rows:  # what is shared is a beginning
            for column, page in enumerate(row):
                owners = [other for other in rows if page in other]
                assert all(other[: column + 1] == row[: column + 1] for other in owners)
    assert shared[True] > 10


def test_slots_are_used_again() -> None:
    slots = Counter(request for one in replays("server", 1500) for request in one.requests)
    assert len(slots) == 15


def test_idle_rounds_long_tails_and_disturbances_happen() -> None:
    served = traffic(MIXED, 4000)
    batches = [one for one in served if isinstance(one, Replay)]
    assert sum(not one.lengths for one in batches) > 100
    assert max(max(one.lengths, default=0) for one in batches) > 1000
    assert any(isinstance(one, Eager) for one in served)
    assert any(isinstance(one, Churn) for one in served)
    assert {one.bucket for one in batches} == set(BUCKETS)


def test_preempted_requests_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    preempted = []
    finish = Server._cover

    def cover(self: Server, request: object) -> None:
        waiting = len(self._waiting)
        finish(self, request)  # type: ignore[arg-type]
        preempted.append(len(self._waiting) - waiting)

    monkeypatch.setattr(Server, "_cover", cover)
    server = Server(case(), BUCKETS, profile_of("crowded"), 1)
    list(islice(server.operations(), 2000))
    assert sum(preempted) > 10
    assert len(server._waiting) <= 8


def test_pages_have_owners() -> None:
    import random

    pool = SharedPages(1, 4, random.Random(1))
    taken = pool.take(3)
    pool.share(taken[:1])
    pool.release(taken)
    assert pool.free == 3
    pool.release(taken[:1])
    assert sorted(pool.take(4)) == [1, 2, 3, 4]
    with pytest.raises(ValueError, match="1 pages are needed, 0 are free"):
        pool.take(1)
    pool.limit = 2
    assert pool.free == -2


def test_an_unknown_load_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="--load nothing: there are server, bursty"):
        profile_of("nothing")
