"""Models, sequences, systems with a fault and benches that the fuzzer's tests share."""

from __future__ import annotations

import torch

from harness.case import Case
from harness.engine.protocol import Engine
from harness.engine.tape import TapeEngine
from harness.errors import NotDrivable
from harness.fuzz.campaign import Campaign, Limits, Outcome
from harness.fuzz.sequence import Capture, Operation, Replay, Sequence, Setting
from harness.fuzz.space import Space
from harness.fuzz.trial import Bench, Trial
from harness.sut.embedded.counter import FIRST_ROWS
from harness.sut.embedded.sut import EmbeddedSut, make_sut
from harness.sut.protocol import SpanRecorder, SutFactory
from harness.types import Kernel, Mode, Path
from tests.faulty import Bends, BentSut
from tests.helpers import tiny_model

MODELS = {model.name: model for model in (tiny_model(4), tiny_model(1))}
SHARED = Setting(model="unit-p4", path=Path.SHARED, steps=3)
UNPOOLED = Setting(model="unit-p1", path=Path.SHARED, steps=3)
COUNTED = Setting(model="unit-p1", path=Path.INDEPENDENT, steps=3, kernel=Kernel.TRTLLM)


def sequence_of(*operations: Operation, setting: Setting = SHARED, ordinary: bool = False) -> Sequence:
    return Sequence(setting=setting, operations=operations, ordinary=ordinary)


def captured(bucket: int = 2) -> Capture:
    return Capture(bucket=bucket, lengths=(7,) * bucket, requests=tuple(range(1, bucket + 1)))


def replayed(*lengths: int, bucket: int = 2, delayed: bool = False) -> Replay:
    requests = tuple(range(2, len(lengths) + 2))
    return Replay(bucket=bucket, lengths=lengths, requests=requests, pages=1, delayed=delayed)


def space_of_one(setting: Setting, *, pauses: bool = False) -> Space:
    return Space(MODELS, {setting.mode: (setting,)}, pauses)


def bench(factory: SutFactory = make_sut) -> Bench:
    return Bench(MODELS, factory, TapeEngine(), ordinary=make_sut)


class Recorder(Bench):
    """Keeps what it is given and drives nothing."""

    def __init__(self) -> None:
        super().__init__(MODELS, make_sut, TapeEngine())
        self.seen: list[Sequence] = []

    def run(self, sequence: Sequence) -> Trial:
        self.seen.append(sequence)
        raise NotDrivable("only recorded")


def bent(bends: Bends) -> SutFactory:
    def factory(case: Case, engine: Engine, span: SpanRecorder) -> EmbeddedSut:
        return BentSut(bends, case, engine, span)

    return factory


def stale_while_longest_stays(sut: BentSut, bucket: int) -> None:
    """Leave the schedule as it is where the longest request is as long as in the bucket's refresh before."""
    longest = int(sut.inputs()["seq_lens"][:bucket].max())
    schedule = sut.metadata(0, bucket).paged_mqa_schedule_metadata
    before = schedule.clone()
    sut.plain_refresh(bucket)
    if sut.kept.get(f"longest of {bucket}") == longest:
        schedule.copy_(before)
    sut.kept[f"longest of {bucket}"] = longest


def old_bucket_after_a_switch(sut: BentSut, bucket: int) -> None:
    """Step 1 keeps the object of the bucket before, after the first refresh of another bucket."""
    before = sut.kept.get("bucket", bucket)
    if before != bucket:
        backend = sut.backend.backends[1]
        backend.active = backend.metadata[before]
    sut.kept["bucket"] = bucket


def grown_counter(sut: BentSut, rows: int) -> None:
    """An eager call with more rows than the counter serves binds another one."""
    if rows > FIRST_ROWS:
        for backend in sut.backend.backends:
            backend.counter._buffer = torch.zeros(2 * rows, dtype=torch.int32)


def not_every_time(sut: BentSut, bucket: int) -> None:
    """Leave out every third refresh: a fault that almost every sequence shows."""
    if sut.refreshes % 3:
        sut.plain_refresh(bucket)


SKIPPED = Bends(refresh=not_every_time)
STALE = Bends(refresh=stale_while_longest_stays)
SWITCHED = Bends(after=old_bucket_after_a_switch)
GROWN = Bends(eager=grown_counter)


def fuzzed(
    setting: Setting,
    factory: SutFactory = make_sut,
    *,
    sequences: int = 60,
    seed: int = 1,
    shrinking: tuple[int, int] = (3, 20),
) -> Outcome:
    """Fuzz one setting for a number of sequences, however long that takes."""
    limits = Limits(3600.0, sequences, steps=6, hypothesis_runs=shrinking[0], reducer_runs=shrinking[1])
    return Campaign(bench(factory), space_of_one(setting), limits, seed=seed).run()


EXTEND = Setting(model="unit-p4", path=Path.INDEPENDENT, steps=3, mode=Mode.DRAFT_EXTEND)
VERIFY = Setting(model="unit-p1", path=Path.SHARED, steps=3, mode=Mode.TARGET_VERIFY)
