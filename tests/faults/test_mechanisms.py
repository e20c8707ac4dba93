"""Refreshes, bindings, forwards and what surrounds them, changed one mechanism at a time."""

import dataclasses
from typing import Any

import pytest
import torch

from harness.errors import CaptureError
from harness.faults.geometry import P1, at
from harness.faults.mechanisms import keys
from harness.faults.mechanisms.binding import (
    KeptOnRecapture,
    MadeOtherwise,
    NotRepointed,
    OwnObject,
    Rebound,
    StateRebound,
)
from harness.faults.mechanisms.combined import Combined, Unchanged
from harness.faults.mechanisms.forward import (
    Computed,
    ForwardWrites,
    InForward,
    Reads,
    ReadsFrozen,
    RefreshedAfter,
    with_leaves,
)
from harness.faults.mechanisms.life import (
    AfterStaging,
    Around,
    AtCapture,
    Eager,
    OnPause,
    OtherRoute,
    OtherStream,
    Raises,
    Says,
    Staged,
)
from harness.faults.mechanisms.timing import LeftOut, Reading, Repeated, Skipped
from harness.faults.mechanisms.when import (
    ALWAYS,
    AllBut,
    Every,
    Idle,
    InBucket,
    Nth,
    Padded,
    Same,
    Switched,
    When,
)
from harness.faults.scene import Given, Injection, Scene
from harness.fields import COUNTER
from harness.sut.protocol import StepOutputs
from harness.types import Drill, Kernel, Path
from tests.faults.support import LENGTHS, Hand, inputs_of

LENGTH, SCHEDULE = "cache_seqlens_int32", "paged_mqa_schedule_metadata"
ROUNDS = ((900, 300, 70, 5), (900, 300, 70, 5), (900, 300), (901, 300))


@pytest.mark.parametrize(
    ("when", "expected"),
    [
        (ALWAYS, [1, 1, 1, 1]),
        (Nth(2), [0, 1, 0, 0]),
        (Every(2), [0, 1, 0, 1]),
        (AllBut(2), [1, 0, 1, 0]),
        (Same(keys.lengths), [0, 1, 0, 0]),
        (Same(keys.live_batch), [0, 1, 0, 1]),
        (Same(keys.bucket, first_is=True), [1, 1, 1, 1]),
        (InBucket(-1), [1, 1, 1, 1]),
        (InBucket(0), [0, 0, 0, 0]),
        (Padded(), [0, 0, 1, 1]),
        (Idle(), [0, 0, 0, 0]),
        (Switched(), [0, 0, 0, 0]),
    ],
)
def test_conditions_over_four_rounds(when: When, expected: list[int]) -> None:
    due = []

    class Asking(Injection):
        kind = "test"

        def refresh(self, scene: Scene, bucket: int, call: Any) -> None:
            due.append(int(when(scene, bucket)))
            call()

    hand = Hand(Asking())
    for lengths in ROUNDS:
        hand.round(lengths)
    assert due == expected


def test_a_switch_is_another_bucket_than_before() -> None:
    hand = Hand(Skipped(Switched()))
    hand.round()
    hand.round((7, 8), bucket=2)
    hand.round((9, 8), bucket=2)
    assert hand.value(LENGTH, bucket=2) == [9, 8]
    assert hand.trace.reached == 1


def test_a_skipped_refresh_leaves_everything() -> None:
    hand = Hand(Skipped(Nth(2)))
    hand.round(LENGTHS)
    hand.round((1, 1, 1, 1))
    assert hand.value(LENGTH) == list(LENGTHS)
    hand.round((2, 2, 2, 2))
    assert hand.value(LENGTH) == [2, 2, 2, 2]


def test_a_repeated_refresh_runs_as_often_as_said() -> None:
    calls = []

    class Counting(Injection):
        kind = "test"

        def refresh(self, scene: Scene, bucket: int, call: Any) -> None:
            calls.append(bucket)
            call()

    hand = Hand(Combined((Repeated(3), Counting()), "test"))
    hand.round()
    assert calls == [4, 4, 4]
    assert hand.value(LENGTH) == list(LENGTHS)


def test_a_leaf_left_out_keeps_its_value_and_its_place() -> None:
    hand = Hand(LeftOut((SCHEDULE,), steps=(1,)), at(Path.INDEPENDENT, P1))
    before, place = hand.value(SCHEDULE, 1), hand.leaf(SCHEDULE, 1).data_ptr()
    hand.round()
    assert hand.value(SCHEDULE, 1) == before
    assert hand.value(SCHEDULE, 0) != before
    assert hand.leaf(SCHEDULE, 1).data_ptr() == place
    assert hand.trace.reached == 1


def test_a_refresh_reads_other_inputs() -> None:
    def shorter(scene: Scene, given: Given) -> Given:
        return dataclasses.replace(given, lengths=given.lengths - 1)

    hand = Hand(Reading(shorter, "test"))
    hand.round()
    assert hand.value(LENGTH) == [899, 299, 69, 4]
    assert hand.sut.inputs()["seq_lens"][:4].tolist() == list(LENGTHS)
    assert (hand.trace.reached, hand.trace.changed) == (1, 1)


def test_equal_inputs_are_no_change_unless_they_count() -> None:
    def copies(scene: Scene, given: Given) -> Given:
        return Given(*(tensor.clone() for tensor in vars(given).values()))

    hand = Hand(Reading(copies, "test"))
    hand.round()
    assert (hand.trace.reached, hand.trace.changed) == (1, 0)
    hand = Hand(Reading(copies, "test", alike=True))
    hand.round()
    assert hand.trace.changed == 1


@pytest.mark.parametrize("before", [True, False])
def test_a_leaf_is_rebound(before: bool) -> None:
    hand = Hand(Rebound(LENGTH, Nth(1), before=before))
    old = hand.leaf(LENGTH)
    hand.round()
    new = hand.leaf(LENGTH)
    assert new.data_ptr() != old.data_ptr()
    assert new.tolist() == list(LENGTHS)
    assert (old.tolist() == list(LENGTHS)) is not before


def test_a_leaf_is_made_otherwise_in_every_bucket() -> None:
    hand = Hand(
        MadeOtherwise(LENGTH, lambda scene, bucket, leaf: leaf.long(), "test", (1,)), at(Path.INDEPENDENT)
    )
    assert hand.leaf(LENGTH, 1).dtype is torch.int64
    assert hand.leaf(LENGTH, 0).dtype is torch.int32
    assert hand.trace.reached == 2


def test_a_step_has_an_object_of_its_own_in_one_bucket() -> None:
    hand = Hand(OwnObject(buckets=(0,)))
    assert hand.leaf(LENGTH, 1, bucket=4).data_ptr() == hand.leaf(LENGTH, 0, bucket=4).data_ptr()
    own = hand.leaf(LENGTH, 1, bucket=2)
    assert own.data_ptr() != hand.leaf(LENGTH, 0, bucket=2).data_ptr()


def test_only_a_nested_object_is_its_own() -> None:
    hand = Hand(OwnObject(nested="kpool_write_plan"))
    name = "kpool_write_plan.req"
    assert hand.leaf(LENGTH, 1).data_ptr() == hand.leaf(LENGTH, 0).data_ptr()
    assert hand.leaf(name, 1).data_ptr() != hand.leaf(name, 0).data_ptr()


def test_another_object_over_the_same_tensors() -> None:
    hand = Hand(OwnObject(cloned=False))
    roots = hand.sut.roots()
    assert roots[0].metadata[4] is not roots[1].metadata[4]
    assert hand.leaf(LENGTH, 1).data_ptr() == hand.leaf(LENGTH, 0).data_ptr()


def test_an_active_object_stays_behind() -> None:
    hand = Hand(NotRepointed())
    hand.round(bucket=4)
    roots = hand.sut.roots()
    assert roots[0].active is roots[0].metadata[4]
    assert roots[1].active is roots[1].metadata[2]


def test_an_object_is_kept_when_the_bucket_is_captured_again() -> None:
    hand = Hand(KeptOnRecapture())
    old = hand.sut.roots()[1].metadata[4]
    hand.sut.prepare_capture(4)
    assert hand.sut.roots()[1].metadata[4] is old
    assert hand.sut.roots()[0].metadata[4] is not old


@pytest.mark.parametrize("at_", ["init", "capture", "eager"])
def test_state_is_rebound_when_it_is_said(at_: str) -> None:
    made = StateRebound(COUNTER, lambda scene, step, old: old[:8].clone(), at_, "test", (1,))
    hand = Hand(made, at(kernel=Kernel.TRTLLM))
    sizes = [hand.sut.roots()[step].state[COUNTER].shape[0] for step in (0, 1)]
    assert (sizes[1] == 8) is (at_ == "init")
    hand.sut.prepare_capture(4)
    assert (hand.sut.roots()[1].state[COUNTER].shape[0] == 8) is (at_ != "eager")
    hand.sut.eager(4)
    assert hand.sut.roots()[1].state[COUNTER].shape[0] == (8)
    assert hand.sut.roots()[0].state[COUNTER].shape[0] == sizes[0]


def test_nested_state_is_rebound() -> None:
    name = "flashmla_metadata"
    case = at(Path.INDEPENDENT, P1, kernel=Kernel.FLASHMLA_KV)
    hand = Hand(Unchanged(), case)
    new = torch.zeros(3, dtype=torch.int32)
    hand.sut._target.rebind_state(0, f"{name}.num_splits", new)
    assert hand.sut.roots()[0].state[name].num_splits is new


def test_a_forward_writes_at_every_replay() -> None:
    def count(scene: Scene, bucket: int, metadata: Any) -> None:
        metadata.cache_seqlens_int32.add_(1)

    hand = Hand(ForwardWrites(count))
    hand.capture()
    hand.round()
    hand.replay()
    assert hand.value(LENGTH) == [901, 301, 71, 6]
    hand.replay()
    assert hand.value(LENGTH) == [902, 302, 72, 7]


def test_a_step_reads_something_else() -> None:
    def zeros(scene: Scene, bucket: int, metadata: Any) -> Any:
        return with_leaves(metadata, kpool_write_plan__req=metadata.kpool_write_plan.req * 0)

    hand = Hand(Reads(zeros, "test"))
    hand.round()
    hand.replay()
    read = [one.read["kpool_write_plan.req"].tolist() for one in hand.outputs()]
    assert read == [[3, 4, 5, 6], [0, 0, 0, 0]]


def test_a_step_reads_what_was_captured() -> None:
    hand = Hand(ReadsFrozen((LENGTH,), (1,)))
    hand.round()
    hand.replay()
    assert [one.read[LENGTH].tolist() for one in hand.outputs()] == [list(LENGTHS), [20] * 4]


def test_an_output_is_changed() -> None:
    def shifted(scene: Scene, bucket: int, outputs: tuple[StepOutputs, ...]) -> tuple[StepOutputs, ...]:
        token = outputs[0].computed["draft_token"]
        return (StepOutputs(outputs[0].read, {"draft_token": token * 0 - 5}), *outputs[1:])

    hand = Hand(Computed(shifted))
    hand.round()
    hand.replay()
    assert hand.outputs()[0].computed["draft_token"].tolist() == [-5] * 4


def test_what_a_graph_cannot_hold_ends_its_capture() -> None:
    def ask(scene: Scene, bucket: int) -> None:
        scene.target.given(bucket).lengths.nonzero()

    hand = Hand(InForward(ask, "test"), buckets=(4,))
    with pytest.raises(CaptureError):
        hand.capture()


def test_a_refresh_behind_the_forward_is_a_replay_late() -> None:
    hand = Hand(RefreshedAfter(), at(Path.SHARED_IN_GRAPH))
    hand.capture()
    hand.sut.stage(inputs_of(hand.case, LENGTHS))
    hand.replay()
    assert hand.value(LENGTH) == list(LENGTHS)
    assert hand.outputs()[0].read[LENGTH].tolist() != list(LENGTHS)
    hand.replay()
    assert hand.outputs()[0].read[LENGTH].tolist() == list(LENGTHS)


def test_something_happens_around_refreshes_and_captures() -> None:
    seen: list[tuple[str, int]] = []
    parts = (
        Around(lambda scene, bucket: seen.append(("before", scene.round.live)), "test", before=True),
        Around(lambda scene, bucket: False, "test", Nth(2)),
        AtCapture(lambda scene, bucket: seen.append(("capture", bucket)), "test"),
    )
    hand = Hand(Combined(parts, "test"))
    hand.round((900, 8))
    assert seen == [("capture", 4), ("capture", 2), ("before", 2)]
    assert (hand.trace.reached, hand.trace.changed) == (3, 3)
    hand.round()
    assert (hand.trace.reached, hand.trace.changed) == (5, 4)


def test_a_hidden_act_is_not_in_the_ledger() -> None:
    from harness.probe.ledger import Ledger

    def write(scene: Scene, bucket: int) -> None:
        scene.leaf(0, bucket, "cu_seqlens_q").zero_()

    for hidden in (True, False):
        hand = Hand(Around(write, "test", hidden=hidden))
        with Ledger() as ledger:
            hand.round()
        found = ledger.entries([(0, "cu_seqlens_q", hand.leaf("cu_seqlens_q"))])
        assert bool(found) is not hidden
        assert hand.value("cu_seqlens_q") == [0] * 5


def test_exceptions_lines_and_routes() -> None:
    hand = Hand(Raises(ValueError("no"), Nth(1)))
    with pytest.raises(ValueError, match="no"):
        hand.round()
    said: list[str] = []
    hand = Hand(Says(said.append, "fallback", Nth(1)))
    hand.round()
    hand.round()
    assert said == ["fallback"]
    hand = Hand(OtherRoute("independent", Nth(2)))
    hand.round()
    assert hand.sut.route() == "shared"
    hand.round()
    assert hand.sut.route() == "independent"


def test_other_values_are_staged() -> None:
    hand = Hand(Staged(lambda scene, inputs: dataclasses.replace(inputs, lengths=inputs.lengths + 1), "test"))
    hand.round()
    assert hand.value(LENGTH) == [901, 301, 71, 6]


def test_something_happens_after_staging() -> None:
    seen: list[tuple[int, int]] = []
    act = AfterStaging(lambda scene, bucket: seen.append((bucket, int(scene.round.lengths[0]))), "test")
    hand = Hand(act, buckets=(4,))
    assert (seen, hand.trace.reached) == ([], 0)
    hand.round()
    assert (seen, hand.trace.reached) == ([(4, 900)], 1)


@pytest.mark.parametrize(("wait", "seen"), [(True, 20), (False, 900)])
def test_a_stream_without_order_overtakes_a_replay(wait: bool, seen: int) -> None:
    hand = Hand(OtherStream(wait=wait), at(drill=Drill.DELAYED))
    hand.capture()
    hand.round((20, 20, 20, 20))
    hand.engine.launch(hand.capture()[0], delayed=True)
    with hand.engine.ordering():
        hand.round()
    hand.engine.synchronize()
    assert hand.outputs()[0].read[LENGTH][0] == seen


def test_eager_calls_and_pauses() -> None:
    seen: list[object] = []
    hand = Hand(Eager(lambda scene, rows: seen.append(rows), "test"))
    hand.sut.eager(5)
    hand = Hand(OnPause(lambda scene: seen.append(hand.value(LENGTH)), "test"))
    pause = hand.sut.pause_and_resume  # type: ignore[attr-defined]
    hand.round()
    pause()
    assert seen == [5, [0] * 4]
    hand = Hand(OnPause(None, "test"))
    hand.round()
    hand.sut.pause_and_resume()  # type: ignore[attr-defined]
    assert hand.value(LENGTH) == list(LENGTHS)


def test_the_reference_of_a_leaf_is_not_changed() -> None:
    case = at(model=P1, kernel=Kernel.FLASHMLA_KV)
    name = "flashmla_metadata.num_splits"
    plain, bent = Hand(Unchanged(), case), Hand(Skipped(ALWAYS), case)
    inputs = inputs_of(case, LENGTHS)
    one, other = plain.sut.reference(name, inputs), bent.sut.reference(name, inputs)
    assert one is not None
    assert other is not None
    assert torch.equal(one, other)


def test_combined_mechanisms_stand_around_every_call() -> None:
    calls = []

    class Noting(Injection):
        kind = "test"

        def __init__(self, name: str) -> None:
            self.name = name

        def start(self, scene: Scene) -> None:
            calls.append(("start", self.name))

        def init(self, scene: Scene, call: Any) -> None:
            calls.append(("init", self.name))
            call()

        def capture(self, scene: Scene, bucket: int, call: Any) -> None:
            calls.append(("capture", self.name))
            call()

        def stage(self, scene: Scene, inputs: Any, call: Any) -> None:
            calls.append(("stage", self.name))
            call(inputs)

        def refresh(self, scene: Scene, bucket: int, call: Any) -> None:
            calls.append(("refresh", self.name))
            call()

        def reads(self, scene: Scene, step: int, bucket: int, metadata: Any) -> Any:
            calls.append(("reads", self.name))
            return metadata

        def forward(self, scene: Scene, bucket: int, call: Any) -> Any:
            calls.append(("forward", self.name))
            return call()

        def eager(self, scene: Scene, rows: int, call: Any) -> None:
            calls.append(("eager", self.name))
            call()

        def pause(self, scene: Scene, call: Any) -> None:
            calls.append(("pause", self.name))
            call()

        def route(self, scene: Scene, call: Any) -> str:
            calls.append(("route", self.name))
            return str(call())

    hand = Hand(Combined((Noting("a"), Noting("b")), "test"), buckets=(4,))
    hand.capture()
    hand.round()
    hand.sut.eager(2)
    hand.sut.pause_and_resume()  # type: ignore[attr-defined]
    hand.sut.route()
    for name in (
        "start",
        "init",
        "capture",
        "stage",
        "refresh",
        "reads",
        "forward",
        "eager",
        "pause",
        "route",
    ):
        assert [who for what, who in calls if what == name][:2] == ["a", "b"], name
