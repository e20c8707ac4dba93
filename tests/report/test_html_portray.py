from harness.portray import portray
from harness.types import Path
from tests.checks.test_planted import BATCHES, MODEL, twice
from tests.faulty import Bends, bent_subject, own_copy
from tests.helpers import make_case, make_program

PROGRAM = make_program(MODEL, 4, BATCHES[:3])


def test_a_shared_path_is_one_storage_and_an_independent_one_is_many() -> None:
    shared = bent_subject(make_case(MODEL), PROGRAM, Bends())
    (map_,) = portray(shared).maps
    assert map_.steps == 3
    assert [map_.shared_with_first(step) == map_.bytes_of(step) for step in (1, 2)] == [True, True]
    apart = bent_subject(make_case(MODEL, path=Path.INDEPENDENT), PROGRAM, Bends())
    (map_,) = portray(apart).maps
    assert [map_.shared_with_first(step) for step in (1, 2)] == [0, 0]
    assert map_.bytes_of(0) == map_.bytes_of(1) > 0


def test_a_step_with_an_object_of_its_own_shows() -> None:
    bends = Bends(captured=lambda sut, bucket: own_copy(sut, 1, bucket))
    (map_,) = portray(bent_subject(make_case(MODEL), PROGRAM, bends)).maps
    assert 0 <= map_.shared_with_first(1) < map_.bytes_of(1)
    assert map_.shared_with_first(2) == map_.bytes_of(2)


def test_the_ledger_of_a_right_refresh_is_as_declared_and_a_second_refresh_is_not() -> None:
    right = portray(bent_subject(make_case(MODEL), PROGRAM, Bends())).timeline
    assert all(track.counts == track.declared for track in right.leaves)
    assert [moment.replayed for moment in right.moments].count(True) == len(PROGRAM.rounds)
    wrong = portray(bent_subject(make_case(MODEL), PROGRAM, Bends(refresh=twice))).timeline
    assert all(track.counts == tuple(2 * n for n in track.declared) for track in wrong.leaves)
    assert all(set(track.counts) == {2} for track in wrong.spans)
